// The block tiles of the mfma_split kernel, and the pure function that chooses one. None of them changes a bit of the
// result: the order of summation is a function of k alone.
#pragma once

#include "core/chip.h"
#include "core/plan.h"
#include "kernels/hip/mfma_split/costs.h"
#include "kernels/hip/shared/plan.h"
#include "kernels/split/layout.h"

namespace tiledmm {

struct MfmaSplitShape {
  int block;  // rows and columns of a tile
  int warps_m, warps_n, blocks_per_cu;
};

inline constexpr MfmaSplitShape kMfmaSplitShapes[] = {{128, 2, 2, 2}, {64, 1, 2, 4}};
static_assert(sizeof kMfmaSplitShapes == kNumMfmaSplitShapes * sizeof(MfmaSplitShape), "costs.h has a place for each");

struct MfmaSplitPlan {
  int32_t shape, num_dies;
  SplitLayout a, b;
};

// The predicted time of the tiles, of which each multiplies three times.
inline double mfma_split_tiles_us(int shape_idx, const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  const MfmaSplitShape& shape = kMfmaSplitShapes[shape_idx];
  const int64_t blocks = ceil_div(p.m, shape.block) * ceil_div(p.n, shape.block) * problem.batch_size;
  const double rate = chip.mma_tflops[int(DType::f16)] * 1e6 / chip.num_cus;
  const double block_us = 3 * 2.0 * shape.block * shape.block * double(round_up(p.k, kSplitBlockK)) / rate;
  return rounds_us(blocks, shape.blocks_per_cu, block_us, kMfmaSplitCosts.busy[shape_idx],
                   kMfmaSplitCosts.alone[shape_idx], chip);
}

// The microseconds of a whole call, of so many rounds of groups: the split reads fp32 and writes as many bytes, which
// the tiles read; flags are looked at.
inline void for_each_mfma_split_plan(const FoldedProblem& problem, double rounds, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  MfmaSplitPlan plan{};
  lay_out_operands(plan, problem);
  plan.num_dies = chip.cus_per_die ? int(max_of(1, chip.num_cus / chip.cus_per_die)) : 1;
  const double per_us = chip.tbytes_per_second * 1e6 * kMfmaSplitCosts.bandwidth;
  const double terms = double(plan.a.bytes() + plan.b.bytes());
  const double result = 4.0 * double(problem.batch_size) * double(p.m) * double(p.n);
  for (int shape = 0; shape < kNumMfmaSplitShapes; ++shape) {
    const double tiles = mfma_split_tiles_us(shape, problem, chip);
    const double us = 3 * kMfmaSplitCosts.start + 2 * terms / per_us + overlapped_us(tiles, (terms + result) / per_us);
    plan.shape = shape;
    visit(plan, us * rounds, us);
  }
}

}  // namespace tiledmm
