// Rung 05, mma: the matrix instructions do the arithmetic, and nothing is cached. For every step of the instruction's k
// the fragments of A and B come from global memory, and the partial sums go there and come back.
//
// It isolates what the instruction needs: at a 64 x 64 warp tile, 16 KiB of sums are read and written for each 64 x 64
// x 16 products. The rungs 06 to 08 take away one round trip each. Partial sums are kept in fp32 (fp64) in memory lent
// by the caller: to round them to 16 bits at every step would be an error no user asked for. Source: Accera
// documentation, "Tensor MatMul on GPU".
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/mma_tiles.h"

namespace tiledmm::gpu {
namespace {

template <class Config, class T>
TILEDMM_KERNEL(Config::kThreads, Config::kBlocksPerCu)
mma(FoldedProblem problem, Sums<Config, T> sums) {
  if constexpr (kHasMma<T>) {
    using Stages = typename WarpTile<Config, T>::Stages;
    auto& stages = block_shared<Stages>();
    for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
      const GemmProblem gemm = item_of(problem, batch_idx);
      const TilePlace tile = tile_place<Config::kBlockM, Config::kBlockN>(gemm);
      const auto a = operand_a<T>(gemm), b = operand_b<T>(gemm);
      Acc<T>* sums_of_tile = sums.of_tile(gemm, batch_idx);
      WarpTile<Config, T> warp;
      for (int64_t k = 0; k < gemm.k; k += Mma<T>::kElementsK) {
        if (k > 0) sums.load(warp, sums_of_tile);
        const int64_t word = k / WordOf<T>::kElements;
        warp.load_fragments_a([&](int row, int w) { return load_word_or_zero(a, tile.row + row, word + w); });
        warp.load_fragments_b([&](int col, int w) { return load_word_or_zero(b, tile.col + col, word + w); });
        warp.multiply_step();
        if (k + Mma<T>::kElementsK < gemm.k) sums.store(warp, sums_of_tile);
      }
      warp.store(item_of(problem, opaque_uniform(batch_idx)), tile, stages);
    }
  }
}

}  // namespace

Status launch_mma(const FoldedProblem& problem, const Plan&, const Executor& executor) {
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    using Config = SmallMmaConfig<T>;  // the fragments of the large one would not fit beside its sums
    return with_sums<Config, T>(problem, executor, [&](Sums<Config, T> sums) {
      return launch_kernel(mma<Config, T>, num_tiles(problem.gemm, Config::kBlockM, Config::kBlockN),
                           num_batch_blocks(problem), Config::kThreads, sizeof(typename WarpTile<Config, T>::Stages),
                           executor, problem, sums);
    });
  });
}

}  // namespace tiledmm::gpu
