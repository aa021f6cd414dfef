// What rungs 05 to 08 share: a warp's tile of accumulators, partial sums between k tiles, tile numbers and the launch.
#pragma once

#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {

// The accumulators of one warp: its place in the block tile, its fragments, its way to C.
// C: what a result is made of.
template <class Config, class T, class C = T>
struct WarpTile {
  using M = Mma<T>;
  using Word = typename M::Word;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kWarpsN = Config::kThreads / kWarpSize / Config::kWarpsM;
  static constexpr int kWarpM = kBlockM / Config::kWarpsM, kWarpN = kBlockN / kWarpsN;
  static constexpr int kFragsM = kWarpM / M::kM, kFragsN = kWarpN / M::kN;
  static_assert(kFragsM * M::kM == kWarpM && kFragsN * M::kN == kWarpN, "whole fragments fill the warp tile");

  Acc<T> acc[kFragsM][kFragsN][M::kAccs];
  int lane, warp_row, warp_col;  // of the warp tile within the block tile

  TILEDMM_DEVICE WarpTile() {
    const int warp = thread_idx() / kWarpSize;
    lane = thread_idx() % kWarpSize;
    warp_row = warp / kWarpsN * kWarpM;
    warp_col = warp % kWarpsN * kWarpN;
    for_each([](int, Acc<T>& sum) { sum = 0; });
  }

  // Calls visit(idx, sum) for each accumulator of this lane.
  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) visit((i * kFragsN + j) * M::kAccs + e, acc[i][j][e]);
      }
    }
  }

  // A row of fragments for each warp.
  using Strips = WarpStrip<C, M::kM, kWarpN>[Config::kThreads / kWarpSize];

  // C = activation(acc + bias).
  TILEDMM_DEVICE void store(const GemmProblem& problem, const TilePlace& tile, Strips& strips) {
    auto& strip = strips[thread_idx() / kWarpSize];
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) {
          store_shared(&strip.acc[M::c_row(lane, e)][j * M::kN + M::c_col(lane, e)], acc[i][j][e]);
        }
      }
      strip.store(problem, tile.row + warp_row + i * M::kM, 1, tile.col + warp_col);
    }
  }

  // The fragments of one step of an instruction's k.
  Word frag_a[kFragsM][M::kWordsA], frag_b[kFragsN][M::kWordsB];

  // load_a(row, word) and load_b(col, word) give words, row and col within the block tile, word within the step.
  template <class LoadA>
  TILEDMM_DEVICE void load_fragments_a(const LoadA& load_a) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsA; ++w) {
        frag_a[i][w] = load_a(warp_row + i * M::kM + M::a_row(lane, w), M::a_word(lane, w));
      }
    }
  }
  template <class LoadB>
  TILEDMM_DEVICE void load_fragments_b(const LoadB& load_b) {
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsB; ++w) {
        frag_b[j][w] = load_b(warp_col + j * M::kN + M::b_col(lane, w), M::b_word(lane, w));
      }
    }
  }

  TILEDMM_DEVICE void multiply_step() {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsA; ++w) frag_a[i][w] = M::prepared(frag_a[i][w]);
    }
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsB; ++w) frag_b[j][w] = M::prepared(frag_b[j][w]);
    }
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) M::multiply(acc[i][j], frag_a[i], frag_b[j]);
    }
  }

  // All steps of one k tile in shared memory.
  template <class TileA, class TileB>
  TILEDMM_DEVICE void multiply_k_tile(const typename TileA::Shared& smem_a, const typename TileB::Shared& smem_b) {
    TILEDMM_UNROLL for (int word = 0; word < TileA::kWordsK; word += M::kWordsK) {
      if constexpr (TileA::kUsesLdmatrix) {
        TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
          auto& frag = frag_a[i];
          TileA::template load_words<true>(smem_a, warp_row + i * M::kM, word, frag[0], frag[1], frag[2], frag[3]);
        }
      } else {
        load_fragments_a([&](int row, int w) { return TileA::load_word(smem_a, row, word + w); });
      }
      if constexpr (TileB::kUsesLdmatrix) {
        static_assert(kFragsN % 2 == 0, "two fragments of B at a time");
        TILEDMM_UNROLL for (int j = 0; j < kFragsN; j += 2) {
          TileB::template load_words<false>(smem_b, warp_col + j * M::kN, word, frag_b[j][0], frag_b[j][1],
                                            frag_b[j + 1][0], frag_b[j + 1][1]);
        }
      } else {
        load_fragments_b([&](int col, int w) { return TileB::load_word(smem_b, col, word + w); });
      }
      multiply_step();
    }
  }
};

// Where partial sums lie between k tiles in rungs 05 to 07: in global memory of their own, lent by the caller, in the
// order of the registers. C itself could serve fp32 and fp64 alone, and its strides and edges would cost registers.
template <class Config, class T>
struct Sums {
  using Warp = WarpTile<Config, T>;
  static constexpr int kAccs = Config::kBlockM * Config::kBlockN / Config::kThreads;  // of one thread
  Acc<T>* base;

  // The sums of the calling thread for one block tile.
  TILEDMM_DEVICE Acc<T>* of_tile(const GemmProblem& problem, int64_t batch_idx) const {
    const int64_t tile = batch_idx * num_tiles(problem, Config::kBlockM, Config::kBlockN) + block_idx();
    return base + tile * kAccs * Config::kThreads + thread_idx();
  }
  static TILEDMM_DEVICE void load(Warp& warp, const Acc<T>* from) {
    warp.for_each([&](int idx, Acc<T>& sum) { sum = load_global(from + idx * Config::kThreads); });
  }
  static TILEDMM_DEVICE void store(Warp& warp, Acc<T>* to) {
    warp.for_each([&](int idx, Acc<T>& sum) { store_global(to + idx * Config::kThreads, sum); });
  }
};

// Borrows memory for the sums, calls launch(sums), and gives it back.
template <class Config, class T, class Launch>
Status with_sums(const FoldedProblem& problem, const Executor& executor, const Launch& launch) {
  const int64_t tiles = num_tiles(problem.gemm, Config::kBlockM, Config::kBlockN) * problem.batch_size;
  const size_t bytes = size_t(tiles) * Config::kBlockM * Config::kBlockN * sizeof(Acc<T>);
  Sums<Config, T> sums{static_cast<Acc<T>*>(executor.allocate(executor.self, bytes))};
  if (!sums.base) return Status::out_of_memory;
  const Status status = launch(sums);
  executor.release(executor.self, sums.base);
  return status;
}

// Tile numbers of rungs 05 to 08. BLOCK_K is the k cache, in elements. WARPS_M warps lie along m, the others along n:
// how many depends on the chip's warp size.
template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREADS, int WARPS_M, int BLOCKS_PER_CU = 1>
struct MmaConfig {
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kBlockK = BLOCK_K;
  static constexpr int kThreads = THREADS, kWarpsM = WARPS_M, kBlocksPerCu = BLOCKS_PER_CU;
  static_assert(BLOCK_K >= 16 && BLOCK_K <= 256 && BLOCK_K % 16 == 0, "whole instructions of every chip and dtype");
  static_assert(THREADS % (64 * WARPS_M) == 0, "whole rows of warps of both sizes");
};

// fp64 has the small tile alone. kernels/gpu/kernels.h knows the sizes, too.
template <class T>
using SmallMmaConfig = MmaConfig<64, 64, 128 / int(sizeof(T)), 128, 2>;
template <class T>
using LargeMmaConfig = std::conditional_t<sizeof(T) == 8, SmallMmaConfig<T>,
                                          std::conditional_t<kIsAmd, MmaConfig<128, 128, 64 / int(sizeof(T)), 256, 2>,
                                                             MmaConfig<128, 256, 128 / int(sizeof(T)), 256, 2>>>;

// What the blocks of rungs 06 to 08 stage in shared memory. W: an element in global memory, which becomes T.
template <class Config, class T, class C, class W, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
struct MmaTiles {
  using Stored = W;
  static constexpr bool kIsWidened = !std::is_same_v<W, T>;
  using Warp = WarpTile<Config, T, C>;
  using TileA = BlockTile<T, Config::kBlockM, Config::kBlockK, IS_A_K_MAJOR, Config::kThreads, W>;
  using TileB = BlockTile<T, Config::kBlockN, Config::kBlockK, IS_B_K_MAJOR, Config::kThreads, W>;
  union Shared {
    struct {
      typename TileA::Shared a;
      typename TileB::Shared b;
    } tiles;
    typename Warp::Strips strips;  // after the last k tile
  };
  static_assert(sizeof(Shared) <= 64 << 10, "LDS of CDNA2, CDNA3 and RDNA");
};

// Launches rung 06, 07 or 08 with a tile and the layouts of the problem: Rung::launch<Config, T, Tiles> with the number
// of blocks and of threads.
template <class Rung, class Config, class T, class C, class W = T>
Status launch_mma_tile(const FoldedProblem& problem, const Executor& executor) {
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    using Tiles = MmaTiles<Config, T, C, W, decltype(is_a_k_major)::value, decltype(is_b_k_major)::value>;
    const auto start = [&](auto* kernel, auto... more) {
      return launch_kernel(kernel, num_tiles(problem, Config::kBlockM, Config::kBlockN), num_batch_blocks(problem),
                           Config::kThreads, sizeof(typename Tiles::Shared), executor, problem, more...);
    };
    return Rung::template launch<Config, T, Tiles>(problem, executor, start);
  });
}

// The same with one of the two tiles of a dtype. Both sum in the same order. HAS_WIDE_RESULT: C may be fp32 where the
// operands are of 16 bits.
template <class Rung, bool HAS_WIDE_RESULT = false>
Status launch_mma_tiles(const FoldedProblem& problem, bool is_large, const Executor& executor) {
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch_result = [&](auto* result) {
      using C = std::remove_pointer_t<decltype(result)>;
      return is_large ? launch_mma_tile<Rung, LargeMmaConfig<T>, T, C>(problem, executor)
                      : launch_mma_tile<Rung, SmallMmaConfig<T>, T, C>(problem, executor);
    };
    if constexpr (HAS_WIDE_RESULT && sizeof(T) == 2) {
      if (problem.gemm.dtype_c == DType::f32) return launch_result(static_cast<AnyElement*>(nullptr));
    }
    return launch_result(element);
  });
}

}  // namespace tiledmm::gpu
