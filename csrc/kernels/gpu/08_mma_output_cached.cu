// Rung 08, mma_output_cached: the sums stay in the accumulators' registers for the whole of k and go to C once.
//
// What is left of global traffic is each block tile of A and B once, and C once. What limits it: every element passes
// through registers on its way to shared memory, one barrier pair for each k tile keeps all warps in step, and
// the older matrix instructions reach about 60 % of Hopper's peak (the kernels under kernels/cuda go on from here).
// Source: Accera documentation, "Tensor MatMul on GPU: Caching", output caching.
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/mma_tiles.h"
#include "platform/scaled_sums.h"

namespace tiledmm::gpu {
namespace {

// The totals of a warp whose operands have 8 bits.
template <class Warp>
struct Totals {
  using M = typename Warp::M;
  float totals[Warp::kFragsM][Warp::kFragsN][M::kAccs] = {};

  // Calls visit(total, sum, factor) for each sum of this lane.
  template <class Visit>
  TILEDMM_DEVICE void for_each(Warp& warp, const GemmProblem& gemm, const TilePlace& tile, Scaling asked, int64_t k,
                               const Visit& visit) {
    constexpr int kAccs = M::kAccs;
    TILEDMM_UNROLL for (int i = 0; i < Warp::kFragsM; ++i) {
      // Opaque, as in load_factors.
      const Factors<kAccs, Warp::kFragsN * kAccs> factors(
          gemm, asked, k, opaque(tile.row + warp.warp_row + i * M::kM), [&](int e) { return M::c_row(warp.lane, e); },
          opaque(tile.col + warp.warp_col), [&](int j) { return j / kAccs * M::kN + M::c_col(warp.lane, j % kAccs); });
      TILEDMM_UNROLL for (int j = 0; j < Warp::kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < kAccs; ++e) {
          visit(totals[i][j][e], warp.acc[i][j][e], factors.at(e, j * kAccs + e));
        }
      }
    }
  }
  // Behind a k tile that ends at `k`.
  TILEDMM_DEVICE void end_k_tile(Warp& warp, const GemmProblem& gemm, const TilePlace& tile, int64_t k) {
    if (ends_block(k, gemm.k)) for_each(warp, gemm, tile, Scaling::blocks, k - 1, promote);
  }
  TILEDMM_DEVICE void take(Warp& warp, const GemmProblem& gemm, const TilePlace& tile) {
    for_each(warp, gemm, tile, Scaling::rows, 0, [](float total, float& sum, float factor) { sum = total * factor; });
  }
};

struct NoTotals {};

template <class Config, class T, class Tiles, bool IS_GROUPED>
TILEDMM_KERNEL(Config::kThreads, Config::kBlocksPerCu)
mma_output_cached(FoldedProblem problem) {
  if constexpr (kHasMma<T>) {
    auto& smem = block_shared<typename Tiles::Shared>();
    for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
      const auto [gemm, tile] =
          block_work<Config::kBlockM, Config::kBlockN, IS_GROUPED, Tiles::kIsWidened>(problem, batch_idx);
      if constexpr (IS_GROUPED && Tiles::kIsWidened) {
        if (tile.row >= gemm.m) continue;  // no row has factors
      }
      typename Tiles::TileA tile_a(operand_a<typename Tiles::Stored>(gemm), tile.row, gemm.dtype_a);
      typename Tiles::TileB tile_b(operand_b<typename Tiles::Stored>(gemm), tile.col, gemm.dtype_b);
      typename Tiles::Warp warp;
      [[maybe_unused]] std::conditional_t<Tiles::kIsWidened, Totals<typename Tiles::Warp>, NoTotals> totals;
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
        if constexpr (Tiles::kIsWidened) totals.end_k_tile(warp, gemm, tile, k + Config::kBlockK);
      }
      warp.template multiply_k_tile<typename Tiles::TileA, typename Tiles::TileB>(smem.tiles.a, smem.tiles.b);
      if constexpr (Tiles::kIsWidened) {
        totals.end_k_tile(warp, gemm, tile, k + Config::kBlockK);
        totals.take(warp, gemm, tile);
      }
      block_barrier();  // nobody reads the last tiles any more
      // Anew, so that the main loop need not keep it in registers.
      const int64_t idx = opaque_uniform(batch_idx);
      warp.store(block_work<Config::kBlockM, Config::kBlockN, IS_GROUPED, Tiles::kIsWidened>(problem, idx).gemm, tile,
                 smem.strips);
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

// The small tile of operands of 8 bits, which have no other: AMD's compiler has no registers for more than so short a k
// tile beside two sets of sums.
using ConfigOf8Bits = MmaConfig<64, 64, 32, 128, 2>;

using Large = LargeMmaConfig<float>;
using Small = SmallMmaConfig<float>;
static_assert(Large::kBlockM == mma_tile(true, kIsAmd).block_m && Large::kBlockN == mma_tile(true, kIsAmd).block_n &&
                  Small::kBlockM == mma_tile(false, kIsAmd).block_m &&
                  Small::kBlockN == mma_tile(false, kIsAmd).block_n && Small::kBlockM == ConfigOf8Bits::kBlockM &&
                  Small::kBlockN == ConfigOf8Bits::kBlockN,
              "the plan knows the tiles");

}  // namespace

Status launch_mma_output_cached(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  if (size_of(problem.gemm.dtype_a) == 1)
    return launch_mma_tile<MmaOutputCached, ConfigOf8Bits, BFloat16, AnyElement, AnyFloat8>(problem, executor);
  return launch_mma_tiles<MmaOutputCached, true>(problem, plan.as<LadderPlan>().is_large, executor);
}

}  // namespace tiledmm::gpu
