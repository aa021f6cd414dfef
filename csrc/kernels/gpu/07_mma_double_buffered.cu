// Rung 07, mma_double_buffered: the next k tile travels from global memory to registers while this one is multiplied,
// so that loading and multiplying no longer take turns.
//
// Loads are issued before the multiplication and first used after it: no barrier stands between. Then a barrier (nobody
// reads the old tile), registers to shared memory, a barrier (the new tile is whole). The last tile is peeled: it has
// no successor to load. The second buffer is the registers. What limits it: the sums' round trip for each k tile.
// Source: Accera documentation, "Tensor MatMul on GPU: Caching", double buffering.
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/mma_tiles.h"

namespace tiledmm::gpu {
namespace {

template <class Config, class T, class Tiles>
TILEDMM_KERNEL(Config::kThreads, Config::kBlocksPerCu)
mma_double_buffered(FoldedProblem problem, Sums<Config, T> sums) {
  if constexpr (kHasMma<T>) {
    auto& smem = block_shared<typename Tiles::Shared>();
    for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
      const GemmProblem gemm = item_of(problem, batch_idx);
      const TilePlace tile = tile_place<Config::kBlockM, Config::kBlockN>(gemm);
      typename Tiles::TileA tile_a(operand_a<T>(gemm), tile.row);
      typename Tiles::TileB tile_b(operand_b<T>(gemm), tile.col);
      Acc<T>* sums_of_tile = sums.of_tile(gemm, batch_idx);
      WarpTile<Config, T> warp;
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
        if (k > 0) sums.load(warp, sums_of_tile);
        warp.template multiply_k_tile<typename Tiles::TileA, typename Tiles::TileB>(smem.tiles.a, smem.tiles.b);
        sums.store(warp, sums_of_tile);
        block_barrier();  // nobody reads the old tiles any more
        tile_a.store_block_tile(smem.tiles.a);
        tile_b.store_block_tile(smem.tiles.b);
        block_barrier();  // the new tiles are whole
      }
      if (k > 0) sums.load(warp, sums_of_tile);
      warp.template multiply_k_tile<typename Tiles::TileA, typename Tiles::TileB>(smem.tiles.a, smem.tiles.b);
      block_barrier();  // nobody reads the last tiles any more
      warp.store(item_of(problem, opaque_uniform(batch_idx)), tile, smem.stages);
    }
  }
}

struct MmaDoubleBuffered {
  template <class Config, class T, class Tiles, class Start>
  static Status launch(const FoldedProblem& problem, const Executor& executor, const Start& start) {
    return with_sums<Config, T>(
        problem, executor, [&](Sums<Config, T> sums) { return start(mma_double_buffered<Config, T, Tiles>, sums); });
  }
};

}  // namespace

Status launch_mma_double_buffered(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return launch_mma_tiles<MmaDoubleBuffered>(problem, plan.as<LadderPlan>().is_large, executor);
}

}  // namespace tiledmm::gpu
