// Rung 06, mma_cached: block tiles of A and B are cached in shared memory, so that the warps of a block share what they
// read, and the instructions' fragments come from there without bank conflicts.
//
// One k tile at a time: barrier, load, barrier, multiply. The partial sums still make their round trip through global
// memory, once for each k tile (the k cache, block_k elements) instead of once for each instruction. What limits it:
// the matrix units wait while a tile is loaded. Source: Accera documentation, "Tensor MatMul on GPU: Caching",
// sequential input caching.
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/mma_tiles.h"

namespace tiledmm::gpu {
namespace {

template <class Config, class T, class Tiles>
TILEDMM_KERNEL(Config::kThreads, Config::kBlocksPerCu)
mma_cached(FoldedProblem problem, Sums<Config, T> sums) {
  if constexpr (kHasMma<T>) {
    auto& smem = block_shared<typename Tiles::Shared>();
    for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
      const GemmProblem gemm = item_of(problem, batch_idx);
      const TilePlace tile = tile_place<Config::kBlockM, Config::kBlockN>(gemm);
      typename Tiles::TileA tile_a(operand_a<T>(gemm), tile.row);
      typename Tiles::TileB tile_b(operand_b<T>(gemm), tile.col);
      Acc<T>* sums_of_tile = sums.of_tile(gemm, batch_idx);
      WarpTile<Config, T> warp;
      for (int64_t k = 0; k < gemm.k; k += Config::kBlockK) {
        if (k > 0) sums.load(warp, sums_of_tile);
        block_barrier();  // nobody reads the last tiles any more
        tile_a.load_block_tile(k);
        tile_a.store_block_tile(smem.tiles.a);
        tile_b.load_block_tile(k);
        tile_b.store_block_tile(smem.tiles.b);
        block_barrier();  // the tiles are whole
        warp.template multiply_k_tile<typename Tiles::TileA, typename Tiles::TileB>(smem.tiles.a, smem.tiles.b);
        if (k + Config::kBlockK < gemm.k) sums.store(warp, sums_of_tile);
      }
      block_barrier();  // nobody reads the last tiles any more
      warp.store(item_of(problem, opaque_uniform(batch_idx)), tile, smem.stages);
    }
  }
}

struct MmaCached {
  template <class Config, class T, class Tiles, class Start>
  static Status launch(const FoldedProblem& problem, const Executor& executor, const Start& start) {
    return with_sums<Config, T>(problem, executor,
                                [&](Sums<Config, T> sums) { return start(mma_cached<Config, T, Tiles>, sums); });
  }
};

}  // namespace

Status launch_mma_cached(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return launch_mma_tiles<MmaCached>(problem, plan.as<LadderPlan>().is_large, executor);
}

}  // namespace tiledmm::gpu
