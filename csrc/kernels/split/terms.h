// An fp32 number as two fp16 terms: what the pass over an operand (split_operands.h) and kernels that split after the
// load have in common, so that all meet a number in the same bits.
//
// Each row of A, column of B, and chunk of 512 of k has a scale: x = scale * (first + 2^-11 second). It is a power of
// two such that the largest of the chunk lies in [2^14, 2^15) times it. first is x / scale rounded to nearest even,
// second the exact rest times 2^11 rounded likewise; so x is met to 2^-23 of itself down to 2^-27 of the power of two
// that the chunk's largest begins with, and to 2^-50 of that power below. Numbers of 23 bits are met exactly, down to
// there. A row is flagged, for a kernel that computes it without terms, where that does not hold: an element is not
// finite, the largest of a chunk is outside of [2^-60, 2^60), or one that is not zero lies below 2^-40 of the largest's
// power of two.
//
// What has 16 bits is one term: the largest of a chunk then lies in [2^15, 2^16) times the scale, and a bf16 row is
// flagged for an element below 2^-32 of the largest's power of two. So the second terms are zero where nothing is
// flagged.
//
// Source of the factor 2^11: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores (2203.03341).
#pragma once

#include "kernels/split/lanes.h"
#include "kernels/split/layout.h"

namespace tiledmm::gpu {
namespace {

TILEDMM_DEVICE uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }
TILEDMM_DEVICE uint32_t smaller_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Magnitudes are ordered as their bits are.
TILEDMM_DEVICE uint32_t magnitude(float x) { return bits_of(x) & 0x7fffffff; }

// The magnitude of a number that is not zero, in twice its bits, less one: zeros of either sign are the largest of all.
TILEDMM_DEVICE uint32_t nonzero_magnitude(float x) { return 2 * bits_of(x) - 1; }

// Whether it lies below a power of two.
TILEDMM_DEVICE bool is_below(uint32_t nonzero, int exponent) {
  return nonzero < 2 * (uint32_t(127 + exponent) << 23) - 1;
}

// The sum of a flagged element's chunks, and what rounding has taken from it (Knuth's TwoSum), cut off to the upper 16
// bits, so that two of them are a word.
struct ChunkTotal {
  float sum = -0.0f, lost = 0;  // -0 adds nothing to any

  TILEDMM_DEVICE void add(float chunk) {
    const float next = sum + chunk, added = next - sum;
    lost = float_of(bits_of(lost + ((sum - (next - added)) + (chunk - added))) & 0xffff0000);
    sum = next;
  }
  // What an infinite sum has lost is not a number.
  TILEDMM_DEVICE float rounded() const { return sum + lost == sum + lost ? sum + lost : sum; }
};

// What the largest magnitude of a row's chunk makes of the chunk.
struct ChunkScale {
  TermRule rule;
  int exponent;  // that of the largest, if it may have it, else the nearest that it may have
  bool is_in_range;

  TILEDMM_DEVICE explicit ChunkScale(uint32_t largest, TermRule rule = term_rule(DType::f32)) : rule(rule) {
    const int own = int(largest >> 23) - 127;
    exponent = own < kSplitMinExponent ? kSplitMinExponent : own > kSplitMaxExponent ? kSplitMaxExponent : own;
    is_in_range = own == exponent || largest == 0;
  }
  // The factor turns an element into what its terms make up, the scale turns that into the element.
  TILEDMM_DEVICE float factor() const { return float_of(uint32_t(127 + rule.top_exponent - exponent) << 23); }
  // The scale of a flagged row is not a number, and so are the row's sums.
  TILEDMM_DEVICE float scale(bool is_row_flagged) const {
    return is_row_flagged ? float_of(0x7fffffff) : float_of(uint32_t(127 - rule.top_exponent + exponent) << 23);
  }
  // Whether the row is flagged for it, or for an element that is not zero.
  TILEDMM_DEVICE bool is_flagged(uint32_t nonzero) const {
    return !is_in_range || is_below(nonzero, exponent - rule.range);
  }
};

// The elements of a row's chunk that decide on its scale and its flag.
struct ChunkRange {
  uint32_t largest = 0;     // magnitude
  uint32_t smallest = ~0u;  // nonzero_magnitude

  TILEDMM_DEVICE void join(uint32_t other_largest, uint32_t other_smallest) {
    largest = larger_of(largest, other_largest);
    smallest = smaller_of(smallest, other_smallest);
  }
  TILEDMM_DEVICE void take(float x) { join(magnitude(x), nonzero_magnitude(x)); }
  TILEDMM_DEVICE bool is_flagged(TermRule rule) const { return ChunkScale(largest, rule).is_flagged(smallest); }
};

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
