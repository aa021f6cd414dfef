// How an operand lies in memory, and what follows from it for copies. Pure: models and launchers ask the same
// functions.
#pragma once

#include <cstdint>
#include <numeric>

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

// A batch's stride of one operand. Named, since nvcc writes such a member with parentheses that g++ warns of.
using BatchStride = int64_t BatchDim::*;

// A or B^T as the product sees it: m (n) rows of k elements.
struct OperandView {
  const void* data;
  int64_t rows, k;
  int64_t stride_row, stride_k;
  BatchStride batch_stride;
};

inline OperandView view_a(const GemmProblem& p) {
  return {p.a, p.m, p.k, p.stride_am, p.stride_ak, &BatchDim::stride_a};
}
inline OperandView view_b(const GemmProblem& p) {
  return {p.b, p.n, p.k, p.stride_bn, p.stride_bk, &BatchDim::stride_b};
}

// Whether k is the dimension to read along. Where no stride is 1, it is k.
constexpr bool is_k_major(int64_t stride_row, int64_t stride_k) { return stride_k == 1 || stride_row != 1; }
constexpr bool is_k_major(const OperandView& view) { return is_k_major(view.stride_row, view.stride_k); }

// Whether all of an operand can be read 16 bytes at a time: every row of every item begins at a multiple of 16 bytes.
inline bool is_aligned(const OperandView& view, const FoldedProblem& problem) {
  const int64_t elements = 16 / size_of(problem.gemm.dtype_a);
  const int64_t unit_stride = is_k_major(view) ? view.stride_k : view.stride_row;
  const int64_t row_stride = is_k_major(view) ? view.stride_row : view.stride_k;
  bool result = reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && unit_stride == 1 && row_stride % elements == 0;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    result = result && problem.batch_dims[d].*view.batch_stride % elements == 0;
  }
  return result;
}

// Bytes of an operand that can be copied at a time, in every row of every item: 16, 8 or 4; 2 where elements have to be
// gathered.
inline int copy_width(const OperandView& view, const FoldedProblem& problem) {
  if (view.stride_k != 1 && view.stride_row != 1) return 2;
  const int64_t num_rows = view.stride_k == 1 ? view.rows : view.k;
  const int64_t row_stride = view.stride_k == 1 ? view.stride_row : view.stride_k;
  const auto bytes = uint64_t(size_of(problem.gemm.dtype_a));
  auto bits = uint64_t(reinterpret_cast<uintptr_t>(view.data));
  if (num_rows > 1) bits |= uint64_t(row_stride) * bytes;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    bits |= uint64_t(problem.batch_dims[d].*view.batch_stride) * bytes;
  }
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
}

inline constexpr int kTensorMapBytes = 16;  // the copy engine's unit of addresses and strides

// How Hopper's copy engine sees an operand: a matrix of contiguous rows, and the batch as a third dimension, each item
// at a multiple of one step.
struct TensorMapView {
  bool is_k_major;
  int64_t inner, outer, ld;
  int64_t batch_step, batch_count;
};

// `rows` x k, one of the two contiguous. False where the copy engine cannot take it.
inline bool describe_matrix(const void* data, DType dtype, int64_t rows, int64_t k, int64_t stride_row,
                            int64_t stride_k, TensorMapView& view) {
  const int64_t unit = kTensorMapBytes / size_of(dtype);
  if (reinterpret_cast<uintptr_t>(data) % kTensorMapBytes) return false;
  const auto is_legal = [&](int64_t inner, int64_t outer, int64_t stride_inner, int64_t stride_outer) {
    return (stride_inner == 1 || inner == 1) && (outer == 1 || (stride_outer > 0 && stride_outer % unit == 0));
  };
  view.is_k_major = is_legal(k, rows, stride_k, stride_row);
  if (view.is_k_major) {
    view.inner = k, view.outer = rows, view.ld = rows == 1 ? round_up(k, unit) : stride_row;
    return true;
  }
  view.inner = rows, view.outer = k, view.ld = k == 1 ? round_up(rows, unit) : stride_k;
  return is_legal(rows, k, stride_row, stride_k);
}

// The items of a batch, however many dimensions it has: their offsets are multiples of the strides' common divisor.
inline bool describe_batch(const FoldedProblem& problem, BatchStride stride, TensorMapView& view) {
  const int64_t unit = kTensorMapBytes / size_of(problem.gemm.dtype_a);
  int64_t step = 0, extent = 0;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    step = std::gcd(step, problem.batch_dims[d].*stride);
    extent += (problem.batch_dims[d].size - 1) * problem.batch_dims[d].*stride;
  }
  view.batch_step = step ? step : unit;
  view.batch_count = extent / view.batch_step + 1;
  return view.batch_step % unit == 0 && view.batch_count <= INT32_MAX;
}

inline bool describe_operand(const OperandView& operand, const FoldedProblem& problem, TensorMapView& view) {
  return describe_matrix(operand.data, problem.gemm.dtype_a, operand.rows, operand.k, operand.stride_row,
                         operand.stride_k, view) &&
         describe_batch(problem, operand.batch_stride, view);
}
// C of m rows of n elements, n being the unit-stride dimension if there is one.
inline bool describe_result(const FoldedProblem& problem, TensorMapView& view) {
  const GemmProblem& p = problem.gemm;
  const bool is_matrix = describe_matrix(p.c, p.dtype_c, p.m, p.n, p.stride_cm, 1, view);
  return describe_batch(problem, &BatchDim::stride_c, view) && is_matrix;
}

// Whether the copy engine may store to it: it writes whole units, also beyond the end of a row.
inline bool is_storable(DType dtype, const TensorMapView& c) {
  return c.is_k_major && c.inner * size_of(dtype) % kTensorMapBytes == 0;
}

}  // namespace tiledmm
