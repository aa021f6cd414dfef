// What models of the kernels of 8 bits have in common: numbers by the formats' definition, the order of summation
// "fp8_sums" (docs/numerics.md).
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "core/math.h"
#include "matrices.h"

namespace {

using namespace tiledmm;

constexpr DType E4M3 = DType::e4m3, E5M2 = DType::e5m2;

double value_of(DType dtype, uint8_t bits) {
  const int mantissa_bits = dtype == E4M3 ? 3 : 2, bias = dtype == E4M3 ? 7 : 15;
  const int field = (bits & 0x7f) >> mantissa_bits, rest = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (dtype == E4M3 && (bits & 0x7f) == 0x7f) return NAN;
  if (dtype == E5M2 && field == 31) return rest ? NAN : sign * HUGE_VAL;
  const double significand = std::ldexp(rest, -mantissa_bits) + (field > 0);
  return sign * std::ldexp(significand, std::max(field, 1) - bias);
}

// A number that is not infinite. Few are large: sums lose what small ones have.
uint8_t random_bits(DType dtype, std::mt19937& random) {
  auto bits = uint8_t(random());
  while (!(std::fabs(value_of(dtype, bits)) <= 448)) bits = uint8_t(random());
  return bits;
}

// So that an operand's rows may be at multiples of 16 bytes.
int margin_of_8_bits(int inner, int wanted) { return wanted % 2 ? wanted : wanted + int(-round_up(inner, 8) & 15); }

// The k numbers of a row of A or a column of B, zeros behind them.
template <class At>
std::vector<float> numbers(DType dtype, int k, const At& at) {
  std::vector<float> own(size_t(ceil_div(k, kScaledK) * kScaledK));
  for (int i = 0; i < k; ++i) own[size_t(i)] = float(value_of(dtype, at(i)));
  return own;
}

// Their product. factor(block) is that of a block of k, or of the total.
template <class Factor>
float promoted_sum(const std::vector<float>& x, const std::vector<float>& y, bool is_of_blocks, const Factor& factor) {
  float total = -0.0f;
  for (size_t block = 0; block < x.size() / kScaledK; ++block) {
    float sum = 0;
    for (size_t i = block * kScaledK; i < (block + 1) * kScaledK; i += 32)
      sum = emulator::add_products_of_8_bits(sum, &x[i], &y[i]);
    total = is_of_blocks ? std::fma(sum, factor(int(block)), total) : total + sum;
  }
  return is_of_blocks ? total : total * factor(0);
}

}  // namespace
