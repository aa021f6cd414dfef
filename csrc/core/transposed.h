// A product with C's rows and columns exchanged.
#pragma once

#include "core/problem.h"

namespace tiledmm {

// C^T = B^T A^T; the dimensions of the batch are the caller's matter.
inline GemmProblem transposed(const GemmProblem& from) {
  GemmProblem to = from;
  to.m = from.n, to.n = from.m;
  to.a = from.b, to.stride_am = from.stride_bn, to.stride_ak = from.stride_bk;
  to.b = from.a, to.stride_bk = from.stride_ak, to.stride_bn = from.stride_am;
  to.stride_cm = from.stride_cn, to.stride_cn = from.stride_cm;
  to.dtype_a = from.dtype_b, to.dtype_b = from.dtype_a;
  to.stride_bias_m = from.stride_bias_n, to.stride_bias_n = from.stride_bias_m;
  to.scale_a = from.scale_b, to.scale_b = from.scale_a;
  return to;
}

inline BatchDim transposed(const BatchDim& dim) {
  return {dim.size, dim.stride_b, dim.stride_a, dim.stride_c, dim.stride_bias};
}

// C^T = B^T A^T of each item of a batch. `dims` has room for the batch's dimensions and outlives the result.
inline GemmProblem transposed(const GemmProblem& from, BatchDim* dims) {
  GemmProblem to = transposed(from);
  for (int32_t d = 0; d < from.num_batch_dims; ++d) dims[d] = transposed(from.batch_dims[d]);
  to.batch_dims = dims;
  return to;
}

inline FoldedProblem transposed(const FoldedProblem& problem) {
  FoldedProblem result = problem;
  result.gemm = transposed(problem.gemm);
  for (BatchDim& dim : result.batch_dims) dim = transposed(dim);
  return result;
}

}  // namespace tiledmm
