// The tiles of wgmma_fp8_grouped: some of wgmma_fp8's, chosen as wgmma_grouped chooses among its own.
#pragma once

#include "kernels/cuda/wgmma/fp8_plan.h"
#include "kernels/cuda/wgmma/grouped_plan.h"

namespace tiledmm {

// Whether operands and result are those of most models: e4m3 by e4m3, rounded to 16 bits.
constexpr bool is_usual_fp8(DType a, DType b, bool is_c_f32) {
  return a == DType::e4m3 && b == DType::e4m3 && !is_c_f32;
}

// Whether there is a kernel of this tile for groups. Other dtypes have one tile for many rows and one for few; all
// tiles give the same bits.
constexpr bool serves_groups(const Fp8Tile& tile, Factors factors, bool is_usual) {
  const TileShape& shape = tile.shape;
  if (tile.sets == 1 && shape.block_n != 256) return false;
  const bool is_one_of_few =
      (shape.block_m == 128 && shape.block_n == 128) || (shape.block_m == 64 && shape.block_n == 64);
  return serves(tile, factors, false) && (is_usual ? shape.block_m == 64 || shape.block_n >= 128 : is_one_of_few);
}

// Shows a plan for each tile. A k tile takes as long as one of wgmma_fp8, and so does all that groups do not change.
inline void for_each_fp8_grouped_plan(const FoldedProblem& problem, const WgmmaCosts& own,
                                      const GroupedCosts& of_groups, int num_sms, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  GroupedCosts costs = of_groups;
  costs.rate = own.rate, costs.start = own.start, costs.tile = own.tile, costs.element = own.element;
  GroupedSearch search(problem, costs);
  for (int tile = 0; tile < kNumFp8Tiles; ++tile) {
    const Fp8Tile& made = kFp8Tiles[tile];
    if (!serves_groups(made, factors_of(p), is_usual_fp8(p.dtype_a, p.dtype_b, p.dtype_c == DType::f32))) continue;
    visit_grouped_tile(search, problem, costs, num_sms, tile, made.shape, matrix_unit_microseconds(own, made.shape),
                       visit);
  }
}

}  // namespace tiledmm
