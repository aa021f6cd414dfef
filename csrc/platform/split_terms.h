// An fp32 number as two fp16 terms: what the pass over an operand (split_operands.h) and kernels that split after the
// load have in common, so that all meet a number in the same bits.
//
// Each row of A, column of B, and block of 64 of k has a scale: x = scale * (first + 2^-11 second). It is a power of
// two such that the largest of the block lies in [2^14, 2^15) times it. first is x / scale rounded to nearest even,
// second the exact rest times 2^11 rounded likewise; so x is met to 2^-22 of itself down to 2^-28 of the block's
// largest, and to 2^-50 of that below. A row is flagged, for a kernel that computes it without terms, where that does
// not hold: an element is not finite, the largest of a block is outside of [2^-60, 2^60), or one that is not zero lies
// below 2^-40 of the largest's power of two.
//
// Source of the factor 2^11: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores (2203.03341).
#pragma once

#include "core/split_layout.h"
#include "platform/lanes.h"

namespace tiledmm::gpu {
namespace {

// Magnitudes are ordered as their bits are.
TILEDMM_DEVICE uint32_t magnitude(float x) { return bits_of(x) & 0x7fffffff; }

// What the largest magnitude of a row's block makes of the block.
struct BlockScale {
  bool is_in_range, is_flagged;
  float factor, scale;  // of x, 0 where it is not in range; of the terms

  TILEDMM_DEVICE explicit BlockScale(uint32_t largest) {
    constexpr int kBias = 127, kTopExponent = 14;
    const int exponent = int(largest >> 23) - kBias;
    is_in_range = exponent >= kSplitMinExponent && exponent <= kSplitMaxExponent;
    is_flagged = !is_in_range && largest != 0;
    factor = is_in_range ? float_of(uint32_t(kBias + kTopExponent - exponent) << 23) : 0;
    scale = is_in_range ? float_of(uint32_t(kBias - kTopExponent + exponent) << 23) : 1;
  }
};

// Whether a scaled number lies too far below the largest to be met. Twice the bits, less one, are the largest of all
// for zeros of either sign.
TILEDMM_DEVICE bool is_too_small(float x) {
  constexpr uint32_t kLimit = 127 + 14 - kSplitRange;  // the exponent
  return 2 * bits_of(x) - 1 < 2 * (kLimit << 23) - 1;
}

// The terms of two scaled numbers.
TILEDMM_DEVICE void split_pair(float x, float y, uint32_t& first, uint32_t& second) {
  constexpr float kFactor = 2048;
  first = rounded_to_halves(x, y);
  float met_x, met_y;
  floats_of_halves(first, met_x, met_y);
  second = rounded_to_halves((x - met_x) * kFactor, (y - met_y) * kFactor);
}

}  // namespace
}  // namespace tiledmm::gpu
