// How the wgmma kernels fetch A and B: in boxes, which the copy engine puts into shared memory in the order that the
// matrix unit reads. The engine fills in what a box has beyond an operand, and takes longer for that than for what is
// there (all multiprocessors of an H200, boxes of 64 x 64 in 16 bits: 180 ns each, 350 with 56 of the 64 rows outside).
// So boxes shrink to an operand that is smaller than a tile. The rest of the stage is garbage, which only reaches rows
// and columns of C that are never stored.
#pragma once

#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/tensor_map.h"

namespace tiledmm::cuda {
namespace {

// The boxes of A, or of B: some rows (along m or n), of which each has 128 bytes for a k tile.
struct Boxes {
  int rows;
  CachePolicy policy;
};

// BLOCK rows of an operand in boxes of up to BOX rows. In shared memory, rows along k lie 128 bytes apart, and so many
// bytes lie between steps of k in the others, of which the last box may be narrower: it has a tensor map of its own.
// A wide box that begins within a line of the second-level cache costs it two requests for a row instead of one. So a
// tile that begins in the middle of a box's width is turned: the narrow box holds its first rows, the wide ones, which
// then begin with lines, those behind. In shared memory, and so among the accumulators, the narrow box stays the last.
template <class T, int BLOCK, int BOX, bool IS_K_MAJOR>
struct BoxLoader {
  static constexpr int kNumBoxes = (BLOCK + BOX - 1) / BOX;
  static constexpr int kTail = IS_K_MAJOR ? 0 : BLOCK % BOX, kNumMaps = kTail ? 2 : 1;
  static_assert(kTail == 0 || 2 * kTail == BOX, "every other tile is turned");
  static constexpr int kBlockK = 128 / sizeof(T), kPitch = IS_K_MAJOR ? 128 : BOX * int(sizeof(T));

  // The row of the operand that a tile beginning at row `first` has at a place of its own.
  __device__ __forceinline__ static int row_of(int first, int place) {
    if (kTail == 0 || first % BOX == 0) return first + place;
    return first + (place < BLOCK - kTail ? place + kTail : place - (BLOCK - kTail));
  }

  // The copies for one k tile of a part of each box, of its rows if they are along k, else of k; there are 2^log_parts
  // parts. Shared: for all `blocks` of the cluster.
  template <bool IS_SHARED>
  __device__ __forceinline__ static void load(uint32_t smem, const CUtensorMap* map, const Boxes& boxes, int first,
                                              int k, int item, uint32_t barrier, int part = 0, int log_parts = 0,
                                              uint32_t blocks = 0) {
    const int skipped = part * ((IS_K_MAJOR ? boxes.rows : kBlockK) >> log_parts);
#pragma unroll
    for (int i = 0; i < kNumBoxes; ++i) {
      const int row = row_of(first, i * BOX), inner = IS_K_MAJOR ? k : row, outer = (IS_K_MAJOR ? row : k) + skipped;
      const uint32_t to = smem + i * BOX * 128 + skipped * kPitch;
      const CUtensorMap* own = map + (kTail && i == kNumBoxes - 1);
      if constexpr (IS_SHARED)
        cp_async_bulk_tensor_3d_to_blocks(to, own, inner, outer, item, barrier, blocks, boxes.policy);
      else
        cp_async_bulk_tensor_3d(to, own, inner, outer, item, barrier, boxes.policy);
    }
  }

  // Bytes that a k tile's boxes bring.
  static constexpr int num_bytes(const Boxes& boxes) {
    return kTail ? ((kNumBoxes - 1) * boxes.rows + int(min_of(kTail, boxes.rows))) * 128 : kNumBoxes * boxes.rows * 128;
  }

  // The operand's boxes, or parts of them where 2^log_parts blocks share it.
  static bool encode(CUtensorMap& map, Boxes& boxes, DType dtype, const void* data, const TensorMapView& operand,
                     int log_parts) {
    static_assert(kNumMaps == 1);
    return encode(&map, boxes, dtype, data, operand, log_parts);
  }
  static bool encode(CUtensorMap* maps, Boxes& boxes, DType dtype, const void* data, const TensorMapView& operand,
                     int log_parts) {
    // Parts begin where the pattern of the swizzle does; the engine copies whole units.
    const int64_t unit = IS_K_MAJOR ? 8 << log_parts : kTensorMapBytes / sizeof(T);
    boxes.rows = int(min_of(BOX, round_up(IS_K_MAJOR ? operand.outer : operand.inner, unit)));
    for (int i = 0; i < kNumMaps; ++i) {
      const int rows = i == 0 ? boxes.rows : int(min_of(kTail, boxes.rows));
      const int inner = IS_K_MAJOR ? kBlockK : rows, outer = IS_K_MAJOR ? rows : kBlockK;
      if (!encode_tensor_map(&maps[i], dtype, data, operand, inner, outer >> log_parts, kPitch, sizeof(T) == 4))
        return false;
    }
    return true;
  }
};

// The tensor maps of an operand, as a kernel's parameter.
template <class Loader>
struct BoxMaps {
  CUtensorMap maps[Loader::kNumMaps];
};

}  // namespace
}  // namespace tiledmm::cuda
