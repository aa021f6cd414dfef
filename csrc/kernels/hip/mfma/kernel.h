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

#include "kernels/hip/mfma/plan.h"
#include "kernels/hip/shared/block_order.h"
#include "kernels/hip/shared/warp_sums.h"
#include "platform/chunk_sums.h"
#include "platform/instance.h"

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

}  // namespace

template <class T>
Status launch_mfma_of(const FoldedProblem& problem, const MfmaPlan& plan, const Executor& executor) {
  constexpr int kFirst = has_mfma_shape(sizeof(T) == 8 ? DType::f64 : DType::f16, 0) ? 0 : 1;
  return visit_number<kFirst, kNumMfmaShapes>(plan.shape, Status::unsupported, [&](auto number) {
    return launch_mfma_shape<T, decltype(number)::value>(problem, plan, executor);
  });
}

}  // namespace tiledmm::gpu
