// Rung 08, mma_output_cached: the sums stay in the accumulators' registers for the whole of k and go to C once.
//
// What is left of global traffic is each block tile of A and B once, and C once. What limits it: every element passes
// through registers on its way to shared memory, one barrier pair for each k tile keeps all warps in step, and
// the older matrix instructions reach about 60 % of Hopper's peak (the kernels under kernels/cuda go on from here).
// Source: Accera documentation, "Tensor MatMul on GPU: Caching", output caching.
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/mma_tiles.h"

namespace tiledmm::gpu {
namespace {

template <class Config, class T, class Tiles, bool IS_GROUPED>
TILEDMM_KERNEL(Config::kThreads, Config::kBlocksPerCu)
mma_output_cached(FoldedProblem problem) {
  if constexpr (kHasMma<T>) {
    auto& smem = block_shared<typename Tiles::Shared>();
    for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
      const auto [gemm, tile] = block_work<Config::kBlockM, Config::kBlockN, IS_GROUPED>(problem, batch_idx);
      typename Tiles::TileA tile_a(operand_a<T>(gemm), tile.row);
      typename Tiles::TileB tile_b(operand_b<T>(gemm), tile.col);
      typename Tiles::Warp warp;
      block_barrier();  // nobody reads the last item's tiles any more
      tile_a.load_block_tile(0);
      tile_b.load_block_tile(0);
      tile_a.store_block_tile(smem.tiles.a);
      tile_b.store_block_tile(smem.tiles.b);
      block_barrier();  // the first tiles are whole
      int64_t k = 0;
      for (; k + Config::kBlockK < gemm.k; k += Config::kBlockK) {
        tile_a.load_block_tile(k + Config::kBlockK);
        tile_b.load_block_tile(k + Config::kBlockK);
        warp.template multiply_k_tile<typename Tiles::TileA, typename Tiles::TileB>(smem.tiles.a, smem.tiles.b);
        block_barrier();  // nobody reads the old tiles any more
        tile_a.store_block_tile(smem.tiles.a);
        tile_b.store_block_tile(smem.tiles.b);
        block_barrier();  // the new tiles are whole
      }
      warp.template multiply_k_tile<typename Tiles::TileA, typename Tiles::TileB>(smem.tiles.a, smem.tiles.b);
      block_barrier();  // nobody reads the last tiles any more
      // Anew, so that the main loop need not keep it in registers.
      warp.store(block_work<Config::kBlockM, Config::kBlockN, IS_GROUPED>(problem, opaque_uniform(batch_idx)).gemm,
                 tile, smem.strips);
    }
  }
}

struct MmaOutputCached {
  template <class Config, class T, class Tiles, class Start>
  static Status launch(const FoldedProblem& problem, const Executor&, const Start& start) {
    if constexpr (Config::kBlockM == 64 && sizeof(T) == 2) {  // what the plan has for groups
      if (is_grouped(problem.gemm)) return start(mma_output_cached<Config, T, Tiles, true>);
    }
    return start(mma_output_cached<Config, T, Tiles, false>);
  }
};

using Large = LargeMmaConfig<float>;
using Small = SmallMmaConfig<float>;
static_assert(Large::kBlockM == mma_tile(true, kIsAmd).block_m && Large::kBlockN == mma_tile(true, kIsAmd).block_n &&
                  Small::kBlockM == mma_tile(false, kIsAmd).block_m &&
                  Small::kBlockN == mma_tile(false, kIsAmd).block_n,
              "the plan knows the tiles");

}  // namespace

Status launch_mma_output_cached(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return launch_mma_tiles<MmaOutputCached, true>(problem, plan.as<LadderPlan>().is_large, executor);
}

}  // namespace tiledmm::gpu
