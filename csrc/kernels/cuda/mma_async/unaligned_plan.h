// How mma_async multiplies 16-bit operands that are not aligned to 16 bytes without copying them first
// (unaligned.cu), as plain data, and the pure functions that say when that is faster. Nothing here
// changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <cmath>
#include <initializer_list>

#include "core/math.h"
#include "core/plan.h"
#include "core/problem.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/shared/tile_order.h"

namespace tiledmm {

struct MmaUnalignedShape {
  int block_m, block_n, block_k, warps_m, warps_n, num_stages, blocks_per_cu;
};
inline constexpr MmaUnalignedShape kMmaUnalignedShapes[kNumMmaUnalignedShapes] = {
    {16, 16, 128, 1, 1, 6, 3}, {32, 32, 128, 2, 2, 5, 2}, {64, 64, 64, 2, 2, 4, 2}};

// Shared memory of a block, in bytes, with the rows' padding: whichever of the layouts takes more.
constexpr int64_t shared_bytes(const MmaUnalignedShape& shape) {
  const int64_t k = shape.block_k, m = shape.block_m, n = shape.block_n;
  return 2 * shape.num_stages * (max_of(m * (k + 8), k * (m + 8)) + max_of(n * (k + 8), k * (n + 8))) + 4 * m * (n + 9);
}

// An operand over the whole batch: it is read as it lies if rows follow each other.
inline TaskOperand operand_of_rows(const OperandView& view, const FoldedProblem& problem) {
  TaskOperand operand = operand_of(view, problem);
  const bool along_k = operand.is_k_major, has_unit_stride = view.stride_k == 1 || view.stride_row == 1;
  const int64_t inner = along_k ? view.k : view.rows, outer = along_k ? view.rows : view.k;
  operand.is_readable = has_unit_stride && (outer == 1 || (along_k ? view.stride_row : view.stride_k) >= inner);
  return operand;
}

constexpr bool are_aligned(const GemmTask& p) { return is_aligned(p.a) && is_aligned(p.b); }
// Rows begin in the middle of a word of two elements.
constexpr bool is_odd(const TaskOperand& operand) { return operand.alignment == 2; }

inline double mma_unaligned_us(const MmaUnalignedCosts& c, int idx, const GemmTask& p, int num_cus) {
  const double alone = c.alone[idx], busy = c.busy[idx];
  const MmaUnalignedShape& shape = kMmaUnalignedShapes[idx];
  const int64_t splits = p.chunk_k < p.k ? ceil_div(p.k, p.chunk_k) : 1;
  const int64_t blocks = ceil_div(p.m, shape.block_m) * ceil_div(p.n, shape.block_n) * p.batch * splits;
  const int64_t at_once = int64_t(num_cus) * shape.blocks_per_cu, rounds = blocks / at_once;
  double steps = double(ceil_div(min_of(p.k, p.chunk_k), 16));
  if (is_odd(p.a) || is_odd(p.b)) steps *= c.odd[idx];
  for (const TaskOperand& operand : {p.a, p.b}) {
    if (is_aligned(operand)) steps *= c.aligned[idx];
    if (!operand.is_k_major) steps *= c.not_k_major[idx];
  }
  double multiply = double(rounds) * (steps * busy + c.round[idx]);
  if (const auto left = double(ceil_div(blocks - rounds * at_once, num_cus)); left > 0) {
    const double more = (busy - alone) / (shape.blocks_per_cu - 1);  // for another block
    multiply += steps * (alone + (left - 1) * more) + left * c.block[idx];
  }
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(p.batch);
  const double move = 2 * batch * (m * k + k * n + m * n) / c.rate;
  const double us = c.start[idx] + std::sqrt(std::hypot(multiply * multiply, move * move));
  return splits > 1 ? us + c.addition[idx] + 4 * double(splits) * batch * m * n / c.added : us;
}

// Calls visit(shape, microseconds) for those that fit into shared memory; none where no operand is unaligned, or one
// has no rows.
template <class Visit>
void for_each_mma_unaligned_shape(const MmaUnalignedCosts& costs, const GemmTask& p, const Chip& chip,
                                  const Visit& visit) {
  if (p.k == 0 || !p.a.is_readable || !p.b.is_readable || are_aligned(p)) return;
  const double splits = p.chunk_k < p.k ? double(ceil_div(p.k, p.chunk_k)) : 1;
  if (splits > 1 && 4 * splits * double(p.m) * double(p.n) * double(p.batch) > double(kMaxPartialBytes)) return;
  for (int i = 0; i < kNumMmaUnalignedShapes; ++i) {
    const MmaUnalignedShape& shape = kMmaUnalignedShapes[i];
    const double tiles = std::ceil(double(p.m) / shape.block_m) * std::ceil(double(p.n) / shape.block_n);
    if (tiles * splits > double(INT32_MAX) || shared_bytes(shape) > chip.max_shared_bytes) continue;
    visit(i, mma_unaligned_us(costs, i, p, chip.num_cus));
  }
}

// What it costs to copy unaligned operands first, and to store C element by element then, unless its rows are aligned.
inline double copies_us(const MmaAsyncCosts& c, const GemmTask& p, bool is_c_aligned) {
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(p.batch);
  const auto copy = [&](const TaskOperand& operand, double elements) {
    return is_aligned(operand) ? 0 : c.copy + elements / c.copied;
  };
  return copy(p.a, batch * m * k) + copy(p.b, batch * n * k) + (is_c_aligned ? 0 : batch * m * n * c.stored);
}

// The plans with operands exchanged or not.
inline void for_each_oriented_plan(const FoldedProblem& given, bool is_exchanged, const Chip& chip, PlanSearch& visit) {
  MmaAsyncPlan plan{is_exchanged, -1, false, false, {}};
  const FoldedProblem problem = oriented(given, is_exchanged);
  const GemmProblem& p = problem.gemm;
  GemmTask task = task_of(problem, operand_of_rows(view_a(p), problem), operand_of_rows(view_b(p), problem));
  assume_equal_groups(task, problem);
  const bool is_16_bit = size_of(p.dtype_a) == 2;
  const bool are_copied = is_16_bit && p.k > 0;  // what is not aligned, to where it is
  plan.is_a_vectorised = are_copied || is_vectorised(view_a(p), problem);
  plan.is_b_vectorised = are_copied || is_vectorised(view_b(p), problem);
  if (p.dtype_a ==
      DType::f64) {  // the kernel has no code for one of each: its other loops would come from memory later
    plan.is_a_vectorised = plan.is_b_vectorised = plan.is_a_vectorised && plan.is_b_vectorised;
  }
  const MmaAsyncCopies copies{plan.is_a_vectorised, plan.is_b_vectorised,
                              splits_sectors(p.dtype_a, p.stride_am, p.stride_ak),
                              splits_sectors(p.dtype_a, p.stride_bn, p.stride_bk), is_column_major(p)};
  const bool may_add_in_memory = problem.chunk_k >= p.k || is_exchanged == is_better_transposed(given.gemm);
  double other_us = 0;
  const auto visit_tiles = [&](const auto& costs) {
    for_each_mma_async(costs, problem, task, copies, chip, [&](const MmaAsyncChoice& choice, double us) {
      const bool adds_in_memory =
          choice.num_splits > 1 || mma_async_shape(p.dtype_a, choice.shape).total == ChunkTotal::in_c;
      if (adds_in_memory && !may_add_in_memory) return;
      plan.choice = choice;
      visit(plan, us + other_us);
    });
  };
  const bool is_batch = problem.batch_size > 1 || is_grouped(p);
  MmaAsyncCosts borrowed;
  const MmaAsyncCosts& costs =
      is_batch ? costs_for(kMmaAsyncBatchCosts, chip, borrowed) : costs_for(kMmaAsyncCosts, chip, borrowed);
  if (p.dtype_a == DType::f64) {
    MmaAsyncF64Costs borrowed_f64;
    visit_tiles(is_batch ? costs_for(kMmaAsyncF64BatchCosts, chip, borrowed_f64)
                         : costs_for(kMmaAsyncF64Costs, chip, borrowed_f64));
  } else if (!is_16_bit) {
    visit_tiles(costs);
  } else {
    other_us = copies_us(costs, task, p.stride_cm % 8 == 0);
    visit_tiles(costs);
    if (!task.is_wide && !is_grouped(p)) {  // the unaligned kernels store 16 bits
      MmaUnalignedCosts borrowed_unaligned;
      const MmaUnalignedCosts& unaligned_costs = costs_for(kMmaUnalignedCosts, chip, borrowed_unaligned);
      for_each_mma_unaligned_shape(unaligned_costs, task, chip, [&](int shape, double us) {
        plan.unaligned_shape = shape;
        visit(plan, us);
      });
    }
  }
}

// Tiles are wider than high: of 4 and 8 bytes, C^T may fill them better where C is 96 columns wide, or 128. Not where
// sums of chunks wait in memory, in rows of what the kernel computes. Of two plans that take as long, the one that
// stores rows of C along comes first.
inline void for_each_mma_async_plan(const FoldedProblem& given, const Chip& chip, PlanSearch& visit) {
  const bool is_along = is_column_major(given.gemm), is_better = is_better_transposed(given.gemm);
  const bool may_choose = size_of(given.gemm.dtype_a) > 2 && !is_grouped(given.gemm);
  for (const bool is_exchanged : {is_along, !is_along}) {
    if (may_choose || is_exchanged == is_better) for_each_oriented_plan(given, is_exchanged, chip, visit);
  }
  visit.complete<MmaAsyncPlan>([&](MmaAsyncPlan& plan) {
    if (plan.unaligned_shape >= 0) return;
    const FoldedProblem problem = oriented(given, plan.is_exchanged);
    const MmaAsyncShape& shape = mma_async_shape(problem.gemm.dtype_a, plan.choice.shape);
    const int64_t tiles_m = num_tile_rows(problem, shape.block_m),
                  in_flight = int64_t(chip.num_cus) * shape.blocks_per_cu;
    plan.choice.group_m = ceil_div(tiles_m, num_square_groups(tiles_m, in_flight, shape.block_m, shape.block_n));
  });
}

}  // namespace tiledmm
