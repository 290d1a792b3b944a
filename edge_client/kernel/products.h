/* The three matrix products of a dense layer, on vectors of VW floats, and what their results pass through.
 *
 * Every matrix is row-major, its rows padded to whole vectors, so that no product has a ragged edge: padded weights
 * and activations are zero and stay zero. A product is computed in tiles of R rows by C vectors whose R * C sums live
 * in registers while the inner dimension runs past; TILES_WIDE says that there are 32 registers instead of 16.
 * Included once for each instruction set, which defines VW, ROOT(x) and, where it may, TILES_WIDE.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef float vf __attribute__((vector_size(4 * VW), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VW), may_alias));
typedef ptrdiff_t idx;

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define LOOP _Pragma("GCC unroll 32")

INLINE vf load(const float *from) { return *(const vf *)from; }
INLINE void store(float *to, vf x) { *(vf *)to = x; }

/* max(x, 0); not-a-number stays, so that a diverged model shows. */
INLINE vf relu(vf x) { return (vf)((vi)x & ~(x <= 0.0f)); }

/* g where the ReLU was open (its output h is positive), else 0. */
INLINE vf gated(vf g, vf h) { return (vf)((vi)g & (h > 0.0f)); }

/* One Adam step for a vector of parameters (edge_client/model/adam.py), with the proximal term's share of g.
 * `rate` = alpha sqrt(1 - beta2^t) / (1 - beta1^t) and `epsilon` = eps sqrt(1 - beta2^t) were computed in double. */
struct adam {
    float rate, epsilon, beta1, beta2, rest1, rest2, two_mu;
};

struct moving { /* one array of parameters and what moves it */
    float *value, *first, *second;
    float *anchor; /* or null */
};

INLINE void adam_step(const struct moving *p, idx at, vf g, const struct adam *a) {
    vf value = load(p->value + at);
    if (p->anchor)
        g += a->two_mu * (value - load(p->anchor + at));
    vf first = a->beta1 * load(p->first + at) + a->rest1 * g;
    vf second = a->beta2 * load(p->second + at) + a->rest2 * (g * g);
    store(p->first + at, first);
    store(p->second + at, second);
    store(p->value + at, value - a->rate * (first / (ROOT(second) + a->epsilon)));
}

/* ---- Y = f(X W + b), and dX = dY W^T behind the gate of the layer below ------------------------------------------ */

enum after { LINEAR, RELU };

enum { MOST_ROWS = 25, MOST_VECTORS = 4 }; /* of a tile; the compiler keeps what a tile uses, in registers */

/* R rows of Y by C vectors, the tile that starts at y, w's and bias' column and x's row. */
INLINE void dense_tile(const int R, const int C, const float *x, idx k, const float *w, idx n, const float *bias,
                       const float *gate, enum after after, float *y) {
    vf sum[MOST_ROWS][MOST_VECTORS];
    LOOP for (int i = 0; i < R; i++)
        LOOP for (int j = 0; j < C; j++)
            sum[i][j] = bias ? load(bias + VW * j) : (vf){0};
    for (idx p = 0; p < k; p++) {
        vf row[MOST_VECTORS];
        LOOP for (int j = 0; j < C; j++)
            row[j] = load(w + p * n + VW * j);
        LOOP for (int i = 0; i < R; i++) {
            const float xi = x[i * k + p];
            LOOP for (int j = 0; j < C; j++)
                sum[i][j] += xi * row[j];
        }
    }
    LOOP for (int i = 0; i < R; i++)
        LOOP for (int j = 0; j < C; j++) {
            vf out = sum[i][j];
            if (after == RELU)
                out = relu(out);
            if (gate)
                out = gated(out, load(gate + i * n + VW * j));
            store(y + i * n + VW * j, out);
        }
}

/* ---- dW = X^T dY, never stored: each tile of it goes straight into its Adam step --------------------------------- */

/* R rows of dW by C vectors, of which the first is at `at` in W. */
INLINE void gradient_tile(const int R, const int C, const float *x, idx k, const float *dy, idx n, idx rows,
                          const struct moving *p, idx at, const struct adam *a) {
    vf sum[MOST_ROWS][MOST_VECTORS];
    LOOP for (int i = 0; i < R; i++)
        LOOP for (int j = 0; j < C; j++)
            sum[i][j] = (vf){0};
    for (idx r = 0; r < rows; r++) {
        vf row[MOST_VECTORS];
        LOOP for (int j = 0; j < C; j++)
            row[j] = load(dy + r * n + VW * j);
        LOOP for (int i = 0; i < R; i++) {
            const float xi = x[r * k + i];
            LOOP for (int j = 0; j < C; j++)
                sum[i][j] += xi * row[j];
        }
    }
    LOOP for (int i = 0; i < R; i++)
        LOOP for (int j = 0; j < C; j++)
            adam_step(p, at + i * n + VW * j, sum[i][j], a);
}

/* ---- one function for each size of tile, because a function of its own gets the registers to itself -------------- */

#define DEFINE_DENSE(R, C)                                                                                             \
    NOINLINE static void dense_##R##x##C(const float *x, idx k, const float *w, idx n, const float *bias,              \
                                         const float *gate, enum after after, float *y) {                              \
        dense_tile(R, C, x, k, w, n, bias, gate, after, y);                                                            \
    }

#define DEFINE_GRADIENT(R, C)                                                                                          \
    NOINLINE static void gradient_##R##x##C(const float *x, idx k, const float *dy, idx n, idx rows,                   \
                                            const struct moving *p, idx at, const struct adam *a) {                    \
        gradient_tile(R, C, x, k, dy, n, rows, p, at, a);                                                              \
    }

#ifdef TILES_WIDE
DEFINE_DENSE(5, 4)
DEFINE_DENSE(10, 2)
DEFINE_DENSE(25, 1)
DEFINE_GRADIENT(4, 4)
DEFINE_GRADIENT(8, 2)
DEFINE_GRADIENT(16, 1)
#else
DEFINE_DENSE(10, 1)
DEFINE_GRADIENT(8, 1)
#endif
DEFINE_DENSE(5, 2)
DEFINE_DENSE(5, 1)
DEFINE_GRADIENT(4, 2)
DEFINE_GRADIENT(4, 1)

#define DENSE_ROWS 5    /* rows of activations are computed in fives; the excess is never looked at */
#define GRADIENT_ROWS 4 /* divides every padded width */

/* Y (rows, n) = f(X (rows, k) W (k, n) + b), or behind a gate (rows, n); rows a multiple of DENSE_ROWS. */
static void dense(const float *x, idx k, const float *w, idx n, const float *bias, const float *gate, enum after after,
                  float *y, idx rows) {
#define TILE(R, C)                                                                                                     \
    for (; i + (R) <= rows; i += (R))                                                                                  \
        dense_##R##x##C(x + i * k, k, w + j, n, bias ? bias + j : 0, gate ? gate + i * n + j : 0, after, y + i * n + j);
    idx j = 0;
#ifdef TILES_WIDE
    for (; j + 4 * VW <= n; j += 4 * VW) {
        idx i = 0;
        TILE(5, 4)
    }
    for (; j + 2 * VW <= n; j += 2 * VW) {
        idx i = 0;
        TILE(10, 2)
        TILE(5, 2)
    }
    for (; j < n; j += VW) {
        idx i = 0;
        TILE(25, 1)
        TILE(5, 1)
    }
#else
    for (; j + 2 * VW <= n; j += 2 * VW) {
        idx i = 0;
        TILE(5, 2)
    }
    for (; j < n; j += VW) {
        idx i = 0;
        TILE(10, 1)
        TILE(5, 1)
    }
#endif
#undef TILE
}

/* W (k, n) moves by one Adam step against X^T dY, X (rows, k), dY (rows, n); k a multiple of GRADIENT_ROWS. */
static void descend(const float *x, idx k, const float *dy, idx n, idx rows, const struct moving *w,
                    const struct adam *a) {
#define TILE(R, C)                                                                                                     \
    for (; i + (R) <= k; i += (R))                                                                                     \
        gradient_##R##x##C(x + i, k, dy + j, n, rows, w, i * n + j, a);
    idx j = 0;
#ifdef TILES_WIDE
    for (; j + 4 * VW <= n; j += 4 * VW) {
        idx i = 0;
        TILE(4, 4)
    }
    for (; j + 2 * VW <= n; j += 2 * VW) {
        idx i = 0;
        TILE(8, 2)
        TILE(4, 2)
    }
    for (; j < n; j += VW) {
        idx i = 0;
        TILE(16, 1)
        TILE(4, 1)
    }
#else
    for (; j + 2 * VW <= n; j += 2 * VW) {
        idx i = 0;
        TILE(4, 2)
    }
    for (; j < n; j += VW) {
        idx i = 0;
        TILE(8, 1)
        TILE(4, 1)
    }
#endif
#undef TILE
}

/* b (n) moves by one Adam step against the column sums of dY (rows, n). */
NOINLINE static void descend_bias(const float *dy, idx n, idx rows, const struct moving *b, const struct adam *a) {
    for (idx j = 0; j < n; j += VW) {
        vf sum = {0};
        for (idx r = 0; r < rows; r++)
            sum += load(dy + r * n + j);
        adam_step(b, j, sum, a);
    }
}

/* ---- W^T ------------------------------------------------------------------------------------------------------------
 * Four by four in registers, whatever VW; blocks of 16 by 16, so that a cache line is written once. */
typedef float quad __attribute__((vector_size(16), may_alias));
typedef int32_t quad_index __attribute__((vector_size(16)));
#if defined(__clang__) || __GNUC__ >= 12
#define MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define MIX(a, b, i, j, k, l) __builtin_shuffle(a, b, (quad_index){i, j, k, l})
#endif

INLINE void transpose_quad(const float *w, idx n, float *t, idx k) {
    const quad a = *(const quad *)w, b = *(const quad *)(w + n);
    const quad c = *(const quad *)(w + 2 * n), d = *(const quad *)(w + 3 * n);
    const quad ab = MIX(a, b, 0, 4, 1, 5), cd = MIX(c, d, 0, 4, 1, 5); /* a0 b0 a1 b1, c0 d0 c1 d1 */
    const quad AB = MIX(a, b, 2, 6, 3, 7), CD = MIX(c, d, 2, 6, 3, 7);
    *(quad *)t = MIX(ab, cd, 0, 1, 4, 5);
    *(quad *)(t + k) = MIX(ab, cd, 2, 3, 6, 7);
    *(quad *)(t + 2 * k) = MIX(AB, CD, 0, 1, 4, 5);
    *(quad *)(t + 3 * k) = MIX(AB, CD, 2, 3, 6, 7);
}

/* T (n, k) = W (k, n)^T. */
NOINLINE static void transpose(const float *w, idx k, idx n, float *t) {
    for (idx i = 0; i < k; i += 16)
        for (idx j = 0; j < n; j += 16)
            for (idx jj = j; jj < j + 16 && jj < n; jj += 4)
                for (idx ii = i; ii < i + 16 && ii < k; ii += 4)
                    transpose_quad(w + ii * n + jj, n, t + jj * k + ii, k);
}
