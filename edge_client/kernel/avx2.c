/* AVX2 with fused multiply-add: 16 registers of 8 floats. */
#ifdef __x86_64__
#include <immintrin.h>
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define NAME(function) gca_##function##_avx2
#define VW 8
#define ROOT(x) ((vf)_mm256_sqrt_ps((__m256)(x)))
#include "training.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
