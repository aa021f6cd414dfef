// A product as plans see it: its sizes, and what of its operands and its result decides how they are copied. A kernel
// makes it once for a problem.
#pragma once

#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"

namespace tiledmm {

struct GemmTask {
  DType dtype;
  int64_t m, n, k, chunk_k, batch;
  int num_batch_dims;
  TaskOperand a, b;
  bool is_c_aligned = false;     // rows of C consist of whole units of 16 bytes
  bool sums_rows = false;        // of A, too
  bool is_wide = false;          // C has fp32, the operands 16 bits
  bool is_b_fp8 = false;         // B has 8 bits, and A more
  bool crosses_sectors = false;  // rows of C, which the copy engine stores, begin within sectors
  bool is_plain = false;         // C is the sums of one chunk of k, as the copy engine stores them
};

inline GemmTask task_of(const FoldedProblem& problem, const TaskOperand& a, const TaskOperand& b) {
  const GemmProblem& p = problem.gemm;
  return {p.dtype_a,
          p.m,
          p.n,
          p.k,
          problem.chunk_k,
          problem.batch_size,
          p.num_batch_dims,
          a,
          b,
          false,
          p.row_sums != nullptr,
          p.dtype_c != p.dtype_a,
          size_of(p.dtype_b) < size_of(p.dtype_a)};
}

// The host does not know the sizes of groups. A batch of products of equal size takes about as long: the task becomes
// that.
inline void assume_equal_groups(GemmTask& task, const FoldedProblem& problem) {
  if (!is_grouped(problem.gemm)) return;
  task.batch = max_of(problem.batch_dims[0].size, 1);
  int64_t& grouped_size = problem.gemm.grouping == Grouping::rows ? task.m : task.k;
  grouped_size = ceil_div(grouped_size, task.batch);
}

// C^T = B^T A^T.
constexpr GemmTask transposed(const GemmTask& from) {
  GemmTask to = from;
  to.m = from.n, to.n = from.m, to.a = from.b, to.b = from.a;
  return to;
}

}  // namespace tiledmm
