// How mma_async multiplies operands of 8 bits (fp8.cu), as plain data, and the pure functions that choose. Nothing here
// changes a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/shared/tile_order.h"

namespace tiledmm {

// num_stages counts k tiles of 8 bits; of 16 bits there are two.
struct MmaFp8Shape {
  int block_m, block_n, block_k, warps_m, warps_n, num_stages, blocks_per_cu;
};
inline constexpr MmaFp8Shape kMmaFp8Shapes[kNumMmaFp8Shapes] = {
    {128, 128, 64, 2, 4, 3, 1}, {64, 64, 64, 2, 2, 4, 2}, {16, 32, 128, 1, 2, 8, 2}};

// Shared memory of a block, in bytes, with the padding of rows of 16 bits.
constexpr int64_t shared_bytes(const MmaFp8Shape& shape) {
  return int64_t(shape.block_m + shape.block_n) * (shape.num_stages * shape.block_k + 2 * 2 * (shape.block_k + 8));
}

struct MmaFp8Plan {
  bool is_exchanged;        // C^T = B^T A^T; what follows is of that product
  bool copies_a, copies_b;  // to rows along k that begin at multiples of 16 bytes
  int shape;
  int64_t group_m;  // rows of tiles that are computed together
};

inline bool needs_copy(const OperandView& view, const FoldedProblem& problem) {
  OperandView own = view;
  if (own.rows == 1) own.stride_row = 16;
  return own.k > 0 && (own.stride_k != 1 || !is_aligned(own, problem));
}

// Microseconds by a simple model: the fullest multiprocessor decides, or memory.
inline double mma_fp8_us(const MmaFp8Costs& c, const MmaFp8Plan& plan, const FoldedProblem& problem, int num_cus) {
  const MmaFp8Shape& shape = kMmaFp8Shapes[plan.shape];
  const GemmProblem& p = problem.gemm;
  const int64_t groups = is_grouped(p) ? max_of(problem.batch_dims[0].size, 1) : 1;
  const double m = double(p.m), n = double(p.n) * double(groups), k = double(p.k);
  const int64_t blocks = groups * ceil_div(ceil_div(p.m, groups), shape.block_m) * ceil_div(p.n, shape.block_n),
                per_cu = ceil_div(blocks, num_cus);
  const double alone = c.alone[plan.shape], full = shape.blocks_per_cu * c.busy[plan.shape];
  double step = double(per_cu / shape.blocks_per_cu) * full;
  if (const int64_t left = per_cu % shape.blocks_per_cu; left > 0) step += alone + double(left - 1) * (full - alone);
  const double multiply = step * double(ceil_div(p.k, 16));
  const double copies =
      (plan.copies_a ? c.copy + m * k / c.copied : 0) + (plan.copies_b ? c.copy + n * k / c.copied : 0);
  const double stored =
      double(size_of(p.dtype_c)) * m * double(p.n) / c.rate + c.element * shape.block_m * shape.block_n;
  return c.start + copies + max_of(multiply, (m + n) * k / c.rate) + stored;
}

inline void for_each_mma_fp8_plan(const FoldedProblem& given, const Chip& chip, PlanSearch& visit) {
  MmaFp8Plan plan{is_better_transposed(given.gemm), false, false, 0, 0};
  const FoldedProblem problem = plan.is_exchanged ? transposed(given) : given;
  const GemmProblem& p = problem.gemm;
  plan.copies_a = needs_copy(view_a(p), problem), plan.copies_b = needs_copy(view_b(p), problem);
  MmaFp8Costs borrowed;
  const MmaFp8Costs& costs = costs_for(kMmaFp8Costs, chip, borrowed);
  for (plan.shape = 0; plan.shape < kNumMmaFp8Shapes; ++plan.shape) {
    const MmaFp8Shape& shape = kMmaFp8Shapes[plan.shape];
    if (shared_bytes(shape) > chip.max_shared_bytes) continue;
    const int64_t tiles_m = num_tile_rows(problem, shape.block_m),
                  in_flight = int64_t(chip.num_cus) * shape.blocks_per_cu;
    plan.group_m = ceil_div(tiles_m, num_square_groups(tiles_m, in_flight, shape.block_m, shape.block_n));
    visit(plan, mma_fp8_us(costs, plan, problem, chip.num_cus));
  }
}

namespace gpu {

Status launch_mma_fp8(const FoldedProblem& given, const MmaFp8Plan& plan, const Executor& executor);

}  // namespace gpu

}  // namespace tiledmm
