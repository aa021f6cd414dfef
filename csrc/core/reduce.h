// Sums along one dimension of a tensor, as plain data.
//
//   y[o] = (sum over i < k of term(x[o][i])) / divisor           o < outer * inner; its root: takes_root
//   y[o][i] = x[o][0] + ... + x[o][i]                            is_running
//
// The order of summation is a function of k alone: a row's bits depend neither on the number of rows nor on strides.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tiledmm {

// spread: the squared difference from the mean of x[o]; x is fp32 or fp64.
enum class Term : int32_t { value = 0, square = 1, magnitude = 2, spread = 3 };

struct ReduceProblem {
  DType dtype, dtype_y;  // alike where is_running
  bool is_running;
  Term term;
  int64_t outer, inner, k;
  const void* x;
  int64_t stride_outer, stride_inner, stride_k;  // elements
  // A row that a CPU reads in segments of so many neighbouring elements, 64 at least, and how far apart these are. A
  // segment of k elements is the whole row.
  int64_t segment, stride_segment;
  double divisor;
  bool takes_root;
  void* y;                                             // contiguous, running sums excepted
  int64_t stride_y_outer, stride_y_inner, stride_y_k;  // of running sums
  void* mean;                                          // spread: as y, the means; null: not wanted
};

}  // namespace tiledmm
