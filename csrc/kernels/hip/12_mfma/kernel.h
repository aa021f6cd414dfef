// Rung 12, mfma: matrix instructions of AMD's CDNA chips at the pace of the matrix unit: gfx90a, gfx942, gfx950.
//
// Since rung 08: the loop has no bounds and no vector arithmetic. Loads are bounded by hardware, a k tile that is cut
// off comes last and element by element; 16 bytes a lane go to and from shared memory, without bank conflicts, on
// gfx950 straight there, and loads turn what lies along m or n. The large tile has two warps on each SIMD that take
// turns, one multiplies while the other one moves data. Blocks that run at the same time on one die share operands in
// its cache. Chunks of k go to blocks of their own, whose sums are added in order. Limits: operands without a unit
// stride go element by element; a tile of 32 is the smallest. Sources: HipKittens (256_256_64_16.cpp: tile, turns),
// TLX's gfx9_gemm ladder (bounded loads, straight copies), and as named below.
#pragma once

#include "kernels/hip/12_mfma/block_order.h"
#include "kernels/hip/12_mfma/c_strip.h"
#include "kernels/hip/12_mfma/launch_shape.h"
#include "kernels/hip/12_mfma/tile_copy.h"
#include "platform/chunk_sums.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

template <class T_, int SHAPE>
struct Config {
  using T = T_;
  static constexpr DType kDType = sizeof(T) == 8 ? DType::f64 : sizeof(T) == 4 ? DType::f32 : DType::f16;
  static constexpr MfmaShape kShape = kMfmaShapes[SHAPE];
  static constexpr int kBlock = kShape.block, kBlockK = mfma_block_k(kDType);
  static constexpr int kWarps = kShape.warps_m * kShape.warps_n, kThreads = kWarps * 64;
  static constexpr int kWarpM = kBlock / kShape.warps_m, kWarpN = kBlock / kShape.warps_n;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 16;
  static constexpr bool kTakesTurns = kWarps == 8;
  static constexpr bool kIsLarge = kTakesTurns || sizeof(T) == 8;  // its sums leave few registers
  static constexpr bool kSumsChunks = sums_mfma_chunks(kDType, SHAPE);
  // Columns of a warp that are in shared memory at a time on their way to C.
  static constexpr int kStripN = sizeof(T) == 8 ? 32 : kWarpN;
  static_assert(!kTakesTurns || kShape.warps_m == 2, "a SIMD has a warp of each row of warps");
  static_assert(kFragsM * 16 == kWarpM && kFragsN * 16 == kWarpN, "whole fragments fill the warp tile");
};

inline constexpr int kSlices = 2;  // of a k tile

// A block has one item of the batch: a loop would keep in registers what does not change in it.
constexpr int64_t kMaxMfmaItems = 65535;

struct MfmaWork {
  Divisor num_tiles;
  BlockOrder order;
  int num_splits;      // blocks that compute chunks of one tile side by side
  int chunk_tiles;     // k tiles of a chunk
  int64_t split_k;     // of a block
  int64_t first_item;  // of the batch
  void* partial;       // as ChunkSums has them; null where there is one split
  bool is_wide;        // whole k tiles are copied 16 bytes at a time, all but the last one where `leaves_last`
  bool leaves_last;
};

#if defined(TILEDMM_IS_CDNA)

// The instructions that a chunk of 16 bytes a lane takes. gfx950 has one for all of its elements in 16 bits.
#if defined(__gfx950__)
inline constexpr int kStepsOf16Bits = 1;
inline constexpr bool kHasStraightCopies = true;  // whose loads turn elements of 16 bits
#else
inline constexpr int kStepsOf16Bits = 2;
inline constexpr bool kHasStraightCopies = false;
#endif
template <class T>
inline constexpr int kStepsOfChunk = sizeof(T) == 2 ? kStepsOf16Bits : 16 / int(sizeof(T));

// acc += products of a chunk of B and one of A. C's columns are the instruction's rows: a lane's sums are neighbours in
// a row of C.
template <class T>
TILEDMM_DEVICE void multiply_chunks(Acc<T> (&acc)[4], const Vector16& b, const Vector16& a, [[maybe_unused]] int step) {
#if defined(__gfx950__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 8>;
    return accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x32_f16(bits_as<Operand>(b), bits_as<Operand>(a), c, 0, 0, 0);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<__bf16, 8>;
    return accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x32_bf16(bits_as<Operand>(b), bits_as<Operand>(a), c, 0, 0, 0);
    });
  }
#endif
  using M = Mma<T>;
  typename M::Word words_a[M::kWordsA], words_b[M::kWordsB];
  __builtin_memcpy(words_a, reinterpret_cast<const char*>(&a) + step * sizeof words_a, sizeof words_a);
  __builtin_memcpy(words_b, reinterpret_cast<const char*>(&b) + step * sizeof words_b, sizeof words_b);
  M::multiply(acc, words_b, words_a);
}

// A warp's fragments of an operand's tiles, 16 rows each: of a slice of the k tile, a chunk of 16 bytes for each of a
// row's four lanes.
template <int BLOCK, int FRAGS, bool IS_ALONG_K>
struct FragmentReader {
  using Places = TilePlaces<BLOCK, IS_ALONG_K>;
  int from[IS_ALONG_K ? kSlices : FRAGS];  // in shared memory, of this lane's first chunk of a slice, or of a fragment

  TILEDMM_DEVICE FragmentReader(int first_row, int lane) {
    if constexpr (IS_ALONG_K) {
      TILEDMM_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
        from[slice] = Places::place_of(first_row + lane % 16, slice * 4 + lane / 16);
      }
    } else {
      const int k = lane / 16 * 8 + lane % 16 / 4, half = lane % 4 / 2;
      TILEDMM_UNROLL for (int i = 0; i < FRAGS; ++i) {
        from[i] = Places::place_of(k, first_row / 8 + i * 2 + half) + lane % 2 * 8;
      }
    }
  }

  TILEDMM_DEVICE Vector16 load(const char* smem, int slice, int i) const {
    if constexpr (IS_ALONG_K) {
      return load_shared(reinterpret_cast<const Vector16*>(smem + from[slice] + i * 16 * Places::kRowBytes));
    } else {
      const char* place = smem + from[i] + slice * 32 * Places::kRowBytes;
      const uint64_t parts[] = {load_turned(place), load_turned(place + 4 * Places::kRowBytes)};
      return __builtin_bit_cast(Vector16, parts);
    }
  }
};

// The sums of one warp, and the fragments that it multiplies.
template <class Cfg, bool IS_A_ALONG_K, bool IS_B_ALONG_K>
struct WarpSums {
  using T = typename Cfg::T;
  using A = Acc<T>;
  static constexpr int kFragsM = Cfg::kFragsM, kFragsN = Cfg::kFragsN, kHalf = kFragsM / 2;

  A acc[kFragsM][kFragsN][4];
  A total[Cfg::kSumsChunks ? kFragsM : 1][kFragsN][4];
  Vector16 frag_a[kFragsM], frag_b[kFragsN];
  int lane, warp_m, warp_n;
  FragmentReader<Cfg::kBlock, kFragsM, IS_A_ALONG_K> reader_a;
  FragmentReader<Cfg::kBlock, kFragsN, IS_B_ALONG_K> reader_b;

  TILEDMM_DEVICE WarpSums()
      : lane(thread_idx() % 64),
        warp_m(uniform(thread_idx() / 64) / Cfg::kShape.warps_n),
        warp_n(uniform(thread_idx() / 64) % Cfg::kShape.warps_n),
        reader_a(warp_m * Cfg::kWarpM, lane),
        reader_b(warp_n * Cfg::kWarpN, lane) {
    for_each([&](int i, int j, int e) {
      acc[i][j][e] = 0;
      if constexpr (Cfg::kSumsChunks) total[i][j][e] = A(-0.0);  // adds nothing
    });
  }

  // Calls visit(i, j, e) for each sum of this lane.
  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) { TILEDMM_UNROLL for (int e = 0; e < 4; ++e) visit(i, j, e); }
    }
  }
  TILEDMM_DEVICE void end_chunk() {
    if constexpr (Cfg::kSumsChunks) {
      for_each([&](int i, int j, int e) { total[i][j][e] += acc[i][j][e], acc[i][j][e] = 0; });
    }
  }

  TILEDMM_DEVICE void load_fragments_a(const char* smem_a, int slice, int first, int last) {
    TILEDMM_UNROLL for (int i = first; i < last; ++i) { frag_a[i] = reader_a.load(smem_a, slice, i); }
  }
  TILEDMM_DEVICE void load_fragments_b(const char* smem_b, int slice, int first, int last) {
    TILEDMM_UNROLL for (int j = first; j < last; ++j) { frag_b[j] = reader_b.load(smem_b, slice, j); }
  }
  // Adds the products of A's fragments first to last - 1 and of B's. Neighbouring instructions add to different sums.
  TILEDMM_DEVICE void multiply(int first, int last, int first_b = 0, int last_b = kFragsN) {
    TILEDMM_UNROLL for (int step = 0; step < kStepsOfChunk<T>; ++step) {
      TILEDMM_UNROLL for (int i = first; i < last; ++i) {
        TILEDMM_UNROLL for (int j = first_b; j < last_b; ++j) {
          multiply_chunks<T>(acc[i][j], frag_b[j], frag_a[i], step);
        }
      }
    }
  }
  // Multiplies a whole k tile with few registers: half of A's fragments are there at a time.
  TILEDMM_DEVICE void multiply_k_tile(const char* smem_a, const char* smem_b) {
    TILEDMM_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
      load_fragments_b(smem_b, slice, 0, kFragsN);
      TILEDMM_UNROLL for (int i = 0; i < kFragsM; i += kHalf) {
        load_fragments_a(smem_a, slice, i, i + kHalf);
        multiply(i, i + kHalf);
        schedule_barrier();
      }
    }
  }
  // Multiplies the first slice, and loads the second one. A fragment that is done with makes room for a new one.
  TILEDMM_DEVICE void multiply_first_slice(const char* smem_a, const char* smem_b) {
    load_fragments_b(smem_b, 0, 0, kFragsN);
    load_fragments_a(smem_a, 0, 0, kFragsM);
    schedule_barrier();
    TILEDMM_UNROLL for (int i = 0; i < kHalf; ++i) {
      multiply(i, i + 1);
      load_fragments_a(smem_a, 1, i, i + 1);
      schedule_barrier();
    }
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      multiply(kHalf, kFragsM, j, j + 1);
      load_fragments_b(smem_b, 1, j, j + 1);
      schedule_barrier();
    }
    load_fragments_a(smem_a, 1, kHalf, kFragsM);
    schedule_barrier();
  }

  using Strip = CStrip<A, Cfg::kStripN>;
  template <class Out>
  TILEDMM_DEVICE void store(const GemmProblem& problem, int64_t row, int64_t col, Strip& strip) const {
    using L = typename Mma<T>::L;
    constexpr int kStripFrags = Cfg::kStripN / 16, kStrips = kFragsN / kStripFrags;
    const int lane = opaque(this->lane);  // else addresses are computed ahead of the main loop
    // Not unrolled, so that there is little code: which registers are stored is a jump, the way to C is the same.
    TILEDMM_NO_UNROLL for (int part = 0; part < kStrips; ++part) {
      const CWriter<Out, A, Cfg::kStripN> writer(problem, col + warp_n * Cfg::kWarpN + part * Cfg::kStripN, lane);
      TILEDMM_NO_UNROLL for (int frag = 0; frag < kFragsM; ++frag) {
        TILEDMM_UNROLL for (int idx = 0; idx < kFragsM * kStrips; ++idx) {
          if (idx != frag * kStrips + part) continue;
          TILEDMM_UNROLL for (int j = 0; j < kStripFrags; ++j) {
            TILEDMM_UNROLL for (int e = 0; e < 4; ++e) {
              store_shared(&strip.acc[L::c_col(lane, e)][j * 16 + L::c_row(lane, e)],
                           acc[idx / kStrips][idx % kStrips * kStripFrags + j][e]);
            }
          }
        }
        writer.store(strip, row + warp_m * Cfg::kWarpM + frag * 16);
      }
    }
  }
};

// What multiplies a k tile moves data twice, before it has read the tile and after all warps have. By way of registers
// the next tile is loaded, and goes to the place of the one that was read. Straight copies of the tile after the next
// one go there, and those of the next one are waited for.
template <bool ARE_ROWS_ODD, class CopyA, class CopyB>
struct TileMoves {
  CopyA& copy_a;
  CopyB& copy_b;
  static constexpr bool kAreStraight = CopyA::kIsStraight;

  template <class Copy>
  TILEDMM_DEVICE void before(Copy& copy) const {
    if constexpr (!kAreStraight) copy.template load<ARE_ROWS_ODD>();
  }
  TILEDMM_DEVICE void after(char* smem_a, char* smem_b) const {
    if constexpr (kAreStraight) {
      copy_a.copy(smem_a);
      copy_b.copy(smem_b);
    } else {
      copy_a.template store<ARE_ROWS_ODD>(smem_a);
      copy_b.template store<ARE_ROWS_ODD>(smem_b);
    }
  }
  TILEDMM_DEVICE void wait() const {
    if constexpr (kAreStraight) wait_for_copies<CopyA::kChunks + CopyB::kChunks>();
  }
};

// Multiplies a k tile while others are on their way.
//
// The warps are two halves, of which each SIMD has one warp each, a phase apart: while one multiplies, the other one
// moves data. A barrier ends each phase. Where one half has read all of a tile, the other one has, too, before the
// first chunk is overwritten: that phase comes two later. Source of the turns: HipKittens (arXiv 2511.08083).
template <class Sums, class Moves>
TILEDMM_DEVICE void multiply_in_turns(Sums& sums, const Moves& moves, char* smem_a, char* smem_b) {
  constexpr int kHalf = Sums::kHalf, kAll = Sums::kFragsM, kAllB = Sums::kFragsN;
  const auto multiply = [&](int first, int last) {
    wait_for_shared();
    schedule_barrier();
    set_priority<1>();
    sums.multiply(first, last);
    set_priority<0>();
  };
  moves.before(moves.copy_a);
  sums.load_fragments_b(smem_b, 0, 0, kAllB);
  sums.load_fragments_a(smem_a, 0, 0, kHalf);
  phase_barrier();
  multiply(0, kHalf);
  phase_barrier();
  moves.before(moves.copy_b);
  sums.load_fragments_a(smem_a, 0, kHalf, kAll);
  phase_barrier();
  multiply(kHalf, kAll);
  phase_barrier();
  sums.load_fragments_b(smem_b, 1, 0, kAllB);
  sums.load_fragments_a(smem_a, 1, 0, kAll);
  block_barrier();  // this half has read the tile
  schedule_barrier();
  multiply(0, kHalf);
  phase_barrier();
  moves.after(smem_a, smem_b);
  moves.wait();
  block_barrier();  // this half's part of the next tile is there
  schedule_barrier();
  multiply(kHalf, kAll);
  phase_barrier();
}

// Does what multiply_in_turns() does where other blocks of the CU keep the matrix unit busy meanwhile: a warp that
// multiplies goes before those that move data. ARE_FEW: registers, so that each fragment is waited for.
template <bool ARE_FEW, class Sums, class Moves>
TILEDMM_DEVICE void multiply_one_by_one(Sums& sums, const Moves& moves, char* smem_a, char* smem_b) {
  constexpr int kHalf = Sums::kHalf, kAll = Sums::kFragsM;
  moves.before(moves.copy_a);
  moves.before(moves.copy_b);
  set_priority<1>();
  if constexpr (ARE_FEW) {
    sums.multiply_k_tile(smem_a, smem_b);
    set_priority<0>();
  } else {
    sums.multiply_first_slice(smem_a, smem_b);
    sums.multiply(0, kHalf);
    schedule_barrier();
  }
  block_barrier();  // nobody reads the tile any more
  moves.after(smem_a, smem_b);
  if constexpr (!ARE_FEW) {
    sums.multiply(kHalf, kAll);
    set_priority<0>();
  }
  moves.wait();
  block_barrier();  // the next tile is whole
}

// The tiles of both operands in shared memory: in one buffer, or in two that are read and overwritten in turn.
template <class Cfg, int BUFFERS>
struct Tiles {
  static constexpr int kBuffers = BUFFERS;
  alignas(16) char a[BUFFERS][Cfg::kBlock * kMfmaRowBytes], b[BUFFERS][Cfg::kBlock * kMfmaRowBytes];
};

// Multiplies `count` k tiles, of which the first is in the first buffer, where that behind the last is at the end.
// `count` is a multiple of the buffers: which one is read is known at compile time, so that places are constants.
template <class Cfg, bool ARE_ROWS_ODD, class Sums, class CopyA, class CopyB, int BUFFERS>
TILEDMM_DEVICE void multiply_k_tiles(Sums& sums, CopyA& copy_a, CopyB& copy_b, int count, Tiles<Cfg, BUFFERS>& smem) {
  const TileMoves<ARE_ROWS_ODD, CopyA, CopyB> moves{copy_a, copy_b};
  if (Cfg::kTakesTurns && sums.warp_m == 1) phase_barrier();
  TILEDMM_NO_UNROLL for (; count > 0; count -= BUFFERS) {
    TILEDMM_UNROLL for (int i = 0; i < BUFFERS; ++i) {
      if constexpr (Cfg::kTakesTurns) {
        multiply_in_turns(sums, moves, smem.a[i], smem.b[i]);
      } else {
        multiply_one_by_one<ARE_ROWS_ODD || Cfg::kIsLarge>(sums, moves, smem.a[i], smem.b[i]);
      }
    }
  }
  if (Cfg::kTakesTurns && sums.warp_m == 0) phase_barrier();
}

#endif

template <class Cfg, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR, bool ARE_ROWS_ODD>
TILEDMM_KERNEL(Cfg::kThreads, Cfg::kShape.blocks_per_cu)
mfma([[maybe_unused]] MfmaWork work, [[maybe_unused]] FoldedProblem problem) {
#if defined(TILEDMM_IS_CDNA)
  using T = typename Cfg::T;
  constexpr bool kIsStraight = kHasStraightCopies && sizeof(T) == 2 && !ARE_ROWS_ODD;
  using Sums = WarpSums<Cfg, IS_A_K_MAJOR || !kIsStraight, IS_B_K_MAJOR || !kIsStraight>;
  constexpr int kBuffers = kIsStraight ? 2 : 1;
  union Shared {
    Tiles<Cfg, kBuffers> tiles;
    typename Sums::Strip strips[Cfg::kWarps];  // after the last k tile
  };
  static_assert(sizeof(Shared) * Cfg::kShape.blocks_per_cu <= (kIsStraight ? 160 : 64) << 10, "LDS of the CU");
  auto& smem = block_shared<Shared>();
  const int split = work.num_tiles.quotient(int(block_idx()));
  const TileIndex tile = work.order.tile_of(int(block_idx()) - split * int(work.num_tiles.value));
  const int64_t row = int64_t(tile.m) * Cfg::kBlock, col = int64_t(tile.n) * Cfg::kBlock;
  const int64_t batch_idx = work.first_item + block_idx_y();
  const GemmProblem item = item_of<true>(problem, batch_idx);
  const int64_t first_k = split * work.split_k, size_k = min_of(item.k - first_k, work.split_k);
  TileCopy<T, Cfg::kBlock, Cfg::kThreads, IS_A_K_MAJOR, kIsStraight> copy_a(operand_a<T>(item), row, first_k);
  TileCopy<T, Cfg::kBlock, Cfg::kThreads, IS_B_K_MAJOR, kIsStraight> copy_b(operand_b<T>(item), col, first_k);
  Sums sums;
  const int num_k_tiles = int(ceil_div(size_k, Cfg::kBlockK));
  const int num_wide = work.is_wide ? int((size_k - work.leaves_last) / Cfg::kBlockK) : 0;
  int k_tile = 0, end_of_chunk = Cfg::kSumsChunks ? work.chunk_tiles : num_k_tiles;
  [[maybe_unused]] const auto copy = [&]([[maybe_unused]] int buffer) {
    if constexpr (kIsStraight) copy_a.copy(smem.tiles.a[buffer]), copy_b.copy(smem.tiles.b[buffer]);
  };
  const auto end_chunk = [&] {
    if (k_tile == end_of_chunk && k_tile < num_k_tiles) sums.end_chunk(), end_of_chunk += work.chunk_tiles;
  };
  if (num_wide > 0) {
    if constexpr (kIsStraight) {
      copy(0);
      if (num_wide > 1) copy(1);
      wait_for_copies();
    } else {
      copy_a.template load<ARE_ROWS_ODD>();
      copy_b.template load<ARE_ROWS_ODD>();
      copy_a.template store<ARE_ROWS_ODD>(smem.tiles.a[0]);
      copy_b.template store<ARE_ROWS_ODD>(smem.tiles.b[0]);
    }
    block_barrier();  // the first tiles are whole
    for (;;) {
      // kBuffers wide tiles are left: none is loaded beyond them. Chunks have an even number of k tiles.
      const int end = end_of_chunk < num_wide - kBuffers ? end_of_chunk : num_wide - kBuffers;
      const int count = end > k_tile ? (end - k_tile) / kBuffers * kBuffers : 0;
      multiply_k_tiles<Cfg, ARE_ROWS_ODD>(sums, copy_a, copy_b, count, smem.tiles);
      k_tile += count;
      if (!Cfg::kSumsChunks || end == num_wide - kBuffers) break;
      end_chunk();
    }
  }
  TILEDMM_NO_UNROLL for (; k_tile < num_k_tiles; ++k_tile) {
    end_chunk();
    const int buffer = k_tile % kBuffers;
    char *smem_a = smem.tiles.a[buffer], *smem_b = smem.tiles.b[buffer];
    if (k_tile >= num_wide) {
      const auto left_k = int(min_of(size_k - int64_t(k_tile) * Cfg::kBlockK, Cfg::kBlockK));
      block_barrier();  // nobody reads the old tiles any more
      copy_a.copy_elements(left_k, smem_a);
      copy_b.copy_elements(left_k, smem_b);
      block_barrier();  // the new tiles are whole
    }
    sums.multiply_k_tile(smem_a, smem_b);
    if (kIsStraight && k_tile + 1 < num_wide) {
      wait_for_copies();
      block_barrier();  // the next tiles are whole, and nobody reads these any more
      if (k_tile + 2 < num_wide) copy(buffer);
    }
  }
  if constexpr (Cfg::kSumsChunks) {
    sums.for_each([&](int i, int j, int e) { sums.acc[i][j][e] = sums.total[i][j][e] + sums.acc[i][j][e]; });
  }

  block_barrier();  // nobody reads the last tiles any more
  auto& strip = smem.strips[thread_idx() / 64];
  // Anew, so that the main loop need not keep it in registers.
  GemmProblem gemm = item_of<true>(problem, opaque_uniform(batch_idx));
  if (work.partial) {
    gemm = partial_problem(gemm, static_cast<Acc<T>*>(work.partial), batch_idx * work.num_splits + split);
    sums.template store<Acc<T>>(gemm, row, col, strip);
  } else {
    sums.template store<T>(gemm, row, col, strip);
  }
#endif
}

}  // namespace

// ---- Launch

template <class T, int SHAPE>
Status launch_mfma_shape(const FoldedProblem& problem, const MfmaPlan& plan, const Executor& executor) {
  using Cfg = Config<T, SHAPE>;
  const GemmProblem& gemm = problem.gemm;
  const int64_t tiles_m = ceil_div(gemm.m, Cfg::kBlock), tiles_n = ceil_div(gemm.n, Cfg::kBlock);
  const bool splits = plan.num_splits > 1;
  MfmaWork work{};
  work.num_tiles = Divisor(tiles_m * tiles_n);
  work.order = BlockOrder(tiles_m, tiles_n, plan.num_dies);
  work.num_splits = int(plan.num_splits);
  work.chunk_tiles = int(ceil_div(problem.chunk_k, Cfg::kBlockK));
  work.split_k = splits ? problem.chunk_k : gemm.k;
  work.is_wide = plan.copies != MfmaCopies::by_element, work.leaves_last = plan.leaves_last;
  ChunkSums<Acc<T>> chunk_sums(problem, gemm.n, executor);
  if (splits && !chunk_sums.allocate()) return Status::out_of_memory;
  work.partial = chunk_sums.sums;
  const auto launch_items = [&](auto is_a_k_major, auto is_b_k_major, auto are_rows_odd) {
    constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
    return launch_kernel(mfma<Cfg, kA, kB, decltype(are_rows_odd)::value>, tiles_m * tiles_n * plan.num_splits,
                         min_of(problem.batch_size - work.first_item, kMaxMfmaItems), Cfg::kThreads, 0, executor, work,
                         problem);
  };
  Status status = Status::ok;
  for (; status == Status::ok && work.first_item < problem.batch_size; work.first_item += kMaxMfmaItems) {
    status = visit_layouts(gemm, [&](auto is_a_k_major, auto is_b_k_major) {
      if constexpr (copies_odd_rows(Cfg::kDType, SHAPE)) {
        if (plan.copies == MfmaCopies::of_odd_rows) return launch_items(is_a_k_major, is_b_k_major, std::true_type{});
      }
      return launch_items(is_a_k_major, is_b_k_major, std::false_type{});
    });
  }
  return status == Status::ok && splits ? chunk_sums.template add<T>() : status;
}

}  // namespace tiledmm::gpu
