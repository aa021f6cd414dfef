// Activations, their slopes, and 16-bit conversions as branch-free scalar functions, so that a loop over them becomes
// vector code of whatever instruction set the including file is compiled for. Internal linkage, for the same reason.
//
// fp32: exp by Cody-Waite reduction and a polynomial; the normal distribution function by a polynomial in x * x for
// |x| < 1 and else by exp(-x*x/2) times a polynomial in 1 / (1 + x * scale), which keeps relative accuracy in the left
// tail, where 1 + erf(x) loses it. Coefficients: docs/vector_math.py. fp64 calls the C library.
//
// Largest errors against float64 at every float, in units of the result's last place, while exp does not go denormal
// (x > -13 for gelu, -87 for silu):
//   gelu       5.7 with fused multiply-add, 6.4 without; 3.0 and 3.6 for -1 < x < 0
//   gelu_tanh  9.4 for x > -2; below, the rounding of exp's argument counts: 48 for x > -5, 250 for x > -10.1
//   silu       3.4
// Beyond that exp loses bits and the result goes to 0. No error exceeds 2 units of the argument's last place. A slope,
// which is at most 1.13, errs by at most 2^-22.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/problem.h"

namespace tiledmm {
namespace {

// gpu.h defines the attributes with which nvcc and clang compile a function for host and device.
#if !defined(TILEDMM_SCALAR_ATTRIBUTES)
#define TILEDMM_SCALAR_ATTRIBUTES
#endif
#define TILEDMM_SCALAR [[maybe_unused]] TILEDMM_SCALAR_ATTRIBUTES static inline __attribute__((always_inline))

TILEDMM_SCALAR uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
TILEDMM_SCALAR float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// a * b + c, in one rounding where the instruction set can.
TILEDMM_SCALAR float mul_add(float a, float b, float c) {
#if defined(TILEDMM_ISA_AVX2) || defined(TILEDMM_ISA_AVX512) || defined(TILEDMM_ISA_AVX512_BF16) || \
    defined(TILEDMM_ISA_NEON) || defined(__CUDACC__) || defined(__HIP__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// |x|, at most `limit`; of a NaN `limit`, so that the caller must bring in the NaN itself.
TILEDMM_SCALAR float clamped_size(float x, float limit) {
  const int32_t size = int32_t(bits_of(x) & 0x7fffffff), most = int32_t(bits_of(limit));
  return float_of(uint32_t(size < most ? size : most));
}

// Selection by the sign bit of `key`. In bits: of `c ? a : b`, GCC makes a branch if a float is computed for it.
TILEDMM_SCALAR uint32_t select(uint32_t key, uint32_t if_set, uint32_t if_clear) {
  const uint32_t mask = uint32_t(int32_t(key) >> 31);
  return (if_set & mask) | (if_clear & ~mask);
}
TILEDMM_SCALAR float select(uint32_t key, float if_set, float if_clear) {
  return float_of(select(key, bits_of(if_set), bits_of(if_clear)));
}

// exp(-(high + low)) for 0 <= high <= 115 and |low| small beside it; 0 below half of the smallest denormal.
TILEDMM_SCALAR float exp_negated(float high, float low) {
  const float shifted = mul_add(high, -1.44269504f, 12582912.0f);  // 1.5 * 2^23: the sum's last bit is worth 1
  const float n = shifted - 12582912.0f;
  // ln 2 = 0.693359375 - 2.1219444e-4; the first product is exact
  const float r = mul_add(n, 2.12194440e-4f, mul_add(n, -0.693359375f, -high)) - low;
  float p = 0.00138367747f;
  p = mul_add(p, r, 0.00837481581f);
  p = mul_add(p, r, 0.0416682251f);
  p = mul_add(p, r, 0.166664198f);
  p = mul_add(p, r, 0.499999911f);
  p = mul_add(p, r, 1.0f);
  p = mul_add(p, r, 1.0f);
  // 2^n in two factors, since n goes down to -166 and a float's exponent to -126.
  const uint32_t exponent = bits_of(shifted) - bits_of(12582912.0f);
  const uint32_t half = uint32_t(int32_t(exponent) >> 1);
  return p * float_of((half + 127) << 23) * float_of((exponent - half + 127) << 23);
}

// x, but at most `limit` in size; the caller must bring in a NaN itself.
TILEDMM_SCALAR float clamped(float x, float limit) {
  return float_of(bits_of(clamped_size(x, limit)) | (bits_of(x) & 0x80000000));
}

// `result`, or the NaN that x is.
TILEDMM_SCALAR float with_nan_of(float x, float result) {
  return select(0x7f800000 - (bits_of(x) & 0x7fffffff), x, result);
}

// 1 / (1 + exp(-x)), accurate relative to its size for negative x, too. Not for NaN.
TILEDMM_SCALAR float logistic(float x) {
  const float tail = exp_negated(clamped_size(x, 110.0f), 0);
  return select(bits_of(x), tail, 1.0f) / (1.0f + tail);
}

// exp(-z * z / 2) for 0 <= z <= 15: z * z exactly, as the square of z's leading bits, and the rest.
TILEDMM_SCALAR float exp_of_square(float z) {
  const float leading = float_of(bits_of(z) & 0xfffff000);
  return exp_negated(0.5f * (leading * leading), 0.5f * ((z - leading) * (z + leading)));
}

// The density of the normal distribution. Not for NaN.
TILEDMM_SCALAR float normal_density(float x) { return 0.398942280f * exp_of_square(clamped_size(x, 15.0f)); }

// The normal distribution function. Not for NaN.
TILEDMM_SCALAR float normal_cdf(float x) {
  const float z = clamped_size(x, 15.0f);
  const float square = x * x;
  float odd = 9.42240586e-05f;
  odd = mul_add(odd, square, -0.00116933114f);
  odd = mul_add(odd, square, 0.00996718276f);
  odd = mul_add(odd, square, -0.0664895773f);
  odd = mul_add(odd, square, 0.398942262f);
  const float centre = mul_add(odd, x, 0.5f);

  const float t = 1.0f / mul_add(z, 0.45f, 1.0f);
  float p = -0.0812266022f;
  p = mul_add(p, t, 0.303502917f);
  p = mul_add(p, t, -0.398302913f);
  p = mul_add(p, t, 0.143771008f);
  p = mul_add(p, t, 0.021437794f);
  p = mul_add(p, t, 0.152696282f);
  p = mul_add(p, t, 0.178380653f);
  p = mul_add(p, t, 0.179601178f);
  p = mul_add(p, t, -2.23315442e-06f);
  const float tail = p * exp_of_square(z);
  const float outside = select(bits_of(x), tail, 1.0f - tail);
  return select(bits_of(z) - bits_of(1.0f), centre, outside);
}

template <Activation ACT>
TILEDMM_SCALAR float activate(float x) {
  if constexpr (ACT == Activation::relu) return x < 0 ? 0.0f : x;
  if constexpr (ACT == Activation::gelu) return x * normal_cdf(x);
  if constexpr (ACT == Activation::gelu_tanh) {
    // 1 + tanh(u) = 2 * logistic(2 * u), u = sqrt(2 / pi) * (x + 0.044715 * x^3)
    return x * logistic(1.59576912f * (x + 0.044715f * x * x * x));
  }
  if constexpr (ACT == Activation::silu) return x * logistic(x);
  return x;
}

template <Activation ACT>
[[maybe_unused]] TILEDMM_SCALAR_ATTRIBUTES static inline double activate(double x) {
  if constexpr (ACT == Activation::relu) return x < 0 ? 0.0 : x;
  if constexpr (ACT == Activation::gelu) return x * (0.5 * std::erfc(-x * 0.70710678118654752440));
  if constexpr (ACT == Activation::gelu_tanh) {
    const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
    return x / (1.0 + std::exp(-2.0 * u));
  }
  if constexpr (ACT == Activation::silu) return x / (1.0 + std::exp(-x));
  return x;
}

// The activation's derivative at x; relu's is 0 at 0, as in torch. Infinite x have the limit.
template <Activation ACT>
TILEDMM_SCALAR float slope(float x) {
  if constexpr (ACT == Activation::relu) return x <= 0 ? 0.0f : 1.0f;
  if constexpr (ACT == Activation::gelu) {
    const float z = clamped(x, 15.0f);
    return with_nan_of(x, mul_add(z, normal_density(z), normal_cdf(z)));
  }
  // (x * logistic(u))' = logistic(u) + x * u' * logistic(u) * logistic(-u)
  const float z = clamped(x, ACT == Activation::silu ? 110.0f : 12.0f);
  const float u = ACT == Activation::silu ? z : 1.59576912f * (z + 0.044715f * z * z * z);
  const float steepness = ACT == Activation::silu ? z : z * mul_add(z * z, 0.214064426f, 1.59576912f);
  return with_nan_of(x, mul_add(steepness * logistic(u), logistic(-u), logistic(u)));
}

template <Activation ACT>
[[maybe_unused]] TILEDMM_SCALAR_ATTRIBUTES static inline double slope(double x) {
  if constexpr (ACT == Activation::relu) {
    return x <= 0 ? 0.0 : 1.0;
  } else {
    const double limit = ACT == Activation::silu ? 800 : 40;
    const double z = x < -limit ? -limit : x > limit ? limit : x;  // a NaN stays one
    if constexpr (ACT == Activation::gelu) {
      return 0.5 * std::erfc(-z * 0.70710678118654752440) + z * 0.39894228040143267794 * std::exp(-0.5 * z * z);
    }
    const double u = ACT == Activation::silu ? z : 1.59576912160573071176 * (z + 0.044715 * z * z * z);
    const double steepness = ACT == Activation::silu ? z : z * 1.59576912160573071176 * (1 + 0.134145 * z * z);
    const double tail = std::exp(-std::fabs(u));
    const double small = tail / (1 + tail), large = 1 / (1 + tail);
    return (u < 0 ? small : large) + steepness * small * large;
  }
}

// What the slopes' own derivatives are made of.
[[maybe_unused]] TILEDMM_SCALAR_ATTRIBUTES static inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }
[[maybe_unused]] TILEDMM_SCALAR_ATTRIBUTES static inline double normal_density(double x) {
  return 0.39894228040143267794 * std::exp(-0.5 * x * x);
}
TILEDMM_SCALAR double with_nan_of(double, double result) { return result; }  // C's functions pass NaNs on

TILEDMM_SCALAR float bf16_to_float(uint16_t bits) { return float_of(uint32_t(bits) << 16); }

// Rounds to nearest even; a NaN stays one and becomes quiet.
TILEDMM_SCALAR uint16_t float_to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return uint16_t(select(0x7f800000 - (bits & 0x7fffffff), (bits >> 16) | 0x40, rounded));
}

TILEDMM_SCALAR float half_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff, sign = uint32_t(half & 0x8000) << 16;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t denormal = bits_of(float(int32_t(magnitude)) * 5.9604644775390625e-8f);  // 2^-24
  const uint32_t finite = select(magnitude - 0x400, denormal, normal);
  return float_of(sign | select(magnitude - 0x7c00, finite, (magnitude << 13) | 0x7f800000));
}

// Rounds to nearest even, beyond the largest half to infinity; a NaN stays one and becomes quiet.
TILEDMM_SCALAR uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
  const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
  const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);  // the sum's last bit is worth 2^-24
  const uint32_t finite = select(magnitude - (113u << 23), denormal, normal);
  const uint32_t number = select(magnitude - 0x477ff000, finite, 0x7c00);  // 65520 rounds to infinity
  return uint16_t(sign | select(0x7f800000 - magnitude, 0x7e00 | ((magnitude >> 13) & 0x3ff), number));
}

#undef TILEDMM_SCALAR

}  // namespace
}  // namespace tiledmm
