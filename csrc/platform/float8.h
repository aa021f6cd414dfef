// Numbers of 8 bits, e4m3 (torch.float8_e4m3fn) and e5m2, and the scales that bring others into their range: the same
// bits on every device, by integers where the devices' own conversions differ. Formats: Micikevicius et al., FP8
// Formats for Deep Learning, 2022; the Open Compute Project's OFP8.
#pragma once

#include "core/problem.h"
#include "platform/vector_math.h"

namespace tiledmm {
namespace {

struct Float8 {
  int32_t dropped_bits;   // of fp32's mantissa
  int32_t exponent;       // of the largest number, which is 1.75 times that power of two
  uint32_t rebias;        // in fp32's bits
  uint32_t least_normal;  // the same number, in fp32's bits
  float of_unit;          // its last bit is worth the smallest number
  uint32_t largest;       // number
  float most;             // the largest number, in fp32
};
constexpr Float8 float8_of(DType dtype) {
  return dtype == DType::e5m2 ? Float8{21, 15, 112u << 23, 113u << 23, 128.0f, 0x7b, 57344.0f}
                              : Float8{20, 8, 120u << 23, 121u << 23, 16384.0f, 0x7e, 448.0f};
}
inline constexpr uint32_t kFloat8Nan = 0x7f;

#define TILEDMM_SCALAR [[maybe_unused]] TILEDMM_SCALAR_ATTRIBUTES static inline __attribute__((always_inline))

// Rounds to nearest even; beyond the largest number, and of infinity, that number. A NaN loses its sign.
TILEDMM_SCALAR uint32_t float_to_float8(const Float8& format, float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = (bits >> 24) & 0x80;
  const int32_t dropped = format.dropped_bits;
  const uint32_t to_even = ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1);
  const uint32_t normal = (magnitude + to_even - format.rebias) >> dropped;
  const uint32_t denormal = bits_of(float_of(magnitude) + format.of_unit) - bits_of(format.of_unit);
  const uint32_t number = select(magnitude - format.least_normal, denormal, normal);
  const uint32_t finite = select(number - format.largest, number, format.largest);
  return select(0x7f800000 - magnitude, kFloat8Nan, sign | finite);
}

// A number of e5m2 is the upper byte of a float16.
TILEDMM_SCALAR float e5m2_to_float(uint32_t number) { return half_to_float(uint16_t(number << 8)); }
// The way from e4m3 passes no denormal number of fp32: some processors take those for zero.
TILEDMM_SCALAR float e4m3_to_float(uint32_t number) {
  const uint32_t magnitude = number & 0x7f, normal = (magnitude << 20) + (120u << 23);
  const uint32_t finite = select(magnitude - 8, bits_of(float(magnitude) * 0x1p-9f), normal);
  return float_of((number & 0x80) << 24 | select(0x7e - magnitude, 0x7fc00000, finite));
}

// |value| as bits: their largest is that of the numbers, and a NaN exceeds all.
TILEDMM_SCALAR uint32_t magnitude_of(float value) { return bits_of(value) & 0x7fffffff; }
TILEDMM_SCALAR uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

struct Float8Scale {
  float scale, factor;  // the factor is what elements are multiplied by
};
// Of a block whose largest magnitude is given. Scales are normal numbers, so that factors are finite: from 2^-126 on. A
// block with an infinity has an infinite scale, one with a NaN has that, and all elements of both become NaN.
TILEDMM_SCALAR Float8Scale scale_for(const Float8& format, uint32_t magnitude, bool is_power_of_two) {
  if (magnitude == 0) return {1, 1};
  if (magnitude >= 0x7f800000)
    return {float_of(magnitude == 0x7f800000 ? magnitude : 0x7fc00000), float_of(0x7fc00000)};
  const uint32_t counted = larger_of(magnitude, bits_of(format.most * 1.17549435e-38f));
  if (is_power_of_two) {
    // A mantissa above 1.75 takes the next power.
    const uint32_t exponent = ((counted + 0x1fffff) >> 23) - uint32_t(format.exponent);
    return {float_of(exponent << 23), float_of((254 - exponent) << 23)};
  }
  return {float_of(counted) / format.most, format.most / float_of(counted)};
}

#undef TILEDMM_SCALAR

}  // namespace
}  // namespace tiledmm
