// How few_columns.cu shares out a product of up to 8 columns, as plain data, and the time that takes. None of it
// changes a bit of the result.
#pragma once

#include "core/chip.h"
#include "core/math.h"
#include "core/operand.h"
#include "kernels/cuda/direct/costs.h"

namespace tiledmm {

inline constexpr int kFewColumns = 8, kFewColumnsMaxWarps = 4;

// An operand on its way to shared memory, line by line: rows along k, or the elements of all rows at one k.
struct CopiedLines {
  int32_t width;   // bytes of a copy
  int32_t copies;  // of a line
  int32_t pitch;   // bytes from a line to the next in shared memory
};

// A warp copies `rows` rows of A and all columns of B, and has a product for each lane, or those of a matrix
// instruction.
struct FewColumnsPlan {
  int32_t rows, log_cols;  // log_cols: of the columns for which there are lanes
  int32_t padded_k;        // zeros follow the last k, up to a step of the matrix instruction
  CopiedLines a, b;
  int32_t a_bytes, warp_bytes;  // in shared memory
  int32_t num_warps;            // of a block
};

// Rows that lie an odd number of 16 bytes apart are read without bank conflicts, 16 bytes each or eight rows of a
// fragment at a time; so are the fragments' elements across k, whose lines are 8 rows longer than these.
inline CopiedLines copied_lines(const OperandView& view, const FoldedProblem& problem, int64_t rows, int64_t padded_k,
                                bool is_mma) {
  const int64_t size = size_of(problem.gemm.dtype_a), width = copy_width(view, problem);
  const bool along_k = is_k_major(view);
  const int64_t bytes = size * (along_k ? padded_k : rows);
  const int64_t units = along_k ? ceil_div(bytes, 16) | 1 : ceil_div(bytes, 16) + (is_mma ? size / 2 : 0);
  return {int32_t(width), int32_t(ceil_div(bytes, width)), int32_t(16 * units)};
}

// False where the operands cannot be copied so, or do not find room.
inline bool plan_few_columns(const FoldedProblem& problem, bool is_mma, const Chip& chip, FewColumnsPlan& plan) {
  constexpr int64_t kMostBytes = 1 << 15;  // of a warp
  const GemmProblem& p = problem.gemm;
  const OperandView a = view_a(p), b = view_b(p);
  if (p.n > kFewColumns || copy_width(a, problem) < 4 || copy_width(b, problem) < 4) return false;
  plan.log_cols = p.n > 4 ? 3 : p.n > 2 ? 2 : p.n > 1 ? 1 : 0;
  plan.rows = is_mma ? 16 : 32 >> plan.log_cols;
  plan.padded_k = int32_t(is_mma ? round_up(p.k, 32 / size_of(p.dtype_a)) : p.k);
  if (double(p.k) * plan.rows * double(size_of(p.dtype_a)) > kMostBytes) return false;
  plan.a = copied_lines(a, problem, plan.rows, plan.padded_k, is_mma);
  plan.b = copied_lines(b, problem, p.n, plan.padded_k, is_mma);
  plan.a_bytes = plan.a.pitch * (is_k_major(a) ? plan.rows : plan.padded_k);
  plan.warp_bytes = plan.a_bytes + plan.b.pitch * (is_k_major(b) ? int32_t(p.n) : plan.padded_k);
  if (plan.warp_bytes > chip.max_shared_bytes) return false;
  const int64_t units = ceil_div(p.m, plan.rows) * problem.batch_size;
  plan.num_warps = int32_t(min_of(min_of(chip.max_shared_bytes / max_of(plan.warp_bytes, 1), kFewColumnsMaxWarps),
                                  max_of(units / chip.num_cus, 1)));
  return true;
}

// Microseconds by a simple model: what the warps of the busiest multiprocessor take, or memory; and, of a lone warp,
// the chain of its sums.
inline double few_columns_us(const DirectCosts& c, const FoldedProblem& problem, const FewColumnsPlan& plan,
                             bool is_mma, int num_cus) {
  const GemmProblem& p = problem.gemm;
  const double size = double(size_of(p.dtype_a)), m = double(p.m), n = double(p.n), k = double(p.k);
  const int64_t units = ceil_div(p.m, plan.rows) * problem.batch_size;
  const double copies = double(plan.a.copies) * double(is_k_major(view_a(p)) ? plan.rows : plan.padded_k) +
                        double(plan.b.copies) * double(is_k_major(view_b(p)) ? p.n : plan.padded_k);
  const double steps = is_mma ? double(plan.padded_k) * size / 32 : k;
  const double work =
      1e-3 * double(ceil_div(units, num_cus)) * (c.few_tile + c.few_copy * copies / 32 + c.few_step * steps);
  const double memory = size * double(problem.batch_size) * (m * k + k * n + m * n) / c.few_rate;
  return c.few_start + 1e-3 * c.few_chain * steps +
         (work > memory ? work + c.overlap * memory : memory + c.overlap * work);
}

}  // namespace tiledmm
