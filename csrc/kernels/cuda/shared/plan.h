// What the plans of NVIDIA's kernels share: the time of what overlaps, how Hopper's copy engine sees an operand, and a
// launch's shared memory. Pure: plans and launchers ask the same functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>

#include "core/math.h"
#include "core/operand.h"

namespace tiledmm {

// Bytes of shared memory of a block: of this launch, and the most that any launch of the kernel has.
struct SharedBytes {
  int of_launch, most;
  SharedBytes(int of_all) : SharedBytes(of_all, of_all) {}
  SharedBytes(int of_launch, int most) : of_launch(of_launch), most(most) {}
};

// The time of three things that go on side by side and wait for each other: about the longest, more where others take
// as long.
inline double overlapped(double a, double b, double c) {
  const auto fourth_power = [](double x) { return x * x * x * x; };
  return std::sqrt(std::sqrt(fourth_power(a) + fourth_power(b) + fourth_power(c)));
}

inline constexpr int kSectorBytes = 32;     // the second-level cache's unit of transfers
inline constexpr int kTensorMapBytes = 16;  // the copy engine's unit of addresses and strides

// A matrix of contiguous rows, and the batch as a third dimension, each item at a multiple of one step.
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
inline bool describe_batch(const FoldedProblem& problem, DType dtype, BatchStride stride, TensorMapView& view) {
  const int64_t unit = kTensorMapBytes / size_of(dtype);
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
         describe_batch(problem, problem.gemm.dtype_a, operand.batch_stride, view);
}
// C of m rows of n elements, n being the unit-stride dimension if there is one.
inline bool describe_result(const FoldedProblem& problem, TensorMapView& view) {
  const GemmProblem& p = problem.gemm;
  const bool is_matrix = describe_matrix(p.c, p.dtype_c, p.m, p.n, p.stride_cm, 1, view);
  return describe_batch(problem, p.dtype_c, &BatchDim::stride_c, view) && is_matrix;
}

// Whether the copy engine may store to it: it writes whole units, also beyond the end of a row.
inline bool is_storable(DType dtype, const TensorMapView& c) {
  return c.is_k_major && c.inner * size_of(dtype) % kTensorMapBytes == 0;
}

}  // namespace tiledmm
