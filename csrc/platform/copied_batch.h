// The batch of an operand that is copied before it is multiplied. Where the batch repeats a matrix, it is copied once.
#pragma once

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

struct CopiedBatch {
  int64_t num_items;
  int num_dims;
  BatchDim dims[kMaxGpuBatchDims];  // stride_a of the source; size 1 where it is 0

  // Elements from the source's first matrix to that of `item`.
  TILEDMM_DEVICE int64_t offset(int64_t item) const {
    int64_t offset = 0;
    TILEDMM_NO_UNROLL for (int d = num_dims - 1; d >= 0; --d) {
      const int64_t outer = item / dims[d].size;
      offset += (item - outer * dims[d].size) * dims[d].stride_a;
      item = outer;
    }
    return offset;
  }
};

// `stride` is A's or B's of a batch dimension; it becomes the copy's, whose matrices take `elements` each.
CopiedBatch describe_copied_batch(FoldedProblem& problem, int64_t BatchDim::* stride, int64_t elements) {
  CopiedBatch batch{1, problem.gemm.num_batch_dims, {}};
  for (int d = batch.num_dims - 1; d >= 0; --d) {
    BatchDim& dim = problem.batch_dims[d];
    batch.dims[d] = {dim.*stride == 0 ? 1 : dim.size, dim.*stride, 0, 0, 0};
    if (dim.*stride != 0) dim.*stride = batch.num_items * elements;
    batch.num_items *= batch.dims[d].size;
  }
  return batch;
}

}  // namespace
}  // namespace tiledmm::gpu
