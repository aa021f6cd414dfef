// Split k of simt_pipelined: the chunks' sums, added up in their order, an element a thread.
#pragma once

#include "core/math.h"
#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

struct SplitTiles {
  const float* partial;
  int64_t num_whole;
  int32_t num_split, num_chunks, block_m, block_n;
};
constexpr int kAddThreads = 64;  // few: small results reach more multiprocessors

TILEDMM_KERNEL(kAddThreads, 16)
add_split_tiles(FoldedProblem problem, SplitTiles tiles) {
  wait_for_earlier_kernels();
  constexpr int kAhead = 16;  // loads on their way
  const int area = tiles.block_m * tiles.block_n, blocks_per_tile = int(ceil_div(area, kAddThreads));
  const auto tile = int32_t(block_idx() / blocks_per_tile);
  const int idx = int(block_idx() - int64_t(tile) * blocks_per_tile) * kAddThreads + thread_idx();
  const int tile_row = idx / tiles.block_n, tile_col = idx - tile_row * tiles.block_n;
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem gemm = item_of(problem, batch_idx);
    const int64_t tiles_n = ceil_div(gemm.n, tiles.block_n), tile_m = (tiles.num_whole + tile) / tiles_n;
    const int64_t row = tile_m * tiles.block_m + tile_row;
    const int64_t col = (tiles.num_whole + tile - tile_m * tiles_n) * tiles.block_n + tile_col;
    if (idx >= area || row >= gemm.m || col >= gemm.n) continue;
    const float* from = tiles.partial + (batch_idx * tiles.num_split + tile) * tiles.num_chunks * area + idx;
    float total = -0.0f;  // changes nothing, as what is behind the last chunk
    for (int left = tiles.num_chunks; left > 0; left -= kAhead) {
      float sums[kAhead];
      TILEDMM_UNROLL for (int i = 0; i < kAhead; ++i) {
        sums[i] = i < left ? load_global(from) : -0.0f;
        from += area;
      }
      TILEDMM_UNROLL for (int i = 0; i < kAhead; ++i) total += sums[i];
    }
    store_element<float>(gemm, row, col, total);
  }
}

}  // namespace
}  // namespace tiledmm::gpu
