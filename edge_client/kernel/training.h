/* Local training of one device, and inference, for one instruction set.
 *
 * A minibatch X (B, d_x) of records goes through layers l = 1 ... L, with H_0 = X:
 *
 *   (1) forward      H_l = f_l(H_{l-1} W_l + b_l),  f = max(0, .), but linear for the latent layer and the head
 *   (2) loss         reconstruction (eq. 2):  mean_b ||H_L[b] - X[b]||^2;                D_L = 2 (H_L - X) / B
 *                    alignment (eq. 5), L the latent layer: mean_b w_a ||H_L[b] - mu_a||^2,
 *                    a = argmin_k ||H_L[b] - mu_k||^2, the lowest k of equals;    D_L[b] = 2 w_a (H_L[b] - mu_a) / B
 *   (3) backward     D_{l-1} = D_l W_l^T where H_{l-1} > 0, else 0 (everywhere if f_{l-1} is linear)
 *   (4) gradient     G_l = H_{l-1}^T D_l,  g_l = sum_b D_l[b];  with a proximal term  + 2 mu (theta - anchor)
 *   (5) Adam         m = beta1 m + (1 - beta1) G,  v = beta2 v + (1 - beta2) G^2,
 *                    theta = theta - alpha sqrt(c2) / c1 * m / (sqrt(v) + eps sqrt(c2)),  c = 1 - beta^t in double
 *
 * (3) uses W_l before (5) moves it. The blocks below carry these numbers. The whole model, both moments and a
 * minibatch's activations are copied into one padded work area, which for the default model fits a second-level
 * cache, and stay there until the last epoch is done.
 */
#include "kernel.h"
#include "products.h"
#include <string.h>

static const double BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8;

struct layer {
    idx in, out;                 /* true widths */
    idx k, n;                    /* padded widths */
    struct moving weights, bias; /* (k, n), (n) */
    float *transposed;           /* (n, k): W^T, kept in step with W */
    float *output, *delta;       /* (rows, n): H_l, D_l */
    enum after after;
};

static idx padded(idx width) { return (width + VW - 1) / VW * VW; }

/* ---- the work area: measured with no memory behind it, then laid out in it --------------------------------------- */

struct area {
    float *base; /* null while measuring */
    size_t used; /* floats */
};

static float *take(struct area *area, idx count) {
    float *start = area->base ? area->base + area->used : 0;
    area->used += ((size_t)count + 15) / 16 * 16;
    return start;
}

static struct moving take_moving(struct area *area, idx count, int with_anchor) {
    struct moving p = {take(area, count), take(area, count), take(area, count), 0};
    if (with_anchor)
        p.anchor = take(area, count);
    return p;
}

/* The first `count` layers of a model, with room for `rows` rows. */
static void lay_out(struct layer *layers, const struct gca_model *model, idx count, idx rows, int training,
                    int with_anchor, struct area *area) {
    for (idx l = 0; l < count; l++) {
        struct layer *one = layers + l;
        const idx in = model->widths[l], out = model->widths[l + 1];
        const int linear = l == model->latent_layer || l == model->layers - 1;
        *one = (struct layer){.in = in, .out = out, .k = padded(in), .n = padded(out), .after = linear ? LINEAR : RELU};
        const idx size = one->k * one->n;
        if (training) {
            one->weights = take_moving(area, size, with_anchor);
            one->bias = take_moving(area, one->n, with_anchor);
            one->transposed = take(area, size);
            one->delta = take(area, rows * one->n);
        } else {
            one->weights.value = take(area, size);
            one->bias.value = take(area, one->n);
        }
        one->output = take(area, rows * one->n);
    }
}

/* A layer's share of the flat layout. */
static idx flat_size(const struct layer *one) { return (one->in + 1) * one->out; }

/* Between the flat layout and the padded one; `flat` points to the layer's share. */
static void pack(const float *flat, const struct layer *one, float *weights, float *bias) {
    const size_t row = sizeof(float) * (size_t)one->out;
    for (idx i = 0; i < one->in; i++)
        memcpy(weights + i * one->n, flat + i * one->out, row);
    memcpy(bias, flat + one->in * one->out, row);
}

static void unpack(float *flat, const struct layer *one, const float *weights, const float *bias) {
    const size_t row = sizeof(float) * (size_t)one->out;
    for (idx i = 0; i < one->in; i++)
        memcpy(flat + i * one->out, weights + i * one->n, row);
    memcpy(flat + one->in * one->out, bias, row);
}

static idx in_fives(idx rows) { return (rows + DENSE_ROWS - 1) / DENSE_ROWS * DENSE_ROWS; }

/* ---- (1) --------------------------------------------------------------------------------------------------------- */

static void forward(const struct layer *layers, idx count, const float *input, idx rows) {
    for (idx l = 0; l < count; l++) {
        const struct layer *one = layers + l;
        dense(input, one->k, one->weights.value, one->n, one->bias.value, 0, one->after, one->output, in_fives(rows));
        input = one->output;
    }
}

/* Sum of a vector's lanes, in double. */
static double total(vf x) {
    double sum = 0.0;
    for (int lane = 0; lane < VW; lane++)
        sum += (double)x[lane];
    return sum;
}

/* ---- (2) --------------------------------------------------------------------------------------------------------- */

/* Sum over the rows of ||H - X||^2; D is written. */
static double reconstruction_loss(const float *output, const float *input, idx n, idx rows, float *delta) {
    double loss = 0.0;
    const float scale = 2.0f / (float)rows;
    for (idx r = 0; r < rows; r++) {
        vf sum = {0};
        for (idx j = r * n; j < (r + 1) * n; j += VW) {
            const vf error = load(output + j) - load(input + j);
            sum += error * error;
            store(delta + j, scale * error);
        }
        loss += total(sum);
    }
    return loss;
}

struct centroids {
    idx count, lanes; /* K, and K padded */
    float *rows;      /* (K, n): mu_k, padded */
    float *lines;     /* (d_z, lanes): their transpose; the padding is infinitely far */
    const float *weights;
};

/* argmin_k ||z - mu_k||^2; differences are squared, not expanded, which would cancel far from the origin. */
static idx nearest(const float *z, idx width, const struct centroids *mu) {
    vf least = (vf){0} + INFINITY;
    vi first = {0}, candidate = {0};
    for (int lane = 0; lane < VW; lane++)
        candidate[lane] = lane;
    for (idx k = 0; k < mu->lanes; k += VW, candidate += VW) {
        vf distance = {0};
        for (idx j = 0; j < width; j++) {
            const vf difference = z[j] - load(mu->lines + j * mu->lanes + k);
            distance += difference * difference;
        }
        const vi closer = distance < least;
        least = (vf)(((vi)distance & closer) | ((vi)least & ~closer));
        first = (candidate & closer) | (first & ~closer);
    }
    idx best = 0;
    float at = INFINITY;
    for (int lane = 0; lane < VW; lane++)
        if (least[lane] < at || (least[lane] == at && first[lane] < best)) {
            at = least[lane];
            best = first[lane];
        }
    return best;
}

/* Sum over the rows of w_a ||z - mu_a||^2; D is written. */
static double alignment_loss(const float *codes, idx width, idx n, idx rows, const struct centroids *mu, float *delta) {
    double loss = 0.0;
    for (idx r = 0; r < rows; r++) {
        const float *z = codes + r * n;
        const idx a = nearest(z, width, mu);
        const float weight = mu->weights[a], scale = weight * (2.0f / (float)rows);
        vf sum = {0};
        for (idx j = 0; j < n; j += VW) {
            const vf error = load(z + j) - load(mu->rows + a * n + j);
            sum += error * error;
            store(delta + r * n + j, scale * error);
        }
        loss += (double)weight * total(sum);
    }
    return loss;
}

static struct centroids take_centroids(struct area *area, const struct gca_training *job, idx width) {
    const idx count = job->components, lanes = padded(count);
    return (struct centroids){count, lanes, take(area, count * padded(width)), take(area, width * lanes), job->weights};
}

static void bring_centroids(const struct centroids *mu, const struct gca_training *job, idx width) {
    for (idx k = 0; k < mu->lanes; k++)
        for (idx j = 0; j < width; j++)
            mu->lines[j * mu->lanes + k] = k < mu->count ? job->centroids[k * width + j] : INFINITY;
    for (idx k = 0; k < mu->count; k++)
        memcpy(mu->rows + k * padded(width), job->centroids + k * width, sizeof(float) * (size_t)width);
}

/* ---- (3), (4), (5) ----------------------------------------------------------------------------------------------- */

static struct adam corrected(double alpha, int64_t t, double mu) {
    const double c1 = 1.0 - pow(BETA1, (double)t), root2 = sqrt(1.0 - pow(BETA2, (double)t));
    return (struct adam){
        .rate = (float)(alpha * root2 / c1), .epsilon = (float)(EPSILON * root2), .two_mu = (float)(2.0 * mu),
        .beta1 = (float)BETA1, .rest1 = (float)(1.0 - BETA1), .beta2 = (float)BETA2, .rest2 = (float)(1.0 - BETA2),
    };
}

static void backward(struct layer *layers, idx count, idx latent_layer, const float *input, idx rows,
                     const struct adam *encoder, const struct adam *decoder) {
    for (idx l = count - 1; l >= 0; l--) {
        struct layer *one = layers + l, *below = one - 1;
        const struct adam *adam = l <= latent_layer ? encoder : decoder;
        if (l > 0) {
            const float *gate = below->after == RELU ? below->output : 0;
            dense(one->delta, one->n, one->transposed, one->k, 0, gate, LINEAR, below->delta, in_fives(rows));
        }
        descend(l > 0 ? below->output : input, one->k, one->delta, one->n, rows, &one->weights, adam);
        descend_bias(one->delta, one->n, rows, &one->bias, adam);
        if (l > 0)
            transpose(one->weights.value, one->k, one->n, one->transposed);
    }
}

/* ---- a device's local phase -------------------------------------------------------------------------------------- */

static void gather(const struct gca_training *job, const int64_t *chosen, idx rows, idx width, idx n, float *input) {
    for (idx r = 0; r < rows; r++)
        memcpy(input + r * n, job->samples + chosen[r] * width, sizeof(float) * (size_t)width);
}

static void bring_in(const struct gca_training *job, struct layer *layers, idx count) {
    idx at = 0;
    for (struct layer *one = layers; one < layers + count; at += flat_size(one++)) {
        struct moving *w = &one->weights, *b = &one->bias;
        pack(job->parameters + at, one, w->value, b->value);
        pack(job->first_moment + at, one, w->first, b->first);
        pack(job->second_moment + at, one, w->second, b->second);
        if (job->anchor)
            pack(job->anchor + at, one, w->anchor, b->anchor);
        transpose(w->value, one->k, one->n, one->transposed);
    }
}

static void bring_back(const struct gca_training *job, const struct layer *layers, idx count) {
    idx at = 0;
    for (const struct layer *one = layers; one < layers + count; at += flat_size(one++)) {
        const struct moving *w = &one->weights, *b = &one->bias;
        unpack(job->parameters + at, one, w->value, b->value);
        unpack(job->first_moment + at, one, w->first, b->first);
        unpack(job->second_moment + at, one, w->second, b->second);
    }
}

int64_t NAME(train)(struct gca_training *job, float *memory) {
    const struct gca_model *model = &job->model;
    const int aligning = job->objective == GCA_ALIGNMENT;
    const idx count = aligning ? model->latent_layer + 1 : model->layers;
    const idx size = job->batch_size < job->records ? job->batch_size : job->records;
    const idx width = model->widths[0], n = padded(width), code = model->widths[model->latent_layer + 1];

    struct layer layers[GCA_MOST_LAYERS];
    struct area area = {memory, 0};
    float *input = take(&area, in_fives(size) * n);
    lay_out(layers, model, count, in_fives(size), 1, job->anchor != 0, &area);
    struct centroids mu = {0};
    if (aligning)
        mu = take_centroids(&area, job, code);
    if (!memory)
        return (int64_t)area.used;
    memset(memory, 0, sizeof(float) * area.used);
    if (aligning)
        bring_centroids(&mu, job, code);
    bring_in(job, layers, count);

    const struct layer *last = layers + count - 1;
    int64_t encoder_steps = job->encoder_steps, decoder_steps = job->decoder_steps;
    for (idx epoch = 0; epoch < job->epochs; epoch++) {
        const int64_t *order = job->orders + epoch * job->records;
        double loss = 0.0;
        for (idx start = 0; start < job->records; start += size) {
            const idx rows = job->records - start < size ? job->records - start : size;
            gather(job, order + start, rows, width, n, input);
            forward(layers, count, input, rows);
            if (aligning)
                loss += alignment_loss(last->output, code, last->n, rows, &mu, last->delta);
            else
                loss += reconstruction_loss(last->output, input, n, rows, last->delta);
            const struct adam encoder = corrected(job->learning_rates[epoch], ++encoder_steps, job->mu);
            const struct adam decoder = corrected(job->learning_rates[epoch], ++decoder_steps, job->mu);
            backward(layers, count, model->latent_layer, input, rows, &encoder, &decoder);
        }
        job->losses[epoch] = loss;
    }
    bring_back(job, layers, count);
    return (int64_t)area.used;
}

/* ---- codes and scores -------------------------------------------------------------------------------------------- */

#define BLOCK 100 /* records inside the network at a time, so that activations stay in cache; library.py has it, too */

int64_t NAME(infer)(const struct gca_inference *job, float *memory) {
    const struct gca_model *model = &job->model;
    const idx count = job->scores ? model->layers : model->latent_layer + 1;
    const idx width = model->widths[0], n = padded(width), code = model->widths[model->latent_layer + 1];

    struct layer layers[GCA_MOST_LAYERS];
    struct area area = {memory, 0};
    float *input = take(&area, BLOCK * n);
    lay_out(layers, model, count, BLOCK, 0, 0, &area);
    if (!memory)
        return (int64_t)area.used;
    memset(memory, 0, sizeof(float) * area.used);
    idx at = 0;
    for (struct layer *one = layers; one < layers + count; at += flat_size(one++))
        pack(job->parameters + at, one, one->weights.value, one->bias.value);

    const struct layer *last = layers + count - 1, *latent = layers + model->latent_layer;
    for (idx start = 0; start < job->records; start += BLOCK) {
        const idx rows = job->records - start < BLOCK ? job->records - start : BLOCK;
        for (idx r = 0; r < rows; r++)
            memcpy(input + r * n, job->samples + (start + r) * width, sizeof(float) * (size_t)width);
        forward(layers, count, input, rows);
        for (idx r = 0; r < rows && job->codes; r++)
            memcpy(job->codes + (start + r) * code, latent->output + r * latent->n, sizeof(float) * (size_t)code);
        for (idx r = 0; r < rows && job->scores; r++) {
            vf sum = {0};
            for (idx j = r * n; j < (r + 1) * n; j += VW) {
                const vf error = load(last->output + j) - load(input + j);
                sum += error * error;
            }
            const float score = (float)total(sum);
            job->scores[start + r] = score == score ? score : INFINITY; /* not a number: beyond the number range */
        }
    }
    return (int64_t)area.used;
}
