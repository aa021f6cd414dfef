// mma_async: matrix instructions of a warp (mma.sync), fed by asynchronous copies; NVIDIA's chips from sm_80 on.
//
// Beyond rung 08: copies go to shared memory past the registers (cp.async), several k tiles ahead, so that one barrier
// for each k tile is left and no register holds what is on its way; the fragments of the next step are loaded while the
// matrix unit works on this one's. Where k is long, chunks of it go to blocks of their own, whose sums are added in
// order, or a block adds one after the other to a total, in registers or, of some tiles, in C. Limits: mma.sync reaches
// 62 % of what wgmma does on sm_90, other than in fp64, where it reaches cuBLAS's speed. 16-bit operands that are not
// aligned to 16 bytes are repacked first, but in small products (unaligned.cu). Pipeline after NVIDIA's CUTLASS 2
// (efficient_gemm.md).
#pragma once

#include "kernels/cuda/mma_async/async_tile.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/mma_async/strip.h"
#include "kernels/cuda/mma_async/total_in_c.h"
#include "kernels/cuda/shared/tile_groups.h"
#include "platform/chunk_sums.h"
#include "platform/mma_16x8.h"

namespace tiledmm::gpu {
namespace {

constexpr int kMaxBlocks = 0x7fffffff;

// C: what a result is made of.
template <class T_, class C_, int SHAPE, ChunkTotal TOTAL>
struct Config {
  using T = T_;
  using C = C_;
  static constexpr MmaAsyncShape kShape = mma_async_shape(sizeof(T) == 8 ? DType::f64 : DType::f16, SHAPE);
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n;
  static constexpr int kBlockK = sizeof(T) == 4 ? kShape.block_k / 2 : kShape.block_k;
  static constexpr int kThreads = kShape.warps_m * kShape.warps_n * 32;
  static constexpr int kWarpM = kBlockM / kShape.warps_m, kWarpN = kBlockN / kShape.warps_n;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8;
  static constexpr int kSteps = kBlockK / (LayoutM16N8::kWordsK * WordOf<T>::kElements);
  static constexpr int kStages = kShape.num_stages;
  static constexpr bool kSumsChunks = TOTAL != ChunkTotal::none;
  static constexpr bool kTotalInC = TOTAL == ChunkTotal::in_c;
  static constexpr bool kTotalInRegisters = TOTAL == ChunkTotal::in_registers;
  // Once around the ring of stages is one iteration of the main loop, so that each stage has its address while
  // compiling.
  static constexpr bool kGoesAround = sizeof(T) == 8 || !kSumsChunks;
  // Rows of C that a warp has in shared memory at a time: as many as fit beside those of the other warps.
  static constexpr int kStripRows = sizeof(T) == 8 ? kWarpM : kWarpM > 32 ? 32 : kWarpM;
  static_assert(kFragsM * 16 == kWarpM && kFragsN * 8 == kWarpN, "whole fragments fill the warp tile");
  // Sets of fragments of A. One is enough where each is loaded anew behind its last use, while others keep the matrix
  // unit busy.
  static constexpr int kSetsA = kFragsM >= 4 && (sizeof(T) == 8 || kShape.blocks_per_cu > 1) ? 1 : 2;
  // Tiles for few rows of C: B may be read once.
  static constexpr bool kMayStreamB = sizeof(T) == 8 && kBlockM <= 32;
  static_assert(kSteps % 2 == 0, "two sets of fragments take turns");
  static_assert(kStages >= 3, "one stage is read, one is filled, one is on its way");
};

// How the blocks share out the problem: the kernels' first parameter, as each line of constants that the first copy
// waits for takes 0.1 us. Tiles go through groups of rows of tiles, so that those in flight share operands in cache.
struct Work {
  Divisor num_tiles;
  TileGroups groups;
  int num_splits;  // blocks that compute chunks of one tile side by side
  int64_t part_k;  // chunk_k, or k
  int64_t chunk_k;
  void* partial;                          // as ChunkSums has them; null where there is one split
  int zero;                               // always
  bool is_a_vectorised, is_b_vectorised;  // it can be copied 16 bytes at a time
  bool streams_b;                         // it is read once: C has one row of tiles
};

// Elements of A, and of B, that go in one copy.
template <int A, int B>
struct CopyWidths {
  static constexpr int kA = A, kB = B;
};

// Where tile `idx` begins. The last one begins early where that keeps it inside, since whole tiles are copied without
// predicates: it computes up to half of its rows (columns) again, to the same bits. Not where tiles add to C.
template <class Cfg, bool IS_K_MAJOR>
TILEDMM_DEVICE int64_t start_of_tile(int idx, int block, int64_t size) {
  constexpr int64_t kVector = IS_K_MAJOR ? 1 : 16 / int(sizeof(typename Cfg::T));
  const int64_t start = int64_t(idx) * block, last = size - block;
  const bool is_outside = last < start && start - last <= block / 2;
  return !Cfg::kTotalInC && is_outside && last > 0 && last % kVector == 0 ? last : start;
}

// The product that a block has a tile of: an item of the batch, or a group. Then `row` becomes that of the tile.
template <class Cfg, bool IS_A_K_MAJOR, bool IS_GROUPED>
TILEDMM_DEVICE GemmProblem product_of(const FoldedProblem& problem, int64_t batch_idx, int tile_row, int64_t& row) {
  if constexpr (IS_GROUPED) {
    const GroupWork work = group_work<Cfg::kBlockM>(problem, batch_idx, tile_row);
    row = start_of_tile<Cfg, IS_A_K_MAJOR>(int(work.tile_row), Cfg::kBlockM, work.gemm.m);
    return work.gemm;
  } else {
    return item_of<true>(problem, batch_idx);
  }
}

// The sums of one warp.
template <class Cfg, class TileA, class TileB>
struct WarpSums {
  using T = typename Cfg::T;
  using A = Acc<T>;
  using Word = typename WordOf<T>::Word;
  using L = LayoutM16N8;
  static constexpr int kFragsM = Cfg::kFragsM, kFragsN = Cfg::kFragsN;

  A acc[kFragsM][kFragsN][4];
  A total[Cfg::kTotalInRegisters ? kFragsM : 1][kFragsN][4];
  static constexpr int kWordsA = L::kWordsA, kWordsB = L::kWordsB;
  static constexpr int kSetsA = Cfg::kSetsA;
  static constexpr int kAtOnce = kFragsM % 4 == 0 ? 2 : 1;  // rows of fragments whose totals are on their way at a time
  Word frag_a[kSetsA][kFragsM][kWordsA], frag_b[2][kFragsN][kWordsB];
  int lane, warp_row, warp_col;

  TILEDMM_DEVICE WarpSums() {
    const int warp = thread_idx() / 32;
    lane = thread_idx() % 32;
    warp_row = warp / Cfg::kShape.warps_n * Cfg::kWarpM;
    warp_col = warp % Cfg::kShape.warps_n * Cfg::kWarpN;
    clear();
  }

  // Calls visit(i, j, e) for each sum of this lane.
  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) { TILEDMM_UNROLL for (int e = 0; e < 4; ++e) visit(i, j, e); }
    }
  }
  TILEDMM_DEVICE void clear() {
    for_each([&](int i, int j, int e) { acc[i][j][e] = 0; });
  }
  // The first chunk's sums, and those of the others added to them, in registers.
  TILEDMM_DEVICE void end_chunk(bool is_first) {
    if constexpr (Cfg::kTotalInRegisters) {
      for_each([&](int i, int j, int e) { total[i][j][e] = is_first ? acc[i][j][e] : total[i][j][e] + acc[i][j][e]; });
      clear();
    }
  }
  TILEDMM_DEVICE void take_total() {
    if constexpr (Cfg::kTotalInRegisters) for_each([&](int i, int j, int e) { acc[i][j][e] = total[i][j][e]; });
  }
  // Calls visit(i, j, e, total) for pairs of this lane's sums, those of FRAGS rows of fragments from `first` on, with
  // C's elements added, unless there are none yet.
  template <bool ARE_WHOLE, int FRAGS, class Visit>
  TILEDMM_DEVICE void for_each_total(const TotalInC<A>& c, bool is_first_chunk, int first, const Visit& visit) {
    Pair<A> totals[FRAGS][2][kFragsN];
    TILEDMM_UNROLL for (int i = 0; i < FRAGS; ++i) {
      TILEDMM_UNROLL for (int h = 0; h < 2; ++h) {
        TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
          totals[i][h][j] = {A(-0.0), A(-0.0)};  // changes nothing
          if (!is_first_chunk) totals[i][h][j] = c.template load<ARE_WHOLE>((first + i) * 16 + h * 8, j * 8);
        }
      }
    }
    TILEDMM_UNROLL for (int i = 0; i < FRAGS; ++i) {
      TILEDMM_UNROLL for (int h = 0; h < 2; ++h) {
        TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
          const A* sums = &acc[first + i][j][2 * h];
          visit(i, j, 2 * h, Pair<A>{totals[i][h][j].first + sums[0], totals[i][h][j].second + sums[1]});
        }
      }
    }
  }
  // Ends a chunk whose total is in C's elements.
  TILEDMM_DEVICE void end_chunk(const GemmProblem& gemm, int64_t row, int64_t col, bool is_first) {
    const TotalInC<A> c(gemm, row, col, Cfg::kBlockM, Cfg::kBlockN, warp_row + L::c_row(lane, 0),
                        warp_col + L::c_col(lane, 0));
    const auto add = [&](auto are_whole) {
      TILEDMM_UNROLL for (int first = 0; first < kFragsM; first += kAtOnce) {
        for_each_total<are_whole.value, kAtOnce>(c, is_first, first, [&](int i, int j, int e, Pair<A> total) {
          c.template store<are_whole.value>((first + i) * 16 + e / 2 * 8, j * 8, total);
        });
      }
    };
    c.are_pairs_whole ? add(std::true_type{}) : add(std::false_type{});
    clear();  // the next chunk begins at zero
  }
  TILEDMM_DEVICE void load_fragment_a(const TileA& tile_a, const typename TileA::Shared& smem_a, int step, int i) {
    tile_a.load_fragment_a(smem_a, warp_row + i * 16, step * L::kWordsK, frag_a[step % kSetsA][i]);
  }
  TILEDMM_DEVICE void load_fragments_b(const TileB& tile_b, const typename TileB::Shared& smem_b, int step) {
    tile_b.load_fragments_b(smem_b, warp_col, step * L::kWordsK, frag_b[step % 2]);
  }

  template <int WORDS>
  static TILEDMM_DEVICE void prepare(Word (&frag)[WORDS]) {
    if constexpr (sizeof(T) == 4) {
      TILEDMM_UNROLL for (int w = 0; w < WORDS; ++w) frag[w] = Mma<T>::prepared(frag[w]);
    }
  }
  TILEDMM_DEVICE void prepare_b(int step) {
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) prepare(frag_b[step % 2][j]);
  }
  TILEDMM_DEVICE void multiply_row(int step, int i) {
    prepare(frag_a[step % kSetsA][i]);
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      multiply_16x8<T>(acc[i][j], frag_a[step % kSetsA][i], frag_b[step % 2][j]);
    }
  }

  using StripOf = Strip<A, Cfg::kStripRows, Cfg::kWarpN>;
  template <class Out>
  TILEDMM_DEVICE void store(const GemmProblem& problem, int64_t row, int64_t col, bool has_total, StripOf& strip) {
    constexpr int kFrags = Cfg::kStripRows / 16;
    TILEDMM_UNROLL for (int first = 0; first < kFragsM; first += kFrags) {
      const auto put = [&](int i, int j, int e, Pair<A> sums) {
        store_shared(reinterpret_cast<Pair<A>*>(&strip.acc[i * 16 + L::c_row(lane, e)][j * 8 + L::c_col(lane, e)]),
                     sums);
      };
      if (Cfg::kTotalInC && has_total) {
        const TotalInC<A> c(problem, row, col, Cfg::kBlockM, Cfg::kBlockN, warp_row + L::c_row(lane, 0),
                            warp_col + L::c_col(lane, 0));
        const auto put_totals = [&](auto are_whole) {
          TILEDMM_UNROLL for (int i = 0; i < kFrags; i += kAtOnce) {
            for_each_total<are_whole.value, kAtOnce>(
                c, false, first + i, [&](int within, int j, int e, Pair<A> total) { put(i + within, j, e, total); });
          }
        };
        c.are_pairs_whole ? put_totals(std::true_type{}) : put_totals(std::false_type{});
      } else {
        TILEDMM_UNROLL for (int i = 0; i < kFrags; ++i) {
          TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
            TILEDMM_UNROLL for (int e = 0; e < 4; e += 2) {
              put(i, j, e, Pair<A>{acc[first + i][j][e], acc[first + i][j][e + 1]});
            }
          }
        }
      }
      strip.template store<Out>(problem, row + warp_row + first * 16, col + warp_col);
    }
  }
};

template <class Cfg, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
struct Tiles {
  using T = typename Cfg::T;
  using TileA = AsyncTile<T, Cfg::kBlockM, Cfg::kBlockK, IS_A_K_MAJOR, Cfg::kThreads>;
  using TileB = AsyncTile<T, Cfg::kBlockN, Cfg::kBlockK, IS_B_K_MAJOR, Cfg::kThreads, Cfg::kMayStreamB>;
  struct Stage {
    typename TileA::Shared a;
    typename TileB::Shared b;
  };
  union Shared {
    Stage stages[Cfg::kStages];
    Strip<Acc<T>, Cfg::kStripRows, Cfg::kWarpN> strips[Cfg::kThreads / 32];  // after the last k tile
  };
};

// Groups have kernels of their own, since others would have to keep the sizes of their item in registers. A group of k
// has the chunks of a product of its own k.
template <class Cfg, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR, bool IS_GROUPED>
TILEDMM_KERNEL(Cfg::kThreads, Cfg::kShape.blocks_per_cu)
mma_async(Work work, FoldedProblem problem) {
  using T = typename Cfg::T;
  using TileA = typename Tiles<Cfg, IS_A_K_MAJOR, IS_B_K_MAJOR>::TileA;
  using TileB = typename Tiles<Cfg, IS_A_K_MAJOR, IS_B_K_MAJOR>::TileB;
  constexpr int kStages = Cfg::kStages, kSteps = Cfg::kSteps, kBlockK = Cfg::kBlockK;
  auto& smem = block_shared<typename Tiles<Cfg, IS_A_K_MAJOR, IS_B_K_MAJOR>::Shared>();
  const int split = work.num_tiles.quotient(int(block_idx()));
  const TileGroups::Tile tile = work.groups.tile(int(block_idx()) - split * work.num_tiles.value);
  if (work.partial) let_later_kernels_start();  // add_chunks
  int64_t row = start_of_tile<Cfg, IS_A_K_MAJOR>(tile.row, Cfg::kBlockM, problem.gemm.m);
  const int64_t col = start_of_tile<Cfg, IS_B_K_MAJOR>(tile.col, Cfg::kBlockN, problem.gemm.n);
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem item = product_of<Cfg, IS_A_K_MAJOR, IS_GROUPED>(problem, batch_idx, tile.row, row);
    if (IS_GROUPED && row >= item.m) continue;  // no group has this row of tiles
    const int64_t first_k = split * work.part_k, size_k = min_of(item.k - first_k, work.part_k);
    const auto num_k_tiles = int(ceil_div(size_k, kBlockK));
    const int64_t chunk = IS_GROUPED && problem.gemm.grouping == Grouping::k ? chunk_k(item) : work.chunk_k;
    const auto chunk_k_tiles = int(ceil_div(chunk, kBlockK));
    Operand<T> a = operand_a<T>(item), b = operand_b<T>(item);
    a.is_vectorised = work.is_a_vectorised, b.is_vectorised = work.is_b_vectorised;
    TileA tile_a(a, row);
    TileB tile_b(b, col);
    if constexpr (Cfg::kMayStreamB) tile_b.policy = cache_policy(work.streams_b);
    WarpSums<Cfg, TileA, TileB> sums;

    const bool are_vectorised = work.is_a_vectorised && work.is_b_vectorised;
    const bool is_inside = are_vectorised && tile_a.is_inside() && tile_b.is_inside();
    const auto num_whole = int(size_k / kBlockK), left_k = int(size_k % kBlockK);
    tile_a.skip_tiles(first_k / kBlockK), tile_b.skip_tiles(first_k / kBlockK);
    // Copies a part of the next tiles, of which there must be a whole one.
    const auto copy_part = [&](auto widths, auto is_inside, int stage, int part, int parts) {
      tile_a.template copy_part<widths.kA, is_inside.value>(smem.stages[stage].a, part, parts);
      tile_b.template copy_part<widths.kB, is_inside.value>(smem.stages[stage].b, part, parts);
    };
    const auto copy_last_tiles = [&](int stage) {
      tile_a.copy_last_tile(left_k, smem.stages[stage].a);
      if constexpr (sizeof(T) == 8) {  // no zero of underflow changes its sign
        tile_b.copy_last_elements(left_k, smem.stages[stage].b);
      } else {
        tile_b.copy_last_tile(left_k, smem.stages[stage].b);
      }
    };
    constexpr int kVector = TileA::kVector;
    using Vectors = CopyWidths<kVector, kVector>;
    // Calls visit(widths), so that the main loop has no branches between them.
    const auto visit_widths = [&](const auto& visit) {
      if (sizeof(T) == 2 || are_vectorised) {
        visit(Vectors{});
      } else if constexpr (sizeof(T) == 8) {
        visit(CopyWidths<1, 1>{});
      } else if constexpr (sizeof(T) == 4) {
        if (work.is_a_vectorised) {
          visit(CopyWidths<kVector, 1>{});
        } else if (work.is_b_vectorised) {
          visit(CopyWidths<1, kVector>{});
        } else {
          visit(CopyWidths<1, 1>{});
        }
      }
    };
    const auto next = [](int stage) { return stage + 1 == kStages ? 0 : stage + 1; };

    block_barrier();  // nobody reads the last item's sums any more
    // A group for each k tile, empty or not: the waits count them. Whole tiles have a loop of their own: what other
    // copies need is computed while theirs are on their way.
    int filled = 0;
    TILEDMM_NO_UNROLL for (; is_inside && filled < min_of(num_whole, kStages - 1); ++filled) {
      copy_part(Vectors{}, std::true_type{}, filled, 0, 1);
      commit_copies();
    }
    TILEDMM_NO_UNROLL for (; filled + 1 < kStages; ++filled) {
      if (filled < num_whole) {
        tile_a.copy_whole_tile(smem.stages[filled].a);
        tile_b.copy_whole_tile(smem.stages[filled].b);
      } else if (filled < num_k_tiles) {
        copy_last_tiles(filled);
      }
      commit_copies();
    }
    wait_copies<kStages - 2>();
    block_barrier();  // the first tiles are whole
    const auto load_first_fragments = [&](int stage) {
      sums.load_fragments_b(tile_b, smem.stages[stage].b, 0);
      TILEDMM_UNROLL for (int i = 0; i < Cfg::kFragsM; ++i) sums.load_fragment_a(tile_a, smem.stages[stage].a, 0, i);
    };
    load_first_fragments(0);

    // Multiplies the k tile in `stage`, while copy(step) copies a part of the tile that comes kStages - 1 later.
    const auto multiply_k_tile = [&](int stage, const auto& copy) {
      TILEDMM_UNROLL for (int step = 0; step < kSteps; ++step) {
        const auto& from = smem.stages[step < kSteps - 1 ? stage : next(stage)];
        const int next_step = (step + 1) % kSteps;
        const auto load_a = [&](int i) { sums.load_fragment_a(tile_a, from.a, next_step, i); };
        // Behind the last k tile these are fragments that nobody uses.
        const auto start_loads = [&] {
          if (step == kSteps - 1) {
            wait_copies<kStages - 2>();
            block_barrier();  // the next tiles are whole, and nobody reads these any more
          }
          sums.load_fragments_b(tile_b, from.b, next_step);
          if (step < kSteps - 1) copy(step);
          if (step == kSteps - 2) commit_copies();
        };
        sums.prepare_b(step);
        if constexpr (Cfg::kSetsA == 2) {
          start_loads();
          TILEDMM_UNROLL for (int i = 0; i < Cfg::kFragsM; ++i) load_a(i);
        }
        TILEDMM_UNROLL for (int i = 0; i < Cfg::kFragsM; ++i) {
          sums.multiply_row(step, i);
          if constexpr (Cfg::kSetsA == 1) {
            if (i == 0) start_loads();  // so that the matrix unit has work while the warps wait for each other
            load_a(i);
          }
        }
      }
    };
    const auto before = [](int stage) { return stage == 0 ? kStages - 1 : stage - 1; };
    constexpr bool kEndsWithin = Cfg::kGoesAround && Cfg::kSumsChunks;  // chunks end within a turn
    int k_tile = 0, stage = 0;
    const auto multiply_k_tiles = [&](int end, const auto& copy) {
      for (; k_tile < end; ++k_tile, stage = next(stage)) {
        multiply_k_tile(stage, copy);
        wait_for_sums<T>(sums.acc, &smem, work.zero);
      }
    };

    const bool has_chunks = Cfg::kSumsChunks && chunk_k_tiles < num_k_tiles;
    const int end_whole = num_whole - kStages + 1;  // so far, the tiles to copy are whole
    bool is_first = true;
    for (;;) {
      const int end = has_chunks && k_tile + chunk_k_tiles < num_k_tiles ? k_tile + chunk_k_tiles : num_k_tiles;
      const int end_here = end_whole < end ? end_whole : end;
      if (is_inside) {
        do {
          // Once around the ring: then every stage has its address while compiling.
          for (; Cfg::kGoesAround && (!Cfg::kSumsChunks || stage == 0) && k_tile + kStages <= end_here;
               k_tile += kStages) {
            TILEDMM_UNROLL for (int stage = 0; stage < kStages; ++stage) {
              multiply_k_tile(
                  stage, [&](int step) { copy_part(Vectors{}, std::true_type{}, before(stage), step, kSteps - 1); });
            }
            wait_for_sums<T>(sums.acc, &smem, work.zero);
          }
          // The tiles behind the last full turn, or those of a chunk before its first one.
          const int first_turn = k_tile + kStages - stage;
          multiply_k_tiles(kEndsWithin && stage > 0 && first_turn < end_here ? first_turn : end_here,
                           [&](int step) { copy_part(Vectors{}, std::true_type{}, before(stage), step, kSteps - 1); });
        } while (kEndsWithin && k_tile < end_here);
      } else {
        visit_widths([&](auto widths) {
          multiply_k_tiles(end_here,
                           [&](int step) { copy_part(widths, std::false_type{}, before(stage), step, kSteps - 1); });
        });
      }
      // The tile that is not whole is copied last. No loop has its code, which takes registers from the sums.
      if (k_tile < end && k_tile + kStages - 1 < num_k_tiles) {
        multiply_k_tiles(k_tile + 1, [&](int step) {
          if (step == 0) copy_last_tiles(before(stage));
        });
      }
      multiply_k_tiles(end, [](int) {});
      if (has_chunks) sums.end_chunk(is_first);
      if (!Cfg::kSumsChunks || k_tile == num_k_tiles) break;
      if constexpr (Cfg::kTotalInC) {
        sums.end_chunk(item_of<true>(problem, opaque_uniform(batch_idx)), row, col, is_first);
        warp_barrier();  // else ptxas takes the warps for divergent in the loop from now on, and gives up its order
        load_first_fragments(stage);  // anew, so that meanwhile the total has their registers
      }
      is_first = false;
    }
    if (has_chunks) sums.take_total();

    wait_copies<0>();
    block_barrier();  // nobody reads the last tiles any more
    auto& strip = smem.strips[thread_idx() / 32];
    // Anew, so that the main loop need not keep it in registers.
    GemmProblem gemm = product_of<Cfg, IS_A_K_MAJOR, IS_GROUPED>(problem, opaque_uniform(batch_idx), tile.row, row);
    if (work.partial)
      gemm = partial_problem(gemm, static_cast<Acc<T>*>(work.partial), batch_idx * work.num_splits + split);
    if (sizeof(Acc<T>) == sizeof(T) || !work.partial) {
      sums.template store<typename Cfg::C>(gemm, row, col, has_chunks, strip);
    } else {
      sums.template store<Acc<T>>(gemm, row, col, false, strip);
    }
  }
}

// ---- Launch

template <class Cfg, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR, bool IS_GROUPED>
Status launch_config(const FoldedProblem& problem, const MmaAsyncPlan& plan, const Executor& executor) {
  using T = typename Cfg::T;
  using Shared = typename Tiles<Cfg, IS_A_K_MAJOR, IS_B_K_MAJOR>::Shared;
  static_assert(int64_t(sizeof(Shared)) <= shared_bytes(Cfg::kShape, sizeof(T) == 8 ? DType::f64 : DType::f16),
                "the choice of a shape knows what fits");
  const GemmProblem& gemm = problem.gemm;
  const MmaAsyncChoice& choice = plan.choice;
  Work work{};
  const int64_t tiles_m = num_tile_rows(problem, Cfg::kBlockM), tiles_n = ceil_div(gemm.n, Cfg::kBlockN);
  work.num_splits = int(choice.num_splits);
  work.is_a_vectorised = plan.is_a_vectorised, work.is_b_vectorised = plan.is_b_vectorised;
  work.streams_b = tiles_m == 1;
  const bool splits = choice.num_splits > 1;
  if (tiles_m * tiles_n * work.num_splits > kMaxBlocks) return Status::launch_failed;
  work.num_tiles = Divisor(tiles_m * tiles_n);
  work.part_k = splits ? problem.chunk_k : gemm.k;
  work.chunk_k = problem.chunk_k;
  work.groups = TileGroups(tiles_m, tiles_n, choice.group_m);
  ChunkSums<Acc<T>> chunk_sums(problem, gemm.n, executor);
  if (splits && !chunk_sums.allocate()) return Status::out_of_memory;
  work.partial = chunk_sums.sums;
  const Status status =
      launch_kernel(mma_async<Cfg, IS_A_K_MAJOR, IS_B_K_MAJOR, IS_GROUPED>, tiles_m * tiles_n * work.num_splits,
                    num_batch_blocks(problem), Cfg::kThreads, sizeof(Shared), executor, work, problem);
  return status == Status::ok && splits ? chunk_sums.template add<typename Cfg::C>() : status;
}

template <class Cfg, bool IS_GROUPED = false>
Status launch_layout(const FoldedProblem& problem, const MmaAsyncPlan& plan, const Executor& executor) {
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kIsAKMajor = decltype(is_a_k_major)::value, kIsBKMajor = decltype(is_b_k_major)::value;
    if constexpr (IS_GROUPED && sizeof(typename Cfg::T) == 2 && !kIsAKMajor && kIsBKMajor) {
      return Status::unsupported;  // copies have made another layout of it
    } else {
      return launch_config<Cfg, kIsAKMajor, kIsBKMajor, IS_GROUPED>(problem, plan, executor);
    }
  });
}

template <class T, class C, int SHAPE>
Status launch_shape(const FoldedProblem& problem, const MmaAsyncPlan& plan, const Executor& executor) {
  constexpr DType kDType = sizeof(T) == 8 ? DType::f64 : DType::f16;
  constexpr MmaAsyncShape kShape = mma_async_shape(kDType, SHAPE);
  if constexpr (kShape.takes_groups) {
    if (is_grouped(problem.gemm))
      return launch_layout<Config<T, C, SHAPE, kShape.total>, true>(problem, plan, executor);
  }
  // fp64 has kernels for one chunk a block: with less code they are 1 to 2 us or 5 % faster.
  if constexpr (sizeof(T) == 8) {
    if (plan.choice.num_splits > 1 || problem.chunk_k >= problem.gemm.k)
      return launch_layout<Config<T, C, SHAPE, ChunkTotal::none>>(problem, plan, executor);
  }
  return launch_layout<Config<T, C, SHAPE, kShape.total>>(problem, plan, executor);
}

}  // namespace

template <int INSTANCE>
Status launch_instance(const FoldedProblem& problem, const MmaAsyncPlan& plan, const Executor& executor) {
  constexpr Instance kOwn = kMmaAsyncInstances[INSTANCE];
  using T = ElementOf<kOwn.dtype>;
  using C = std::conditional_t<kOwn.is_wide, AnyElement, T>;
  return visit_number<kOwn.first, kOwn.end>(plan.choice.shape, Status::unsupported, [&](auto number) {
    return launch_shape<T, C, decltype(number)::value>(problem, plan, executor);
  });
}

}  // namespace tiledmm::gpu
