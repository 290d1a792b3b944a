/* What every processor of an architecture has: SSE2 on x86-64, NEON on aarch64 (32 registers), else what the
 * compiler makes of vectors of four. */
#if defined(__x86_64__)
#include <immintrin.h>
#define ROOT(x) ((vf)_mm_sqrt_ps((__m128)(x)))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define ROOT(x) ((vf)vsqrtq_f32((float32x4_t)(x)))
#define TILES_WIDE
#else
#include <math.h>
#define ROOT(x) ((vf){sqrtf((x)[0]), sqrtf((x)[1]), sqrtf((x)[2]), sqrtf((x)[3])})
#endif
#define NAME(function) gca_##function##_baseline
#define VW 4
#include "training.h"
