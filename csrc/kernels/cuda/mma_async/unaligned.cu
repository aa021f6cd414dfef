// mma_async for small products of 16-bit operands that are not aligned to 16 bytes: without a launch that copies them.
//
// Some warps copy, the others multiply. Copies are asynchronous and of aligned words of two elements, whatever the
// operand's alignment: a row that begins in the middle of a word lies in shared memory as it does in global memory, one
// element further on. Where all rows begin with a word, fragments are loaded by ldmatrix, else word by word, each put
// together from two loads. Words that overhang the operand's memory, its first and last one, are not copied: their one
// element is stored instead. Limits: four times as many copies as with 16 bytes, so large products are faster with a
// copy of their operands.
#include "core/summation.h"
#include "kernels/cuda/mma_async/total_in_c.h"
#include "kernels/cuda/mma_async/unaligned_plan.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/chunk_sums.h"
#include "platform/instance.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

constexpr int kOperandThreads = 128, kCopyThreads = 2 * kOperandThreads;  // that copy A, and B

template <class T_, int SHAPE>
struct UnalignedConfig {
  using T = T_;
  static constexpr MmaUnalignedShape kShape = kMmaUnalignedShapes[SHAPE];
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n, kBlockK = kShape.block_k;
  static constexpr int kWarpM = kBlockM / kShape.warps_m, kWarpN = kBlockN / kShape.warps_n;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8;
  static constexpr int kWarps = kShape.warps_m * kShape.warps_n;  // that multiply
  static constexpr int kThreads = kCopyThreads + 32 * kWarps;
  static constexpr int kStages = kShape.num_stages;
  static_assert(kFragsM * 16 == kWarpM && kFragsN % 2 == 0, "ldmatrix loads two fragments of B at a time");
  static_assert(kChunkUnit % kBlockK == 0, "a chunk of the order of summation ends with a k tile");
};

// Tiles of an operand in shared memory: rows along its close dimension, each behind 0 or 1 elements of what lies before
// it. Padded so that loads of fragments have no bank conflicts, which leaves room for the overhang.
template <class T, int BLOCK_MN, int BLOCK_K, bool IS_K_MAJOR>
struct RawTile {
  static constexpr int kBlockMn = BLOCK_MN, kBlockK = BLOCK_K;
  static constexpr bool kIsKMajor = IS_K_MAJOR;
  static constexpr int kClose = IS_K_MAJOR ? BLOCK_K : BLOCK_MN, kFar = IS_K_MAJOR ? BLOCK_MN : BLOCK_K;
  static constexpr int kRow = kClose + 8;
  static_assert(kFar <= kOperandThreads, "a thread for each row's overhang");
  struct Shared {
    alignas(16) T elements[kFar * kRow];
  };
};

// Whether an element's address is in the middle of a word.
template <class T>
TILEDMM_DEVICE int misalignment(const T* element) {
  return int(reinterpret_cast<uintptr_t>(element) / sizeof(T) % 2);
}

// One thread's part of the copies of an operand's block tiles.
template <class T, class Tile>
struct RawCopier {
  static constexpr int kClose = Tile::kClose, kFar = Tile::kFar, kRow = Tile::kRow, kBlockK = Tile::kBlockK;
  static constexpr int kNone = -1;

  int64_t stride_far, tile_step;
  bool is_wide;                 // copies of 16 bytes
  int thread, close, far;       // of this thread's first copy, in the tile
  int shift;                    // 1 where its rows begin in the middle of a word
  int left_mn;                  // of the operand, from the tile on
  int inside_far;               // of a tile that is whole along k, from this thread's first row on
  const T *next, *next_behind;  // its first copy of the next tile; the word behind the row of its own number
  bool has_behind;              // that word has the row's last element
  // Words that the operand's first and last element share with what does not belong to it are not copied.
  bool has_first;
  int last_row, last_place;  // of the last tile, or kNone
  T first, last;

  // Tiles from mn on, of k from first_k to end_k.
  TILEDMM_DEVICE RawCopier(const Operand<T>& operand, int64_t mn, int64_t first_k, int64_t end_k) {
    stride_far = Tile::kIsKMajor ? operand.stride_mn : operand.stride_k;
    tile_step = kBlockK * operand.stride_k;
    is_wide = operand.is_vectorised && (Tile::kIsKMajor ? operand.size_k : operand.size_mn) % 8 == 0;
    thread = thread_idx() % kOperandThreads;
    const int per_row = is_wide ? kClose / 8 : kClose / 2;
    far = thread / per_row;
    close = (thread - far * per_row) * (is_wide ? 8 : 2);
    left_mn = int(min_of(operand.size_mn - mn, Tile::kBlockMn));
    const T* tile = operand.base + mn * operand.stride_mn + first_k * operand.stride_k;
    const T* row = tile + far * stride_far;
    shift = misalignment(row);
    next = row + close - shift;
    inside_far = Tile::kIsKMajor ? left_mn - far : left_mn - close + shift > 0 ? kFar : 0;
    const T* own_row = tile + thread * stride_far;
    has_behind = thread < (Tile::kIsKMajor ? left_mn : kFar) && misalignment(own_row) != 0;
    next_behind = own_row + kClose - 1;

    has_first = mn == 0 && first_k == 0 && misalignment(operand.base) != 0;
    if (has_first) first = load_global(operand.base);
    last_row = last_place = kNone;
    const T* end = operand.base + (operand.size_mn - 1) * operand.stride_mn + (operand.size_k - 1) * operand.stride_k;
    if (mn + left_mn == operand.size_mn && end_k == operand.size_k && misalignment(end) == 0 && !is_wide) {
      const int last_mn = left_mn - 1, last_k = int((end_k - 1 - first_k) % kBlockK);
      last_row = Tile::kIsKMajor ? last_mn : last_k;
      last_place = int(round_up(Tile::kIsKMajor ? last_k : last_mn, 2));  // where the word begins
      last = load_global(end);
    }
  }

  // Starts the copies of the next tile. is_last: of which left_k are to be taken.
  TILEDMM_DEVICE void copy_block_tile(bool is_first, bool is_last, int left_k, typename Tile::Shared& shared) {
    T* to = &shared.elements[far * kRow + close];
    bool is_half = false;
    if (is_last) {
      const int inside_close = (Tile::kIsKMajor ? left_k : left_mn) - close + shift;
      if (!Tile::kIsKMajor) inside_far = left_k - far;
      if (inside_close <= 0) inside_far = 0;
      is_half = inside_close == 1;
    }
    if (is_wide) {
      copy_rows<8>(to, false);
    } else if (is_half) {
      copy_halves(to, last_place == close ? last_row - far : kNone);
    } else {
      copy_rows<2>(to, is_first && has_first && thread == 0);
    }
    if (has_behind) copy_behind(is_last, left_k, shared);
    next += tile_step;
    next_behind += tile_step;
  }

  // The words that copy_block_tile left out.
  TILEDMM_DEVICE void store_edges(bool is_first, bool is_last, typename Tile::Shared& shared) const {
    if (thread != 0) return;
    if (is_first && has_first) store_shared(reinterpret_cast<uint32_t*>(shared.elements), uint32_t(first.bits) << 16);
    if (is_last && last_row != kNone) {
      store_shared(reinterpret_cast<uint32_t*>(&shared.elements[last_row * kRow + last_place]), uint32_t(last.bits));
    }
  }

 private:
  // Copies rows; those that are not inside become zeros.
  template <int WIDTH>
  TILEDMM_DEVICE void copy_rows(T* to, bool skips_first) const {
    constexpr int kRows = kOperandThreads * WIDTH / kClose, kCopies = kFar / kRows;
    static_assert(kCopies * kRows == kFar, "every thread copies as much");
    static_assert(kRows % 2 == 0, "a thread's rows all begin alike");
    const T* from = next;
    TILEDMM_UNROLL for (int i = 0; i < kCopies; ++i) {
      if (i > 0 || !skips_first) {
        copy_async_or_zero<WIDTH* int(sizeof(T))>(i * kRows < inside_far, to + i * kRows * kRow, from);
      }
      from = reinterpret_cast<const T*>(opaque(reinterpret_cast<int64_t>(from + kRows * stride_far)));
    }
  }
  // Copies words of which only the first element is inside.
  TILEDMM_DEVICE void copy_halves(T* to, int skipped) const {
    constexpr int kRows = kOperandThreads * 2 / kClose;
    const T* from = next;
    TILEDMM_NO_UNROLL for (int row = 0; row < kFar; row += kRows) {
      if (row != skipped) copy_async<4>(to + row * kRow, from, row < inside_far ? int(sizeof(T)) : 0);
      from += kRows * stride_far;
    }
  }
  // The row's last element, where it is inside.
  TILEDMM_DEVICE void copy_behind(bool is_last, int left_k, typename Tile::Shared& shared) const {
    bool is_inside = Tile::kIsKMajor || left_mn == kClose;
    if (is_last) {
      if (thread == last_row && last_place == kClose) return;
      is_inside = is_inside && left_k > (Tile::kIsKMajor ? kClose - 1 : thread);
    }
    copy_async<4>(&shared.elements[thread * kRow + kClose], next_behind, is_inside ? int(sizeof(T)) : 0);
  }
};

// Where the elements of a multiplying lane's fragments lie in an operand's tiles.
template <class T, class Tile>
struct RawFragments {
  using L = LayoutM16N8;
  static constexpr int kRow = Tile::kRow;
  bool are_words;         // every row begins with a word
  int even_row, odd_row;  // how far these are shifted

  TILEDMM_DEVICE explicit RawFragments(const Operand<T>& operand) {
    even_row = misalignment(operand.base);
    odd_row = misalignment(operand.base + (Tile::kIsKMajor ? operand.stride_mn : operand.stride_k));
    are_words = even_row == 0 && odd_row == 0;
  }
  // The elements (mn, k) and (mn, k + 1), k even.
  TILEDMM_DEVICE uint32_t load_word(const typename Tile::Shared& shared, int mn, int k) const {
    if constexpr (Tile::kIsKMajor) {
      const auto* from = reinterpret_cast<const uint32_t*>(&shared.elements[mn * kRow + k]);
      const uint64_t low = load_shared(from), high = load_shared(from + 1);
      return uint32_t((high << 32 | low) >> (16 * (mn % 2 ? odd_row : even_row)));
    } else {
      const uint32_t low = load_shared(&shared.elements[k * kRow + mn + even_row]).bits;
      return low | uint32_t(load_shared(&shared.elements[(k + 1) * kRow + mn + odd_row]).bits) << 16;
    }
  }
  // A's 16 rows from mn on, or B's 16 columns, of k and the 15 behind it. Of four matrices of 8 x 8 those along mn come
  // first for A, those along k for B: in the order of the instruction's registers.
  template <bool IS_A, bool ARE_WORDS>
  TILEDMM_DEVICE void load(const typename Tile::Shared& shared, int mn, int k, uint32_t (&words)[4]) const {
    const int lane = thread_idx() % 32;
    if constexpr (ARE_WORDS && kHasLdmatrix) {
      const int matrix = lane / 8, mn_half = IS_A ? matrix % 2 : matrix / 2, k_half = IS_A ? matrix / 2 : matrix % 2;
      mn += 8 * mn_half, k += 8 * k_half;
      ldmatrix<!Tile::kIsKMajor>(
          &shared.elements[Tile::kIsKMajor ? (mn + lane % 8) * kRow + k : (k + lane % 8) * kRow + mn], words[0],
          words[1], words[2], words[3]);
    } else {
      TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
        const int row = IS_A ? L::a_row(lane, w) : w / 2 * 8 + L::b_col(lane, w % 2);
        const int word = IS_A ? L::a_word(lane, w) : L::b_word(lane, w % 2);
        words[w] = load_word(shared, mn + row, k + 2 * word);
      }
    }
  }
};

// A block's tile of C on its way out: the warps that multiply put it here, those that copy take it on. Each thread
// takes pairs along the dimension in which C's elements are neighbours.
template <int BLOCK_M, int BLOCK_N>
struct TileC {
  float sums[BLOCK_M][BLOCK_N + 9];  // an odd pitch: columns, too, are read without many bank conflicts

  // C = activation(alpha * sums + beta * bias), of elements Out: those of C, or sums of a chunk.
  template <class Out>
  TILEDMM_DEVICE void store(const GemmProblem& problem, int64_t row, int64_t col) {
    is_column_major(problem) ? store_pairs<Out, true>(problem, row, col) : store_pairs<Out, false>(problem, row, col);
  }

 private:
  template <class Out, bool IS_DOWN>
  TILEDMM_DEVICE void store_pairs(const GemmProblem& problem, int64_t row, int64_t col) {
    constexpr int kClose = IS_DOWN ? BLOCK_M : BLOCK_N, kFar = IS_DOWN ? BLOCK_N : BLOCK_M;
    constexpr int kPairs = kClose / 2, kStep = kCopyThreads / kPairs;
    const int64_t stride_close = IS_DOWN ? problem.stride_cm : problem.stride_cn;
    const int64_t stride_far = IS_DOWN ? problem.stride_cn : problem.stride_cm;
    const int own_far = thread_idx() / kPairs, own_close = thread_idx() % kPairs * 2;
    const auto left_m = int(min_of(problem.m - row, BLOCK_M)), left_n = int(min_of(problem.n - col, BLOCK_N));
    const int far = IS_DOWN ? left_n : left_m, close = (IS_DOWN ? left_m : left_n) - own_close;
    if (close <= 0) return;
    const auto place = [&](int f, int c) { return IS_DOWN ? &sums[own_close + c][f] : &sums[f][own_close + c]; };
    if (!is_plain(problem)) {
      TILEDMM_NO_UNROLL for (int f = own_far; f < far; f += kStep) {
        TILEDMM_NO_UNROLL for (int c = 0; c < 2; ++c) {
          const int64_t of_m = row + (IS_DOWN ? own_close + c : f), of_n = col + (IS_DOWN ? f : own_close + c);
          const float sum = float(blended<Out>(problem, of_m, of_n, load_shared(place(f, c))));
          store_shared(place(f, c),
                       problem.activation == Activation::none ? sum : activated<Out>(problem.activation, sum));
        }
      }
    }
    const bool is_pair = close > 1 && stride_close == 1 && stride_far % 2 == 0 &&
                         reinterpret_cast<uintptr_t>(problem.c) % sizeof(Pair<Out>) == 0;
    Out* to = static_cast<Out*>(problem.c) + row * problem.stride_cm + col * problem.stride_cn + own_far * stride_far +
              own_close * stride_close;
    TILEDMM_UNROLL for (int f = own_far; f < kFar; f += kStep) {
      if (f < far) {
        const Pair<Out> outs{rounded_to<Out>(load_shared(place(f, 0))), rounded_to<Out>(load_shared(place(f, 1)))};
        if (is_pair) {
          store_global(reinterpret_cast<Pair<Out>*>(to), outs);
        } else {
          store_global(to, outs.first);
          if (close > 1) store_global(to + stride_close, outs.second);
        }
      }
      to += kStep * stride_far;
    }
  }
};

struct UnalignedWork {
  int64_t tiles_m, tiles_n;
  int num_splits;  // blocks that compute chunks of one tile side by side
  int64_t part_k;
  float* partial;  // as ChunkSums has them; null where there is one split
};

template <class Cfg, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
struct UnalignedTiles {
  using T = typename Cfg::T;
  using TileA = RawTile<T, Cfg::kBlockM, Cfg::kBlockK, IS_A_K_MAJOR>;
  using TileB = RawTile<T, Cfg::kBlockN, Cfg::kBlockK, IS_B_K_MAJOR>;
  struct Stage {
    typename TileA::Shared a;
    typename TileB::Shared b;
  };
  struct Shared {
    Stage stages[Cfg::kStages];
    TileC<Cfg::kBlockM, Cfg::kBlockN> c;
  };
};

// A block's part of one item: its tile, of k from first_k to end_k.
struct UnalignedPart {
  int64_t row, col, first_k, end_k;
};

// All tiles of one operand; tile_of(stage) is where they go.
template <class Cfg, class Tile, class TileOf>
TILEDMM_DEVICE void copy_tiles(const Operand<typename Cfg::T>& operand, int64_t mn, const UnalignedPart& part,
                               const TileOf& tile_of) {
  constexpr int kStages = Cfg::kStages;
  const auto num_k_tiles = int(ceil_div(part.end_k - part.first_k, Cfg::kBlockK));
  const auto left_k = int(part.end_k - part.first_k - int64_t(num_k_tiles - 1) * Cfg::kBlockK);  // of the last one
  RawCopier<typename Cfg::T, Tile> copier(operand, mn, part.first_k, part.end_k);
  int stage = 0, stage_to = 0;
  TILEDMM_NO_UNROLL for (int k_tile = 1 - kStages; k_tile < num_k_tiles; ++k_tile) {
    if (k_tile >= 0) {
      copier.store_edges(k_tile == 0, k_tile + 1 == num_k_tiles, tile_of(stage));
      wait_copies<kStages - 2>();
      block_barrier_of_roles(Cfg::kThreads);  // this tile is whole, and nobody reads the one before it any more
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (const int later = k_tile + kStages - 1; later < num_k_tiles) {
      copier.copy_block_tile(later == 0, later + 1 == num_k_tiles, left_k, tile_of(stage_to));
      stage_to = stage_to + 1 == kStages ? 0 : stage_to + 1;
    }
    commit_copies();  // a group for each k tile, empty or not: the waits count them
  }
}

template <class Cfg, class Tiles>
TILEDMM_DEVICE void multiply_tiles(const GemmProblem& item, const UnalignedPart& part, typename Tiles::Shared& smem) {
  using T = typename Cfg::T;
  using L = LayoutM16N8;
  constexpr int kBlockK = Cfg::kBlockK, kFragsM = Cfg::kFragsM, kFragsN = Cfg::kFragsN;
  const int warp = (thread_idx() - kCopyThreads) / 32, lane = thread_idx() % 32;
  const int warp_row = warp / Cfg::kShape.warps_n * Cfg::kWarpM, warp_col = warp % Cfg::kShape.warps_n * Cfg::kWarpN;
  const RawFragments<T, typename Tiles::TileA> frags_a(operand_a<T>(item));
  const RawFragments<T, typename Tiles::TileB> frags_b(operand_b<T>(item));
  const int64_t size_k = part.end_k - part.first_k;
  const auto num_k_tiles = int(ceil_div(size_k, kBlockK));

  float acc[kFragsM][kFragsN][L::kAccs];
  const auto for_each = [&](const auto& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < L::kAccs; ++e) visit(i, j, e);
      }
    }
  };
  for_each([&](int i, int j, int e) { acc[i][j][e] = 0; });
  const auto multiply_all = [&](auto are_words) {
    int stage = 0;
    TILEDMM_NO_UNROLL for (int k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
      block_barrier_of_roles(Cfg::kThreads);  // this tile is whole
      const auto& from = smem.stages[stage];
      const auto multiply = [&](int k) {
        uint32_t a[kFragsM][4], b[kFragsN / 2][4];
        TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
          frags_a.template load<true, are_words.value>(from.a, warp_row + 16 * i, k, a[i]);
        }
        TILEDMM_UNROLL for (int j = 0; j < kFragsN / 2; ++j) {
          frags_b.template load<false, are_words.value>(from.b, warp_col + 16 * j, k, b[j]);
        }
        TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
          TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
            Mma<T>::multiply(acc[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
          }
        }
      };
      const int64_t left_k = size_k - int64_t(k_tile) * kBlockK;
      if (left_k > kBlockK / 2) {  // beyond the end of k are zeros
        TILEDMM_UNROLL for (int k = 0; k < kBlockK; k += 16) multiply(k);
      } else {
        TILEDMM_NO_UNROLL for (int k = 0; k < left_k; k += 16) multiply(k);
      }
      stage = stage + 1 == Cfg::kStages ? 0 : stage + 1;
    }
  };
  const bool are_words = frags_a.are_words && frags_b.are_words;
  are_words ? multiply_all(std::true_type{}) : multiply_all(std::false_type{});

  for_each([&](int i, int j, int e) {
    store_shared(&smem.c.sums[warp_row + 16 * i + L::c_row(lane, e)][warp_col + 8 * j + L::c_col(lane, e)],
                 acc[i][j][e]);
  });
}

template <class Cfg, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(Cfg::kThreads, Cfg::kShape.blocks_per_cu)
mma_unaligned(UnalignedWork work, FoldedProblem problem) {
  using Tiles = UnalignedTiles<Cfg, IS_A_K_MAJOR, IS_B_K_MAJOR>;
  using T = typename Cfg::T;
  auto& smem = block_shared<typename Tiles::Shared>();
  if (work.partial) let_later_kernels_start();  // add_chunks
  const int64_t num_tiles = work.tiles_m * work.tiles_n, split = block_idx() / num_tiles;
  const int64_t tile = block_idx() - split * num_tiles, tile_n = tile / work.tiles_m;
  const int64_t first_k = split * work.part_k;
  const UnalignedPart part{(tile - tile_n * work.tiles_m) * Cfg::kBlockM, tile_n * Cfg::kBlockN, first_k,
                           min_of(problem.gemm.k, first_k + work.part_k)};
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem item = item_of<true>(problem, batch_idx);
    if (thread_idx() >= kCopyThreads) {
      multiply_tiles<Cfg, Tiles>(item, part, smem);
    } else if (thread_idx() < kOperandThreads) {
      copy_tiles<Cfg, typename Tiles::TileA>(operand_a<T>(item), part.row, part,
                                             [&](int stage) -> auto& { return smem.stages[stage].a; });
    } else {
      copy_tiles<Cfg, typename Tiles::TileB>(operand_b<T>(item), part.col, part,
                                             [&](int stage) -> auto& { return smem.stages[stage].b; });
    }
    block_barrier();  // the tile of C is whole, and nobody reads those of A and B any more
    if (thread_idx() < kCopyThreads) {
      if (work.partial) {
        const GemmProblem sums = partial_problem(item, work.partial, batch_idx * work.num_splits + split);
        smem.c.template store<float>(sums, part.row, part.col);
      } else {
        smem.c.template store<T>(item, part.row, part.col);
      }
    }
  }
}

// ---- Launch

template <class Cfg>
Status launch_unaligned(const FoldedProblem& problem, const Executor& executor) {
  using T = typename Cfg::T;
  const GemmProblem& gemm = problem.gemm;
  const bool splits_chunks = problem.chunk_k < gemm.k;
  UnalignedWork work{};
  work.tiles_m = ceil_div(gemm.m, Cfg::kBlockM), work.tiles_n = ceil_div(gemm.n, Cfg::kBlockN);
  work.num_splits = splits_chunks ? int(ceil_div(gemm.k, problem.chunk_k)) : 1;
  work.part_k = splits_chunks ? problem.chunk_k : gemm.k;
  ChunkSums<float> chunk_sums(problem, gemm.n, executor);
  if (splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  work.partial = chunk_sums.sums;
  const Status status = visit_layouts(gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
    using Shared = typename UnalignedTiles<Cfg, kA, kB>::Shared;
    static_assert(int64_t(sizeof(Shared)) <= shared_bytes(Cfg::kShape), "the choice of a shape knows what fits");
    return launch_kernel(mma_unaligned<Cfg, kA, kB>, work.tiles_m * work.tiles_n * work.num_splits,
                         num_batch_blocks(problem), Cfg::kThreads, sizeof(Shared), executor, work, problem);
  });
  return status == Status::ok && splits_chunks ? chunk_sums.add<T>() : status;
}

template <class T>
Status launch_unaligned_shape(const FoldedProblem& problem, int shape, const Executor& executor) {
  return visit_number<0, kNumMmaUnalignedShapes>(shape, Status::unsupported, [&](auto number) {
    return launch_unaligned<UnalignedConfig<T, decltype(number)::value>>(problem, executor);
  });
}

}  // namespace

Status launch_mma_unaligned(const FoldedProblem& problem, int shape, const Executor& executor) {
  return problem.gemm.dtype_a == DType::f16 ? launch_unaligned_shape<Half>(problem, shape, executor)
                                            : launch_unaligned_shape<BFloat16>(problem, shape, executor);
}

}  // namespace tiledmm::gpu
