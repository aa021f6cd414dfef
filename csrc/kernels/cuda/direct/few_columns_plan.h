// How few_columns.cu shares out a product of few columns, as plain data, and the time that takes. None of it changes a
// bit of the result.
#pragma once

#include <algorithm>

#include "core/chip.h"
#include "core/math.h"
#include "core/operand.h"
#include "kernels/cuda/direct/costs.h"

namespace tiledmm {

// Columns of a matrix instruction, of which a warp has up to two; by multiply-adds there are no more than of one.
inline constexpr int kFewColumns = 8, kMostFewColumns = 2 * kFewColumns, kFewColumnsMaxWarps = 4;

// A warp copies `rows` rows of A and all columns of B, and has a product for each lane, or those of a matrix
// instruction. It has fewer rows than that where multiprocessors lack warps: its copies take longer than its sums. In
// fp32 A may lie along m, too. A line is then one k of all of the warp's rows.
struct FewColumnsPlan {
  int32_t rows, log_cols;         // log_cols: of the columns for which there are lanes
  int32_t padded_k;               // zeros follow the last k, up to a step of the matrix instruction
  int32_t copies, pitch;          // of a line along k: copies of 16 bytes; bytes from one to the next in shared memory
  int32_t bytes_of_a;             // in shared memory, before those of B
  int32_t warp_bytes, num_warps;  // shared memory of a warp; warps of a block
  bool is_a_along_m;
};

// False where an operand does not lie along k (in fp32 A: or m) in lines aligned to 16 bytes, or where a warp has no
// room for its part of both. Others would take more copies, which take as long as they save. So would other dtypes' A
// along m.
inline bool plan_few_columns(const FoldedProblem& problem, bool is_mma, const Chip& chip, FewColumnsPlan& plan) {
  constexpr int64_t kMostBytes = 40960;  // of a warp
  const GemmProblem& p = problem.gemm;
  const OperandView a = view_a(p), b = view_b(p);
  plan.is_a_along_m = p.stride_ak != 1;
  if (plan.is_a_along_m && (is_mma || p.dtype_a != DType::f32 || p.stride_am != 1)) return false;
  if (p.n > (is_mma ? kMostFewColumns : kFewColumns) || p.stride_bk != 1) return false;
  if (copy_width(a, problem) < 16 || copy_width(b, problem) < 16) return false;
  const int64_t size = size_of(p.dtype_a), padded_k = is_mma ? round_up(p.k, 32 / size) : p.k;
  const int64_t copies = ceil_div(padded_k * size, 16);
  // Rows that lie an odd number of 16 bytes apart are read without bank conflicts, 16 bytes each or eight rows of a
  // fragment at a time.
  const int64_t pitch = 16 * (copies | 1), row_bytes = plan.is_a_along_m ? p.k * size : pitch;
  plan.log_cols = p.n > 4 ? 3 : p.n > 2 ? 2 : p.n > 1 ? 1 : 0;
  plan.rows = is_mma ? 16 : 32 >> plan.log_cols;
  // No more rows than C has, and fewer where multiprocessors would have fewer than four warps. Along m halving stops at
  // a sector.
  const int64_t least_rows = plan.is_a_along_m ? 8 : 1;
  const auto are_enough = [&](int64_t rows) {
    constexpr int64_t kWarpsOfCu = 4, kFewRows = 4;
    return rows >= p.m || (rows >= kFewRows && ceil_div(p.m, rows) * problem.batch_size <= kWarpsOfCu * chip.num_cus);
  };
  while (plan.rows / 2 >= least_rows && are_enough(plan.rows / 2)) plan.rows /= 2;
  const int64_t bytes_of_a = plan.rows * row_bytes, warp_bytes = bytes_of_a + pitch * p.n;
  if (warp_bytes > min_of(kMostBytes, chip.max_shared_bytes)) return false;
  plan.padded_k = int32_t(padded_k), plan.copies = int32_t(copies);
  plan.pitch = int32_t(pitch), plan.bytes_of_a = int32_t(bytes_of_a), plan.warp_bytes = int32_t(warp_bytes);
  const int64_t warps_of_cu = ceil_div(p.m, plan.rows) * problem.batch_size / chip.num_cus;
  plan.num_warps =
      int32_t(min_of(min_of(chip.max_shared_bytes / warp_bytes, kFewColumnsMaxWarps), max_of(warps_of_cu, 1)));
  return true;
}

// Microseconds by a simple model: what the warps of the busiest multiprocessor take, or memory; and, of a lone warp,
// its copies and the chain of its sums.
inline double few_columns_us(const DirectCosts& c, const FoldedProblem& problem, const FewColumnsPlan& plan,
                             bool is_mma, int num_cus) {
  const GemmProblem& p = problem.gemm;
  const double size = double(size_of(p.dtype_a)), size_c = double(size_of(p.dtype_c)), m = double(p.m), n = double(p.n),
               k = double(p.k);
  const int64_t units = ceil_div(p.m, plan.rows) * problem.batch_size;
  const double copies_of_row = plan.is_a_along_m ? k * size / 16 : double(plan.copies);
  const double copies_of_b = double(plan.copies) * n, copies = copies_of_row * plan.rows + copies_of_b;
  const double steps = is_mma ? double(plan.padded_k) * size / 32 : k;
  const double multiply = is_mma ? c.multiply * double(ceil_div(p.n, kFewColumns)) : c.fma.value;
  const double own_step = plan.is_a_along_m ? c.few_step_m.value : c.few_step.value;
  const double step = std::max<double>(own_step, multiply);  // the latter: of slower chips, and of many columns
  const double work = 1e-3 * double(ceil_div(units, num_cus)) * (c.few_tile + c.few_copy * copies / 32 + step * steps);
  const double memory = double(problem.batch_size) * (size * (m * k + k * n) + size_c * m * n) / c.few_rate;
  const double lone_copies = copies_of_row * double(min_of(p.m, plan.rows)) + copies_of_b;
  return c.few_start + 1e-3 * (c.few_chain * steps + c.few_lone_copy * lone_copies / 32) +
         (work > memory ? work + c.few_overlap * memory : memory + c.few_overlap * work);
}

}  // namespace tiledmm
