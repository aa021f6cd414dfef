// A product as plans see it: its sizes, and what of its operands and its result decides how they are copied. A kernel
// makes it once for a problem.
#pragma once

#include "core/operand.h"
#include "core/problem.h"

namespace tiledmm {

// A, or B^T, in memory.
struct TaskOperand {
  bool is_k_major;
  int alignment;            // bytes: every row begins at a multiple of so many, as far as a kernel cares
  bool is_readable = true;  // as it lies; else it is copied first
};

// Whether it can be copied 16 bytes at a time.
constexpr bool is_aligned(const TaskOperand& operand) { return operand.alignment >= 16; }

struct GemmTask {
  DType dtype;
  int64_t m, n, k, chunk_k, batch;
  int num_batch_dims;
  TaskOperand a, b;
  bool is_c_aligned = false;  // rows of C consist of whole units of 16 bytes
  bool sums_rows = false;     // of A, too
};

// An operand as it lies, aligned to 16 bytes at most; to 8 where no stride is 1, since no rows are copied then.
inline TaskOperand operand_of(const OperandView& view, const FoldedProblem& problem) {
  const bool along_k = is_k_major(view), has_rows = view.stride_k == 1 || view.stride_row == 1;
  const int64_t size = size_of(problem.gemm.dtype_a);
  auto bits = int64_t(reinterpret_cast<uintptr_t>(view.data)) | size * (along_k ? view.stride_row : view.stride_k);
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) bits |= size * problem.batch_dims[d].*view.batch_stride;
  bits |= has_rows ? 16 : 8;
  return {along_k, int(bits & -bits)};
}

inline GemmTask task_of(const FoldedProblem& problem, const TaskOperand& a, const TaskOperand& b) {
  const GemmProblem& p = problem.gemm;
  return {p.dtype_a,        p.m, p.n, p.k,   problem.chunk_k,      problem.batch_size,
          p.num_batch_dims, a,   b,   false, p.row_sums != nullptr};
}

// C^T = B^T A^T.
constexpr GemmTask transposed(const GemmTask& from) {
  GemmTask to = from;
  to.m = from.n, to.n = from.m, to.a = from.b, to.b = from.a;
  return to;
}

}  // namespace tiledmm
