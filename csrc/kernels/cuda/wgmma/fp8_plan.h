// The block tiles of wgmma_fp8, and the pure functions that choose among them.
//
// To plans a product in 8 bits is one in 16 bits with half of its k: a k tile has as many bytes and takes the matrix
// unit as long. So wgmma's model serves both.
#pragma once

#include "kernels/cuda/wgmma/plan.h"

namespace tiledmm {

// A consumer's columns are multiplied in parts, whose sums over one k tile are added to its totals; with two sets of
// sums, while the next part is multiplied.
struct Fp8Tile {
  TileShape shape;
  int part_n, sets;
};
inline constexpr Fp8Tile kFp8Tiles[] = {
    {{128, 256}, 128, 1}, {{128, 192}, 96, 2}, {{128, 128}, 128, 2}, {{128, 64}, 64, 2},
    {{64, 128}, 64, 2},   {{64, 64}, 64, 2},   {{64, 32}, 32, 2},
};
inline constexpr int kNumFp8Tiles = int(sizeof(kFp8Tiles) / sizeof(Fp8Tile));

// How a kernel finds the factors of blocks: those of columns are one for a part, or one for each column.
enum class Factors : int32_t { rows = 0, blocks = 1, columns = 2 };
constexpr Factors factors_of(const GemmProblem& p) {
  if (p.scaling == Scaling::rows) return Factors::rows;
  return p.scale_b.rows_of_block == 1 ? Factors::columns : Factors::blocks;
}
// Whether there is a kernel of this tile for them. Parts lie within a block of 128 columns. Where each column has a
// factor, a tile has up to 128 columns.
constexpr bool serves(const Fp8Tile& tile, Factors factors, bool is_c_f32) {
  switch (factors) {
    case Factors::rows:
      return true;
    case Factors::blocks:
      return 128 % tile.part_n == 0 && !(tile.sets == 1 && is_c_f32);
    default:
      return tile.shape.block_n <= 128;
  }
}

// A's and B's rows as bytes in pairs.
inline GemmTask in_pairs(const GemmTask& task, const WgmmaPlan& plan, const GemmProblem& p) {
  GemmTask pairs = task;
  pairs.dtype = DType::f16;
  pairs.k = ceil_div(task.k, 2);
  pairs.chunk_k = max_of(pairs.k, 1);
  pairs.a.alignment = row_alignment(plan.copies_a ? 0 : reinterpret_cast<uintptr_t>(p.a), plan.a.ld / 2);
  pairs.b.alignment = row_alignment(plan.copies_b ? 0 : reinterpret_cast<uintptr_t>(p.b), plan.b.ld / 2);
  pairs.is_wide = p.dtype_c == DType::f32;
  pairs.crosses_sectors = false;  // what that takes was not measured
  return pairs;
}

// Shows a plan for each tile, and for each with exchanged roles.
inline void for_each_fp8_plan(const WgmmaCosts& costs, const FoldedProblem& problem, int num_sms, PlanSearch& visit) {
  WgmmaSearch search = wgmma_search(costs, problem, num_sms);
  const GemmProblem p = search.plan.is_column_major ? transposed(problem.gemm) : problem.gemm;
  search.task = in_pairs(search.task, search.plan, p);
  const Factors factors = factors_of(p);
  for (const bool is_exchanged : {false, true}) {
    const GemmTask task = is_exchanged ? transposed(search.task) : search.task;
    if (is_exchanged && (!task.is_c_aligned || task.is_wide || factors != Factors::rows)) continue;
    WgmmaPlan made = search.plan;
    if (is_exchanged) std::swap(made.a, made.b);
    for (int i = 0; i < kNumFp8Tiles; ++i) {
      const Fp8Tile& tile = kFp8Tiles[i];
      if (!serves(tile, factors, task.is_wide) || (is_exchanged && !stores_transposed(tile.shape))) continue;
      made.tiles = {i, tile.shape, false, false, 0, 0, is_exchanged, 0, 1};
      visit_orders(search, made, task, num_sms, visit);
    }
  }
  visit.complete<WgmmaPlan>([&](WgmmaPlan& plan) {
    plan.schedule = schedule_tiles(plan, plan.tiles.is_exchanged ? transposed(search.task) : search.task, num_sms);
  });
}

}  // namespace tiledmm
