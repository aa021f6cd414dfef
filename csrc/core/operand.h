// How an operand lies in memory, and what follows from it for copies. Pure: models and launchers ask the same
// functions.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tiledmm {

// A batch's stride of one operand. Named, since nvcc writes such a member with parentheses that g++ warns of.
using BatchStride = int64_t BatchDim::*;

// A or B^T as the product sees it: m (n) rows of k elements.
struct OperandView {
  const void* data;
  DType dtype;
  int64_t rows, k;
  int64_t stride_row, stride_k;
  BatchStride batch_stride;
};

inline OperandView view_a(const GemmProblem& p) {
  return {p.a, p.dtype_a, p.m, p.k, p.stride_am, p.stride_ak, &BatchDim::stride_a};
}
inline OperandView view_b(const GemmProblem& p) {
  return {p.b, p.dtype_b, p.n, p.k, p.stride_bn, p.stride_bk, &BatchDim::stride_b};
}

// Items of an operand that a batch does not repeat.
inline int64_t num_items(const FoldedProblem& problem, BatchStride stride) {
  int64_t items = 1;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    if (problem.batch_dims[d].*stride != 0) items *= problem.batch_dims[d].size;
  }
  return items;
}

// Whether k is the dimension to read along. Where no stride is 1, it is k.
constexpr bool is_k_major(int64_t stride_row, int64_t stride_k) { return stride_k == 1 || stride_row != 1; }
constexpr bool is_k_major(const OperandView& view) { return is_k_major(view.stride_row, view.stride_k); }

// An operand as plans see it.
struct TaskOperand {
  bool is_k_major;
  int alignment;            // bytes: every row of every item begins at a multiple of so many, as far as a kernel cares
  bool is_readable = true;  // as it lies; else it is copied first
};

// As it lies, aligned to 16 bytes at most; to 8 where no stride is 1, since no rows are copied then.
inline TaskOperand operand_of(const OperandView& view, const FoldedProblem& problem) {
  const bool along_k = is_k_major(view), has_rows = view.stride_k == 1 || view.stride_row == 1;
  const int64_t size = size_of(view.dtype);
  auto bits = int64_t(reinterpret_cast<uintptr_t>(view.data)) | size * (along_k ? view.stride_row : view.stride_k);
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) bits |= size * problem.batch_dims[d].*view.batch_stride;
  bits |= has_rows ? 16 : 8;
  return {along_k, int(bits & -bits)};
}

// Whether all of an operand can be copied 16 bytes at a time.
constexpr bool is_aligned(const TaskOperand& operand) { return operand.alignment >= 16; }
inline bool is_aligned(const OperandView& view, const FoldedProblem& problem) {
  return is_aligned(operand_of(view, problem));
}

// Bytes of an operand that can be copied at a time, in every row of every item: 16, 8 or 4; 2 where elements have to be
// gathered.
inline int copy_width(const OperandView& view, const FoldedProblem& problem) {
  if (view.stride_k != 1 && view.stride_row != 1) return 2;
  const int64_t num_rows = view.stride_k == 1 ? view.rows : view.k;
  const int64_t row_stride = view.stride_k == 1 ? view.stride_row : view.stride_k;
  const auto bytes = uint64_t(size_of(view.dtype));
  auto bits = uint64_t(reinterpret_cast<uintptr_t>(view.data));
  if (num_rows > 1) bits |= uint64_t(row_stride) * bytes;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    bits |= uint64_t(problem.batch_dims[d].*view.batch_stride) * bytes;
  }
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
}

}  // namespace tiledmm
