// Weights of attention, as plain data: of each row of scores, of `sizes` of them,
//
//   t[i] = scale * x[i] + mask[i]
//   y[i] = exp(t[i]) / (exp(t[0]) + ... + exp(t[k - 1])), or 0 where each t[i] is minus infinity
//
// The order of summation is a function of k alone: a row's bits depend neither on other rows nor on strides.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tiledmm {

struct SoftmaxProblem {
  int64_t sizes[3], k;
  const float* x;  // contiguous
  float scale;
  DType dtype_mask, dtype_y;  // dtype_mask: fp32, or that of y, which is no fp64
  const void* mask;           // null: none
  int64_t stride_mask[4];     // elements; 0 where the mask repeats
  void* y;                    // contiguous
};

}  // namespace tiledmm
