// amx: C in tile registers, 32 x 32 at a time, multiplied by the tile instructions of Intel's AMX.
//
// Beyond rung 04: an instruction multiplies 16 x 32 by 32 x 16, so that the limit is no longer arithmetic but how fast
// tiles come. Two tiles of each operand make four of C: a step of 32 of k loads 4 KiB for 64 cycles of products. 32
// columns by 512 of k stay in the nearest cache, the rows come from the second one. Sums of a finished tile are stored
// in the first step of the next one and converted in the steps after it, while the tile unit is busy. Tile sizes and
// interleaved stores follow oneDNN's and libxsmm's AMX kernels; figures: docs/worklog/cpu.md.
#pragma once

#include "kernels/cpu/amx/pack.h"
#include "kernels/cpu/amx/plan.h"
#include "kernels/cpu/shared/tile.h"
#include "kernels/cpu/shared/tile_multiplier.h"
#include "platform/element.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

static_assert(kAmxStrip == kUnitLanes && kAmxChunkK % kTileK == 0, "plan and packing agree");

// A step of 32 of k is one product: a tile instruction for each tile of C.
struct OneProduct {
  static constexpr int64_t kUnitBytes = tiledmm::cpu::kUnitBytes, kRowOffset = 0, kColumnOffset = 0;
  static constexpr int kPrefetchLines = 2;  // of the next strip of columns, fetched in a step; changes no bit
  template <int MT, int NT>
  static TILEDMM_INLINE void multiply_rest(const RowTiles&, const char*, const char*) {}
};
struct Bf16Tiles : OneProduct {
  using Element = BFloat16;
  template <int SUM, int ROWS, int COLS>
  static TILEDMM_INLINE void dot() {
    dot_bf16<SUM, ROWS, COLS>();
  }
};
struct Fp16Tiles : OneProduct {
  using Element = Half;
  template <int SUM, int ROWS, int COLS>
  static TILEDMM_INLINE void dot() {
    dot_fp16<SUM, ROWS, COLS>();
  }
};

// These change no bit; measured in docs/worklog/cpu.md.
constexpr int64_t kBlockSteps = 16;       // steps of k whose columns stay near: 32 KiB
constexpr int64_t kStreamSteps = 8;       // of columns that pass by once, packed at a time: 64 KiB
constexpr int64_t kWidenedSteps = 2;      // of rows of e4m3, packed at a time: 8 KiB
constexpr int64_t kWidenedAhead = 256;    // elements of theirs, so many later, that are fetched from memory meanwhile
constexpr int64_t kStreamStepsAhead = 2;  // of theirs, so many later, whose rows are fetched from memory meanwhile

// Packed bytes of one strip for `depth` elements of k, at least one step; and where k begins in it.
constexpr int64_t strip_bytes(int64_t depth) { return num_steps(depth) * kUnitBytes; }
constexpr int64_t strip_offset(int64_t k) { return k / kTileK * kUnitBytes; }

// Rows packed in units (pack.h).
inline RowTiles packed_rows(const char* data) { return {data, kTileRowBytes, kTileBytes, kUnitBytes}; }

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END
