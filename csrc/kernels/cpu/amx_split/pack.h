// Packing of fp32 operands for the tiles, as three bf16 terms. A lane is a row of A or a column of B. A unit is 32
// lanes by 32 of k: first the two tiles of the high terms, then those of the middle ones, then of the low ones.
//
// In every tile word p of 32 bits is the pair of elements (p, p + 16) of the step, not of neighbours: then no element
// has to change its place in a vector, and the instruction's two chains are the two halves of the step. A row operand
// is [16 lanes][16 pairs], a column operand [16 pairs][16 lanes]. Lanes and k beyond the operand are zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/math.h"
#include "kernels/cpu/amx_split/plan.h"
#include "kernels/cpu/shared/simd.h"
#include "kernels/cpu/shared/tile.h"
#include "kernels/cpu/shared/transpose_tile.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

enum Term : int { kHigh, kMiddle, kLow, kNumTerms };
constexpr int64_t kTermBytes = 2 * kTileBytes, kUnitBytes = kNumTerms * kTermBytes;
static_assert(kUnitBytes == kAmxSplitUnitBytes && kAmxSplitChunkK % kTileK == 0, "plan and packing agree");

constexpr int64_t kSetElements = 1024;  // so far apart, lines of fp32 are in one set of the nearest cache

typedef Reg<uint32_t, 64> Words;  // the bits of 16 elements
typedef Reg<float, 64> Floats;

// A or B^T of one product: its lanes.
struct LaneView {
  const float* data;
  int64_t stride_lane, stride_k;

  const float* at(int64_t lane, int64_t k) const { return data + lane * stride_lane + k * stride_k; }
  // Whether neighbours in memory are lanes, not elements along k.
  bool is_wide() const { return stride_k != 1 && stride_lane == 1; }
};

// Lane by lane the larger one.
TILEDMM_INLINE Words larger(const Words& a, const Words& b) {
#if TILEDMM_VECTOR_BYTES == 64
  return (Words)_mm512_maskz_max_epu32(0xffff, (__m512i)a, (__m512i)b);
#else
  return a > b ? a : b;
#endif
}

// x = high + middle + low, exactly while nothing is denormal: each the nearest bf16 to what is left, halfway cases away
// from zero. The low one needs no rounding, since 7 bits are left. Each is the upper half of a word.
TILEDMM_INLINE void split(const Words& x, Words (&terms)[kNumTerms]) {
  constexpr uint32_t kHalfway = 0x8000, kUpper = 0xffff0000;
  terms[kHigh] = (x + kHalfway) & kUpper;
  const Floats rest = (Floats)x - (Floats)terms[kHigh];
  terms[kMiddle] = ((Words)rest + kHalfway) & kUpper;
  terms[kLow] = (Words)(rest - (Floats)terms[kMiddle]);
}

// The terms of 16 pairs, and into `largest` their magnitudes' bits.
TILEDMM_INLINE void store_terms(const float* first, const float* second, char* to, Words& largest) {
  const Words words[2] = {load_as<Words>(first), load_as<Words>(second)};
  Words terms[2][kNumTerms];
  split(words[0], terms[0]);
  split(words[1], terms[1]);
#pragma GCC unroll 3
  for (int term = 0; term < kNumTerms; ++term) {
    const Words pairs = (terms[0][term] >> 16) | (terms[1][term] & 0xffff0000);
    std::memcpy(to + term * kTermBytes, &pairs, sizeof pairs);
  }
  largest = larger(largest, larger(words[0] & 0x7fffffff, words[1] & 0x7fffffff));
}

// One unit, of which `lanes` of 1 .. 32 and `depth` of 1 .. 32 exist. Where 16 lanes or fewer do, its second tiles are
// left as they are. `largest`: for rows 16 magnitudes of each lane, for columns one of each of 16 lanes.
template <bool FOR_ROWS>
TILEDMM_INLINE void pack_unit(const LaneView& view, int64_t lane, int64_t k, int64_t lanes, int64_t depth, char* to,
                              Words* largest) {
  const float* from = view.at(lane, k);
  const bool is_along_k = !view.is_wide();
  int64_t stride = is_along_k ? view.stride_lane : view.stride_k;
  const bool is_turned = is_along_k != FOR_ROWS, is_whole = lanes == kAmxStrip && depth == kAmxStep;
  alignas(64) float near[kAmxStrip][kAmxStep], turned[kAmxStrip][kAmxStep];
  // A transposition comes back to a line three times: not where the lines are too many for one set of the nearest
  // cache.
  const bool is_one_set = is_turned && stride % kSetElements == 0;
  if (!is_whole || is_one_set || (is_along_k && view.stride_k != 1)) {
    const int64_t rows = is_along_k ? lanes : depth, cols = is_along_k ? depth : lanes;
    if (!is_whole) std::memset(near, 0, sizeof near);
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = from + i * stride;
      if (is_along_k && view.stride_k != 1) {
        for (int64_t p = 0; p < cols; ++p) near[i][p] = row[p * view.stride_k];
      } else if (cols == kAmxStep) {
        std::memcpy(near[i], row, sizeof near[i]);
      } else {
        std::memcpy(near[i], row, size_t(cols) * sizeof(float));
      }
    }
    from = near[0], stride = kAmxStep;
  }
  const int64_t tiles = ceil_div(lanes, kTileRows);
  if (is_turned) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int64_t half = 0; half < 2; ++half) {  // of the step
        const int64_t row = 16 * (is_along_k ? tile : half), col = 16 * (is_along_k ? half : tile);
        transpose_tile(from + row * stride + col, stride * int64_t(sizeof(float)), kTileRows, turned[col] + row,
                       sizeof turned[0]);
      }
    }
    from = turned[0], stride = kAmxStep;
  }
  if constexpr (FOR_ROWS) {
    for (int64_t i = 0; i < tiles * kTileRows; ++i) {
      store_terms(from + i * stride, from + i * stride + 16, to + i * kTileRowBytes, largest[i]);
    }
  } else {
    for (int64_t p = 0; p < 16; ++p) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const float* first = from + p * stride + tile * 16;
        store_terms(first, first + 16 * stride, to + tile * kTileBytes + p * kTileRowBytes, largest[tile]);
      }
    }
  }
}

// Asks the second cache for 32 by 32 elements that come later along k. They need not exist.
TILEDMM_INLINE void prefetch_unit(const LaneView& view, int64_t lane, int64_t k) {
  constexpr int64_t kLine = 64;
  const int64_t stride = (view.is_wide() ? view.stride_k : view.stride_lane) * int64_t(sizeof(float));
  auto row =
      reinterpret_cast<uintptr_t>(view.data) + uintptr_t(lane * view.stride_lane + k * view.stride_k) * sizeof(float);
  for (int64_t i = 0; i < kAmxStrip; ++i, row += uintptr_t(stride)) {
    __builtin_prefetch(reinterpret_cast<const void*>(row), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(row + kLine), 0, 2);
  }
}

constexpr int64_t kPrefetchSteps = 4;  // of k: measured on operands that come from memory

constexpr int64_t strip_bytes(int64_t depth) { return ceil_div(depth, kTileK) * kUnitBytes; }
constexpr int64_t strip_offset(int64_t k) { return k / kTileK * kUnitBytes; }

// Packs `lanes` from `lane` on in strips of 32, each [steps of k][unit], strip_bytes apart. The largest magnitude of
// each lane goes to `magnitudes`, as bits of fp32, or is joined with what is there; null: it is not wanted.
template <bool FOR_ROWS>
void pack_strips(const LaneView& view, int64_t lane, int64_t lanes, int64_t k, int64_t depth, char* to,
                 int64_t bytes_of_strip, uint32_t* magnitudes, bool joins) {
  constexpr int64_t kAccumulators = FOR_ROWS ? kAmxStrip : 2;
  const int64_t group = view.is_wide() ? kAmxSplitGroupStrips : 1;
  for (int64_t begin = 0; begin < lanes; begin += group * kAmxStrip) {
    const int64_t strips = min_of(group, ceil_div(lanes - begin, kAmxStrip));
    Words largest[kAmxSplitGroupStrips][kAccumulators] = {};
    for (int64_t done = 0; done < depth; done += kTileK) {
      for (int64_t strip = 0; strip < strips; ++strip) {
        const int64_t first = begin + strip * kAmxStrip, count = min_of(kAmxStrip, lanes - first);
        if (count == kAmxStrip) prefetch_unit(view, lane + first, k + done + kPrefetchSteps * kTileK);
        pack_unit<FOR_ROWS>(view, lane + first, k + done, count, min_of(kTileK, depth - done),
                            to + first / kAmxStrip * bytes_of_strip + strip_offset(done), largest[strip]);
      }
    }
    for (int64_t strip = 0; magnitudes && strip < strips; ++strip) {
      alignas(64) uint32_t of_lane[kAmxStrip];
      for (int64_t tile = 0; tile < 2; ++tile) {
        Words all = largest[strip][FOR_ROWS ? tile * kTileRows : tile];
        if constexpr (FOR_ROWS) {
          Words turned[kTileRows];
          transpose_tile(&largest[strip][tile * kTileRows], kTileRowBytes, kTileRows, turned, kTileRowBytes);
          all = turned[0];
          for (int i = 1; i < kTileRows; ++i) all = larger(all, turned[i]);
        }
        std::memcpy(of_lane + tile * kTileRows, &all, sizeof all);
      }
      const int64_t first = begin + strip * kAmxStrip;
      for (int64_t i = 0; i < min_of(kAmxStrip, lanes - first); ++i) {
        uint32_t& magnitude = magnitudes[first + i];
        magnitude = joins && magnitude > of_lane[i] ? magnitude : of_lane[i];
      }
    }
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END
