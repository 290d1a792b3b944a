/* AVX-512: 32 registers of 16 floats. */
#ifdef __x86_64__
#include <immintrin.h>
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"))),                   \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#endif
#define NAME(function) gca_##function##_avx512
#define VW 16
#define TILES_WIDE
#define ROOT(x) ((vf)_mm512_sqrt_ps((__m512)(x)))
#include "training.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
