// Rung 13, wmma_rdna: fp16 and bf16 by WMMA, for RDNA 3 and 4.
//
// What rung 08 spends beside its matrix instructions is gone: whole tiles are loaded 16 bytes at a time through a
// buffer that the hardware bounds, so the main loop has no tests; fragments come from shared memory 16 bytes at a time
// whatever the operand's layout; two stages take turns, with one barrier for each k tile, and the registers hold the
// next tile meanwhile. k that ends within a tile, and operands of odd strides, are gathered.
// Chunks of k are computed side by side and added by a second kernel, or by the small tile one after the other.
// A staggered start of k, which would spread rows over the cache's sets, is left out: it would change the order of
// summation. Sources: AMD, RDNA3 and RDNA4 ISA; structure (k tile, two stages, prefetch) as in adelj88/rocm_wmma_gemm
// and FlyDSL.
#pragma once

#include "core/summation.h"
#include "kernels/hip/wmma_rdna/tile.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

// Which tile a block computes: groups of rows of tiles, so that those in flight share operands in the cache.
struct WmmaPlace {
  int32_t tile_m, tile_n;
  int64_t split;

  TILEDMM_DEVICE WmmaPlace(const WmmaWork& work, int64_t block) {
    constexpr int kGroup = 8;
    const auto idx = uint32_t(block), tiles = uint32_t(work.tiles_m) * uint32_t(work.tiles_n);
    split = idx / tiles;
    const uint32_t within = idx % tiles, group_tiles = kGroup * uint32_t(work.tiles_n), group = within / group_tiles;
    const auto rows = uint32_t(min_of(work.tiles_m - int64_t(group) * kGroup, kGroup));
    tile_m = int32_t(group * kGroup + within % group_tiles % rows);
    tile_n = int32_t(within % group_tiles / rows);
  }
};

namespace {

template <class T_, int SHAPE, bool IS_WHOLE>
struct WmmaConfig {
  using T = T_;
  static constexpr WmmaShape kShape = kWmmaShapes[SHAPE];
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n, kBlockK = kWmmaBlockK;
  static constexpr int kWarpsM = kShape.warps_m, kWarpsN = kShape.warps_n, kThreads = kWarpsM * kWarpsN * 32;
  static constexpr int kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN;
  static constexpr bool kSumsChunks = kShape.sums_chunks, kIsWhole = IS_WHOLE;
  static_assert(kWarpM % 32 == 0 && kWarpN % 32 == 0, "the swizzle of a warp's first row is that of row 0");
  static_assert(kChunkUnit % (2 * kBlockK) == 0, "a chunk ends with a pair of k tiles");
};

// The sums of one warp.
template <class Config>
struct WmmaSums {
  using T = typename Config::T;
  using M = Mma<T>;
  static constexpr int kFragsM = Config::kWarpM / 16, kFragsN = Config::kWarpN / 16;
  using Stage = WarpStage<T, 16, Config::kWarpN>;

  float acc[kFragsM][kFragsN][M::kAccs];
  float total[Config::kSumsChunks ? kFragsM : 1][Config::kSumsChunks ? kFragsN : 1][M::kAccs];
  FragmentPlaces<M> places_a, places_b;

  TILEDMM_DEVICE WmmaSums()
      : places_a(warp_row(thread_idx()) * kRowBytes),
        places_b((Config::kBlockM + warp_col(thread_idx())) * kRowBytes) {}

  // The first row and column of a thread's warp, within the block tile.
  static TILEDMM_DEVICE int warp_row(int thread) { return thread / kWarpSize / Config::kWarpsN * Config::kWarpM; }
  static TILEDMM_DEVICE int warp_col(int thread) { return thread / kWarpSize % Config::kWarpsN * Config::kWarpN; }

  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) visit(i, j, e);
      }
    }
  }
  TILEDMM_DEVICE void clear() {
    for_each([&](int i, int j, int e) { acc[i][j][e] = 0; });
  }
  // The end of a chunk; the last one's `acc` becomes the total.
  TILEDMM_DEVICE void end_chunk(bool is_first, bool is_last) {
    if constexpr (Config::kSumsChunks) {
      for_each([&](int i, int j, int e) {
        total[i][j][e] = is_first ? acc[i][j][e] : total[i][j][e] + acc[i][j][e];
        acc[i][j][e] = is_last ? total[i][j][e] : 0;
      });
    }
  }

  // The k tile in a stage. A fragment of B serves a column of fragments of C, while the next one is on its way; in the
  // last column A's fragments of the next step take the places of those that are done. The compiler must not move
  // loads further ahead: their registers would not fit beside the sums.
  TILEDMM_DEVICE void multiply(const char* stage) {
    constexpr int kSteps = Config::kBlockK / M::kElementsK;
    uint32_t frag_a[kFragsM][M::kWordsA], frag_b[2][M::kWordsB];
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) places_a.load(stage, i, 0, frag_a[i]);
    places_b.load(stage, 0, 0, frag_b[0]);
    TILEDMM_UNROLL for (int idx = 0; idx < kSteps * kFragsN; ++idx) {
      const int step = idx / kFragsN, j = idx % kFragsN, next = idx + 1;
      if (next < kSteps * kFragsN) places_b.load(stage, next % kFragsN, next / kFragsN, frag_b[next % 2]);
      TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
        M::multiply(acc[i][j], frag_a[i], frag_b[idx % 2]);
        if (j == kFragsN - 1 && step + 1 < kSteps) places_a.load(stage, i, step + 1, frag_a[i]);
      }
      keep_order();
    }
  }

  // To C, or as they are to the partial sums.
  template <class Out>
  TILEDMM_DEVICE void store(const GemmProblem& gemm, int64_t row, int64_t col,
                            WarpStage<Out, 16, Config::kWarpN> (&stages)[Config::kThreads / kWarpSize]) {
    // Else the places of sums take registers in the main loop.
    const int thread = opaque(thread_idx()), lane = thread % kWarpSize;
    auto& stage = stages[thread / kWarpSize];
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) {
          store_shared(&stage.acc[M::c_row(lane, e)][j * 16 + M::c_col(lane, e)], acc[i][j][e]);
        }
      }
      stage.store(gemm, row + warp_row(thread) + i * 16, 1, col + warp_col(thread));
    }
  }
};

template <class Config, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(Config::kThreads, 1)
wmma_rdna([[maybe_unused]] WmmaWork work, [[maybe_unused]] FoldedProblem problem) {
#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__)
  using T = typename Config::T;
  using TileA = WmmaTile<T, Config::kBlockM, IS_A_K_MAJOR, Config::kThreads>;
  using TileB = WmmaTile<T, Config::kBlockN, IS_B_K_MAJOR, Config::kThreads>;
  using Sums = WmmaSums<Config>;
  constexpr int kStageBytes = TileA::kBytes + TileB::kBytes, kBlockK = Config::kBlockK;
  union Shared {
    char stages[2][kStageBytes];
    typename Sums::Stage outputs[Config::kThreads / kWarpSize];  // after the last k tile
    WarpStage<float, 16, Config::kWarpN> partials[Config::kThreads / kWarpSize];
  };
  auto& smem = block_shared<Shared>();
  const WmmaPlace place(work, block_idx());
  const int64_t row = int64_t(place.tile_m) * Config::kBlockM, col = int64_t(place.tile_n) * Config::kBlockN;
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem item = item_of(problem, batch_idx);
    const int64_t first_k = place.split * work.split_k, size_k = min_of(item.k - first_k, work.split_k);
    const Operand<T> a = operand_a<T>(item), b = operand_b<T>(item);
    TileA tile_a(a, row, first_k, int(size_k));
    TileB tile_b(b, col, first_k, int(size_k));
    Sums sums;
    sums.clear();
    const auto load = [&](auto may_be_last) {
      if constexpr (Config::kIsWhole) {
        tile_a.template load<may_be_last.value>(), tile_b.template load<may_be_last.value>();
      }
    };
    const auto store = [&](char* stage, auto may_be_last) {
      if constexpr (Config::kIsWhole) {
        if constexpr (may_be_last.value) tile_a.clear_beyond_k(), tile_b.clear_beyond_k();
        tile_a.store(stage), tile_b.store(stage + TileA::kBytes);
      } else {
        tile_a.gather(stage), tile_b.gather(stage + TileA::kBytes);
      }
    };

    block_barrier();  // nobody reads the last item's sums any more
    load(std::true_type{}), store(smem.stages[0], std::true_type{});
    block_barrier();  // the first tiles are whole
    // Multiplies the tiles in both stages, so that these have their addresses while compiling. Meanwhile the next ones
    // are on their way, zeros behind the last. No branches: the sums would be moved about before each.
    const auto multiply_pair = [&](auto may_be_last) {
      TILEDMM_UNROLL for (int stage = 0; stage < 2; ++stage) {
        load(may_be_last);
        sums.multiply(smem.stages[stage]);
        store(smem.stages[1 - stage], may_be_last);
        block_barrier();  // the other stage is whole, and nobody reads this one any more
      }
    };
    const auto num_k_tiles = int(ceil_div(size_k, kBlockK)), num_whole = int(size_k / kBlockK);
    const int chunk_tiles =
        Config::kSumsChunks ? int(min_of(ceil_div(work.chunk_k, kBlockK), num_k_tiles)) : num_k_tiles;
    for (int begin = 0; begin < num_k_tiles; begin += chunk_tiles) {
      const int end = int(min_of(begin + chunk_tiles, num_k_tiles)), last_whole = int(min_of(end, num_whole - 2)) - 1;
      int k_tile = begin;
      for (; k_tile < last_whole; k_tile += 2) multiply_pair(std::false_type{});
      for (; k_tile < end; k_tile += 2) multiply_pair(std::true_type{});
      if (chunk_tiles < num_k_tiles) sums.end_chunk(begin == 0, end == num_k_tiles);
    }
    // Anew, so that the main loop need not keep it in registers.
    const GemmProblem gemm = item_of(problem, opaque_uniform(batch_idx));
    if (work.partials) {
      const int64_t slab = batch_idx * work.num_splits + place.split;
      sums.template store<float>(partial_problem(gemm, work.partials, slab), row, col, smem.partials);
    } else {
      sums.template store<T>(gemm, row, col, smem.outputs);
    }
  }
#endif
}

template <class Config>
Status launch_config(const FoldedProblem& problem, WmmaWork work, const Executor& executor) {
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
    return launch_kernel(wmma_rdna<Config, kA, kB>, int64_t(work.tiles_m) * work.tiles_n * work.num_splits,
                         num_batch_blocks(problem), Config::kThreads, 0, executor, work, problem);
  });
}

}  // namespace

template <class T>
Status launch_wmma_tile(const FoldedProblem& problem, const WmmaPlan& plan, const WmmaWork& work,
                        const Executor& executor) {
  switch (plan.shape) {
    case 0:
      return plan.is_whole ? launch_config<WmmaConfig<T, 0, true>>(problem, work, executor)
                           : launch_config<WmmaConfig<T, 0, false>>(problem, work, executor);
    case 1:
      return plan.is_whole ? launch_config<WmmaConfig<T, 1, true>>(problem, work, executor)
                           : launch_config<WmmaConfig<T, 1, false>>(problem, work, executor);
    default:
      return launch_config<WmmaConfig<T, 2, true>>(problem, work, executor);
  }
}

}  // namespace tiledmm::gpu
