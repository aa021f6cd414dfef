// Fewer, larger products from a batch.
#pragma once

#include "core/summation.h"

namespace tiledmm {

// A batch that only one operand has is rows (or columns) of one larger product, and dimensions that follow each other
// in memory are one. Writes the remaining dimensions to `dims`, and to the result's own as many as a GPU can take.
inline FoldedProblem fold_batch(const GemmProblem& problem, BatchDim* dims) {
  FoldedProblem result;  // not 344 zeros: nobody reads a dimension that is not there
  GemmProblem& folded = result.gemm;
  folded = problem;
  // Without groups all rows are behind the last one.
  const bool has_no_group = problem.grouping == Grouping::rows && problem.batch_dims[0].size == 0;
  if (problem.alpha == 0 || has_no_group) folded.k = 0;
  if (problem.beta == 0) folded.bias = nullptr;
  result.chunk_k = chunk_k(folded);
  result.asked_n = problem.n;
  if (is_grouped(problem)) {  // groups of k are a batch, those of rows are tiles of C
    result.batch_dims[0] = problem.batch_dims[0];
    result.batch_size = problem.grouping == Grouping::k ? problem.batch_dims[0].size : 1;
    return result;
  }
  int32_t count = 0;
  for (int32_t d = 0; d < problem.num_batch_dims; ++d) {
    const BatchDim& inner = problem.batch_dims[d];
    if (inner.size == 1) continue;
    BatchDim* outer = count ? &dims[count - 1] : nullptr;
    if (outer && outer->stride_a == inner.size * inner.stride_a && outer->stride_b == inner.size * inner.stride_b &&
        outer->stride_c == inner.size * inner.stride_c && outer->stride_bias == inner.size * inner.stride_bias) {
      *outer = {outer->size * inner.size, inner.stride_a, inner.stride_b, inner.stride_c, inner.stride_bias};
    } else {
      dims[count++] = inner;
    }
  }
  while (count) {
    const BatchDim& dim = dims[count - 1];
    const bool is_rows =
        dim.stride_b == 0 &&
        (folded.m == 1 || (dim.stride_a == folded.m * folded.stride_am && dim.stride_c == folded.m * folded.stride_cm &&
                           (!folded.bias || dim.stride_bias == folded.m * folded.stride_bias_m)));
    const bool is_cols =
        dim.stride_a == 0 &&
        (folded.n == 1 || (dim.stride_b == folded.n * folded.stride_bn && dim.stride_c == folded.n * folded.stride_cn &&
                           (!folded.bias || dim.stride_bias == folded.n * folded.stride_bias_n)));
    if (is_rows) {
      if (folded.m == 1) {
        folded.stride_am = dim.stride_a, folded.stride_cm = dim.stride_c, folded.stride_bias_m = dim.stride_bias;
      }
      folded.m *= dim.size;
    } else if (is_cols) {
      if (folded.n == 1) {
        folded.stride_bn = dim.stride_b, folded.stride_cn = dim.stride_c, folded.stride_bias_n = dim.stride_bias;
      }
      folded.n *= dim.size;
    } else {
      break;
    }
    --count;
  }
  folded.batch_dims = dims;
  folded.num_batch_dims = count;
  result.batch_size = batch_size(folded);
  for (int32_t d = 0; d < min_of(count, kMaxGpuBatchDims); ++d) result.batch_dims[d] = dims[d];
  return result;
}

}  // namespace tiledmm
