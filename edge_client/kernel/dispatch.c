/* Which instruction sets this processor has, and the way to the code for each. */
#include "kernel.h"

int64_t gca_train_baseline(struct gca_training *, float *);
int64_t gca_infer_baseline(const struct gca_inference *, float *);

#ifdef __x86_64__
#include <xmmintrin.h>

int64_t gca_train_avx512(struct gca_training *, float *);
int64_t gca_infer_avx512(const struct gca_inference *, float *);
int64_t gca_train_avx2(struct gca_training *, float *);
int64_t gca_infer_avx2(const struct gca_inference *, float *);

int64_t gca_paths(void) {
    int64_t paths = 1 << GCA_BASELINE;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        paths |= 1 << GCA_AVX2;
    if (paths & 1 << GCA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        paths |= 1 << GCA_AVX512;
    return paths;
}

/* Numbers below 1e-38 count as zero while training: the moments of a silent unit decay into that range and stay,
 * and some processors take a hundred times as long over them. */
int64_t gca_train(struct gca_training *job, int64_t path, float *memory) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
    const int64_t floats = path == GCA_AVX512 ? gca_train_avx512(job, memory)
                           : path == GCA_AVX2 ? gca_train_avx2(job, memory)
                                              : gca_train_baseline(job, memory);
    _mm_setcsr(before);
    return floats;
}

int64_t gca_infer(const struct gca_inference *job, int64_t path, float *memory) {
    return path == GCA_AVX512 ? gca_infer_avx512(job, memory)
           : path == GCA_AVX2 ? gca_infer_avx2(job, memory)
                              : gca_infer_baseline(job, memory);
}

#else

int64_t gca_paths(void) { return 1 << GCA_BASELINE; }
int64_t gca_train(struct gca_training *job, int64_t path, float *memory) {
    return (void)path, gca_train_baseline(job, memory);
}
int64_t gca_infer(const struct gca_inference *job, int64_t path, float *memory) {
    return (void)path, gca_infer_baseline(job, memory);
}

#endif

int64_t gca_training_bytes(void) { return sizeof(struct gca_training); }
int64_t gca_inference_bytes(void) { return sizeof(struct gca_inference); }
