// Rung 02, block_tiled: tiles of A and B are staged in shared memory, so that each element that a block needs is read
// from global memory once for TILE outputs instead of once for each: 1 / TILE of rung 01's traffic.
//
// Two barriers for each k tile: all have loaded before any multiplies, all have multiplied before any loads again.
// Edges are filled with zeros. Lanes run along whichever dimension lies close in memory. What limits it: two reads of
// shared memory for each multiply-add. Source: ROCm documentation, "Tiling and reuse"; Kirk and Hwu, Programming
// Massively Parallel Processors, chapter 4.4.
#include "kernels/gpu/kernels.h"
#include "platform/block_tile.h"

namespace tiledmm::gpu {
namespace {

template <int TILE>
struct BlockTiledConfig {
  static constexpr int kTile = TILE, kThreads = TILE * TILE;
  // Four columns more than needed: lanes along a column, which transposed loads store to, meet different banks, and
  // rows stay aligned, so that a thread reads its row of A 16 bytes at a time.
  static constexpr int kRow = TILE + 4;
  static constexpr int kBlocksPerCu = TILE == 16 ? 1536 / kThreads : TILE == 32 && kIsNvidia ? 2 : 1;
  static_assert(kThreads % 64 == 0 && kThreads <= 1024, "whole warps of both sizes, and no more than a block holds");
};

template <class Config, class T>
struct BlockTiledShared {
  alignas(16) Acc<T> a[Config::kTile][Config::kRow];
  alignas(16) Acc<T> b[Config::kTile][Config::kRow];
};

// One thread's element of an operand's block tiles, smem[mn][k] for A, smem[k][mn] for B.
template <class Config, class T>
struct TileElement {
  const T* from;  // in the next tile
  int64_t step, left_k;
  bool pred;
  Acc<T>* to;

  TILEDMM_DEVICE TileElement(const Operand<T>& operand, int64_t mn, bool is_a,
                             Acc<T> (&smem)[Config::kTile][Config::kRow]) {
    const int slow = thread_idx() / Config::kTile, close = thread_idx() % Config::kTile;
    const bool is_k_close = is_k_major(operand.stride_mn, operand.stride_k);
    const int in_mn = is_k_close ? slow : close, in_k = is_k_close ? close : slow;
    from = operand.base + (mn + in_mn) * operand.stride_mn + in_k * operand.stride_k;
    step = Config::kTile * operand.stride_k;
    left_k = operand.size_k - in_k;
    pred = mn + in_mn < operand.size_mn;
    to = is_a ? &smem[in_mn][in_k] : &smem[in_k][in_mn];
  }
  TILEDMM_DEVICE void load_block_tile() {
    store_shared(to, as_acc(pred && left_k > 0 ? load_global(from) : T{}));
    from += step;
    left_k -= Config::kTile;
  }
};

template <class Config, class T>
TILEDMM_KERNEL(Config::kThreads, Config::kBlocksPerCu)
block_tiled(FoldedProblem problem) {
  constexpr int kTile = Config::kTile;
  auto& smem = block_shared<BlockTiledShared<Config, T>>();
  const int in_m = thread_idx() / kTile, in_n = thread_idx() % kTile;
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem gemm = item_of(problem, batch_idx);
    const TilePlace tile = tile_place<kTile, kTile>(gemm);
    TileElement<Config, T> element_a(operand_a<T>(gemm), tile.row, true, smem.a);
    TileElement<Config, T> element_b(operand_b<T>(gemm), tile.col, false, smem.b);
    Acc<T> acc = 0;
    for (int64_t k = 0; k < gemm.k; k += kTile) {
      element_a.load_block_tile();
      element_b.load_block_tile();
      block_barrier();  // the tiles are whole
      TILEDMM_UNROLL for (int p = 0; p < kTile; ++p) {
        acc = multiply_add(load_shared(&smem.a[in_m][p]), load_shared(&smem.b[p][in_n]), acc);
      }
      block_barrier();  // nobody reads them any more
    }
    // To add what changes nothing would be a branch, for which large tiles lack the registers.
    const int64_t row = tile.row + in_m, col = tile.col + in_n;
    store_activated<T>(gemm, row, col, blended<T>(gemm, row, col, acc, 0));
  }
}

template <int TILE>
Status launch(const FoldedProblem& problem, const Executor& executor) {
  using Config = BlockTiledConfig<TILE>;
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch_kernel(block_tiled<Config, T>, num_tiles(problem.gemm, TILE, TILE), num_batch_blocks(problem),
                         Config::kThreads, sizeof(BlockTiledShared<Config, T>), executor, problem);
  });
}

}  // namespace

Status launch_block_tiled(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  switch (plan.as<LadderPlan>().block_m) {
    case 8:
      return launch<8>(problem, executor);
    case 16:
      return launch<16>(problem, executor);
    default:
      return launch<32>(problem, executor);
  }
}

}  // namespace tiledmm::gpu
