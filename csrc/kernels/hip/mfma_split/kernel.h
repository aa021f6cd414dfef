// mfma_split: CDNA 3 and 4 (gfx942, gfx950), fp32 by products in fp16 with fp32 sums.
//
// Beyond mfma: fp32 operands, whose own matrix instructions have an eighth of the rate or less, are taken apart first
// (split_operands.h), and multiplied as first * first + 2^-11 (second * first + first * second); what is left out is
// 2^-22 of a product at most. The terms of 32 of k lie side by side in 128 bytes: a k tile of mfma, whose slices are
// the first and the second terms. A row of a warp's fragments starts from zero in each k tile: corrections, times
// 2^-11, the main products on top; then vector instructions scale its sums and add them to the total. So each has few
// registers for its sums, and other warps multiply meanwhile. Rows and columns that were flagged are computed again by
// a last kernel (fix_up.h). Limit: few rows are tiles that are empty for the most part. Source: Ootomo and Yokota,
// Recovering single precision accuracy from Tensor Cores (arXiv 2203.03341).
#pragma once

#include "kernels/hip/mfma_split/plan.h"
#include "kernels/hip/shared/block_order.h"
#include "kernels/hip/shared/warp_sums.h"
#include "kernels/split/operands.h"

namespace tiledmm::gpu {
namespace {

template <int SHAPE>
struct SplitConfig {
  using T = Half;
  static constexpr MfmaSplitShape kShape = kMfmaSplitShapes[SHAPE];
  static constexpr int kBlock = kShape.block;
  static constexpr int kWarps = kShape.warps_m * kShape.warps_n, kThreads = kWarps * 64;
  static constexpr int kWarpM = kBlock / kShape.warps_m, kWarpN = kBlock / kShape.warps_n;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 16;
  static constexpr bool kSumsChunks = false;  // the total lies here, beside WarpSums
  static constexpr int kStripN = kWarpN;
  static constexpr int kTileK = kSplitBlockK / 2;  // of k, both terms
  static_assert(2 * kTileK * 2 == kMfmaRowBytes, "a row of a tile");
};

struct MfmaSplitWork {
  BlockOrder order;
  int first_item;  // of the batch
  const Half *terms_a, *terms_b;
  const float *scales_a, *scales_b;
  int num_blocks, num_chunks;  // of k; each chunk has scales
  int padded_m, padded_n;      // of the scales
  SplitSteps steps;
};

#if defined(__gfx942__) || defined(__gfx950__)
#define TILEDMM_SPLITS_FP32

using Floats = ClangVector<float, 4>;  // a lane's sums of one instruction

// Scales of this lane's sums in a chunk of k: of its row in each row of fragments, of its four columns in each column.
template <class Cfg>
struct WarpScales {
  float of_rows[Cfg::kFragsM];
  Floats of_cols[Cfg::kFragsN];

  TILEDMM_DEVICE void load(const float* rows, const float* cols) {
    TILEDMM_UNROLL for (int i = 0; i < Cfg::kFragsM; ++i) of_rows[i] = load_global(rows + i * 16);
    TILEDMM_UNROLL for (int j = 0; j < Cfg::kFragsN; ++j) {
      of_cols[j] = bits_as<Floats>(load_global(reinterpret_cast<const Vector16*>(cols + j * 16)));
    }
  }
};

// total += products of a k tile, scaled. While a row of fragments is multiplied, the sums of the one before it are
// added.
template <class Cfg, class Sums>
TILEDMM_DEVICE void multiply_terms(Floats (&total)[Cfg::kFragsM][Cfg::kFragsN], const Sums& sums, const char* smem_a,
                                   const char* smem_b, const WarpScales<Cfg>& scales) {
  constexpr int kFragsM = Cfg::kFragsM, kFragsN = Cfg::kFragsN;
  Vector16 first_b[kFragsN], second_b[kFragsN];
  TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
    first_b[j] = sums.reader_b.load(smem_b, 0, j);
    second_b[j] = sums.reader_b.load(smem_b, 1, j);
  }
  float acc[2][kFragsN][4];
  const auto multiply = [&](int i, const Vector16(&b)[kFragsN], const Vector16& a) {
    TILEDMM_UNROLL for (int step = 0; step < kStepsOfPacket<Half>; ++step) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) multiply_packets<Half>(acc[i % 2][j], b[j], a, step);
    }
  };
  const auto add_row = [&](int i) {
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      const Floats scaled = bits_as<Floats>(acc[i % 2][j]) * scales.of_rows[i];
      // opaque: else it is computed later, and more sums wait.
      total[i][j] = opaque(__builtin_elementwise_fma(scaled, scales.of_cols[j], total[i][j]));
    }
  };
  Vector16 first_a = sums.reader_a.load(smem_a, 0, 0), second_a = sums.reader_a.load(smem_a, 1, 0);
  schedule_barrier();
  TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
    const Vector16 first = first_a, second = second_a;
    if (i + 1 < kFragsM) {
      first_a = sums.reader_a.load(smem_a, 0, i + 1);
      second_a = sums.reader_a.load(smem_a, 1, i + 1);
    }
    TILEDMM_UNROLL for (auto& sum : acc[i % 2]) { TILEDMM_UNROLL for (int e = 0; e < 4; ++e) sum[e] = 0; }
    multiply(i, first_b, second);
    multiply(i, second_b, first);
    if (i > 0) add_row(i - 1);
    TILEDMM_UNROLL for (auto& sum : acc[i % 2]) {
      const Floats corrections = bits_as<Floats>(sum) * (1.0f / 2048);
      __builtin_memcpy(sum, &corrections, sizeof sum);
    }
    multiply(i, first_b, first);
    schedule_barrier();  // else all fragments are loaded first, for which there are no registers
  }
  add_row(kFragsM - 1);
}

#endif

template <class Cfg>
TILEDMM_KERNEL(Cfg::kThreads, Cfg::kShape.blocks_per_cu)
mfma_split([[maybe_unused]] MfmaSplitWork work, [[maybe_unused]] FoldedProblem problem) {
#if defined(TILEDMM_SPLITS_FP32)
  using Sums = WarpSums<Cfg, true, true>;
  using Copy = TileCopy<Half, Cfg::kBlock, Cfg::kThreads, true, kHasStraightCopies>;
  constexpr int kBuffers = kHasStraightCopies ? 2 : 1;
  union Shared {
    Tiles<Cfg, kBuffers> tiles;
    typename Sums::Strip strips[Cfg::kWarps];  // after the last k tile
  };
  static_assert(sizeof(Shared) * Cfg::kShape.blocks_per_cu <= (kHasStraightCopies ? 160 : 64) << 10, "LDS of the CU");
  auto& smem = block_shared<Shared>();
  auto &tiles_a = smem.tiles.a, &tiles_b = smem.tiles.b;
  const TileIndex tile = work.order.tile_of(int(block_idx()));
  const int64_t row = int64_t(tile.m) * Cfg::kBlock, col = int64_t(tile.n) * Cfg::kBlock;
  const int batch_idx = work.first_item + int(block_idx_y());
  const SplitItem item = work.steps.item_of(problem, batch_idx);
  const int64_t m = problem.gemm.m, n = problem.gemm.n, row_terms = int64_t(work.num_blocks) * 2 * kSplitBlockK;
  Copy copy_a(Operand<Half>(work.terms_a + item.a * m * row_terms, row_terms, 1, m, row_terms), row, 0);
  Copy copy_b(Operand<Half>(work.terms_b + item.b * n * row_terms, row_terms, 1, n, row_terms), col, 0);
  Sums sums;
  Floats total[Cfg::kFragsM][Cfg::kFragsN];
  TILEDMM_UNROLL for (auto& row_of_sums : total) {
    TILEDMM_UNROLL for (auto& sum : row_of_sums) sum = Floats(-0.0f);  // adds nothing
  }
  const TileMoves<false, Copy, Copy> moves{copy_a, copy_b};
  const float* scales_a = work.scales_a + item.a * work.num_chunks * work.padded_m + row + sums.warp_m * Cfg::kWarpM;
  const float* scales_b = work.scales_b + item.b * work.num_chunks * work.padded_n + col + sums.warp_n * Cfg::kWarpN;
  scales_a += sums.lane % 16, scales_b += sums.lane / 16 * 4;

  if constexpr (kHasStraightCopies) {
    moves.after(tiles_a[0], tiles_b[0]);
    moves.after(tiles_a[1], tiles_b[1]);
    moves.wait();
  } else {
    moves.before(copy_a), moves.before(copy_b);
    moves.after(tiles_a[0], tiles_b[0]);
  }
  block_barrier();  // the first tiles are whole
  WarpScales<Cfg> scales;
  TILEDMM_NO_UNROLL for (int block = 0; block < work.num_blocks; ++block) {
    const bool is_last = block + 1 == work.num_blocks;
    if (block % (kSplitChunkK / kSplitBlockK) == 0) {
      scales.load(scales_a, scales_b);
      scales_a += work.padded_m, scales_b += work.padded_n;
    }
    TILEDMM_UNROLL for (int half = 0; half < 2; ++half) {
      const int buffer = half % kBuffers;
      const bool has_next = half == 0 || !is_last;
      if (has_next) moves.before(copy_a), moves.before(copy_b);
      set_priority<1>();
      multiply_terms<Cfg>(total, sums, tiles_a[buffer], tiles_b[buffer], scales);
      set_priority<0>();
      block_barrier();  // nobody reads the tile any more
      if (kHasStraightCopies ? !is_last : has_next) {
        moves.after(tiles_a[buffer], tiles_b[buffer]);
        moves.wait();
      } else if (kHasStraightCopies) {
        wait_for_copies();
      }
      block_barrier();  // the next tile is whole
    }
  }
  sums.for_each([&](int i, int j, int e) { sums.acc[i][j][e] = total[i][j][e]; });

  // Anew, so that the main loop need not keep it in registers.
  const GemmProblem gemm = item_of<true>(problem, opaque_uniform(batch_idx));
  sums.template store<float>(gemm, row, col, smem.strips[thread_idx() / 64]);
#endif
}

}  // namespace
}  // namespace tiledmm::gpu
