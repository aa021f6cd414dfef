// amx_split: fp32 by six products of bf16 terms, by the tile instructions of Intel's AMX.
//
// Beyond amx: an fp32 element is the sum of three bf16 terms, high, middle and low, and of their nine products the
// six largest are made. So a step of 32 of k takes 24 tile instructions for 14 loads of tiles, and products are the
// limit: a sixth of the rate of bf16, 2.5 times that of fp32 by vector instructions. C starts again every 512 of k, and
// the chunks' sums are added in fp32. Only `split` admits it. Terms: Henry, Tang and Heinecke, arXiv 1904.06376.
#pragma once

#include "kernels/cpu/amx_split/pack.h"
#include "kernels/cpu/amx_split/plan.h"
#include "kernels/cpu/shared/tile.h"
#include "kernels/cpu/shared/tile_multiplier.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// A step of 32 of k: low * high, middle * high, middle * middle, high * middle, high * low, high * high of A and B, in
// this order. Each product shares a term with the one before, so that two tiles are loaded for it. Where the roles are
// exchanged, B's terms are those of the rows; the order stays that of A and B, and so do the bits.
template <bool IS_EXCHANGED>
struct SixProducts {
  static constexpr int64_t kUnitBytes = tiledmm::cpu::kUnitBytes;
  static constexpr int64_t kRowOffset = (IS_EXCHANGED ? kHigh : kLow) * kTermBytes;
  static constexpr int64_t kColumnOffset = (IS_EXCHANGED ? kLow : kHigh) * kTermBytes;
  static constexpr int kPrefetchLines = 12;  // of the next strip of columns, fetched in a step; changes no bit

  template <int SUM, int ROWS, int COLS>
  static TILEDMM_INLINE void dot() {
    dot_bf16<SUM, ROWS, COLS>();
  }

  template <int MT, int NT>
  static TILEDMM_INLINE void multiply_rest(const RowTiles& a, const char* b, const char* ahead) {
#pragma GCC unroll 12
    for (int line = 2; line < kPrefetchLines; ++line) __builtin_prefetch(ahead + line * 64, 0, 2);
    if constexpr (IS_EXCHANGED) {
      multiply_columns<MT, NT, kMiddle>(b);
      multiply_rows<MT, NT, kMiddle>(a);
      multiply_columns<MT, NT, kHigh>(b);
      multiply_rows<MT, NT, kLow>(a);
      multiply_rows<MT, NT, kHigh>(a);
    } else {
      multiply_rows<MT, NT, kMiddle>(a);
      multiply_columns<MT, NT, kMiddle>(b);
      multiply_rows<MT, NT, kHigh>(a);
      multiply_columns<MT, NT, kLow>(b);
      multiply_columns<MT, NT, kHigh>(b);
    }
  }

 private:
  // The product of another term of the rows by the columns' term that is in the registers, and the other way round.
  template <int MT, int NT, int TERM>
  static TILEDMM_INLINE void multiply_rows(const RowTiles& a) {
    tile_load_stream<4>(a.data + TERM * kTermBytes, a.stride);
    dot<0, 4, 6>();
    if constexpr (NT > 1) dot<1, 4, 7>();
    if constexpr (MT > 1) tile_load_stream<5>(a.data + TERM * kTermBytes + a.next_tile, a.stride);
    if constexpr (MT > 1) dot<2, 5, 6>();
    if constexpr (MT > 1 && NT > 1) dot<3, 5, 7>();
  }
  template <int MT, int NT, int TERM>
  static TILEDMM_INLINE void multiply_columns(const char* b) {
    tile_load<6>(b + TERM * kTermBytes, kTileRowBytes);
    dot<0, 4, 6>();
    if constexpr (MT > 1) dot<2, 5, 6>();
    if constexpr (NT > 1) tile_load<7>(b + TERM * kTermBytes + kTileBytes, kTileRowBytes);
    if constexpr (NT > 1) dot<1, 4, 7>();
    if constexpr (MT > 1 && NT > 1) dot<3, 5, 7>();
  }
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END
