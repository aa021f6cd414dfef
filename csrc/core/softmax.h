// Softmax as plain data. Weights of attention: of each row of scores, of `sizes` of them,
//
//   t[i] = scale * x[i] + mask[i]
//   y[i] = exp(t[i]) / (exp(t[0]) + ... + exp(t[k - 1])), or 0 where each t[i] is minus infinity
//
// Softmax of the columns of matrices, `outer` of them with k rows of `inner` elements, all contiguous, where g is the
// gradient of y and dx that of x:
//
//                 y[i]                                            dx[i]
//   softmax       exp(x[i]) / (exp(x[0]) + ... + exp(x[k - 1]))   y[i] * (g[i] - (y[0] * g[0] + ... ))
//   is_log        its logarithm                                   g[i] - exp(y[i]) * (g[0] + ... + g[k - 1])
//
// The order of summation is a function of k alone: the bits of a row, or of a column, depend neither on others nor on
// strides.
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

struct ColumnSoftmaxProblem {
  DType dtype;
  bool is_log;
  int64_t outer, k, inner;
  const void* x;     // of a gradient: y, whose logarithms are at most 0
  const void* grad;  // null: no gradient is wanted
  void* result;
};

}  // namespace tiledmm
