// What sums along a dimension (core/reduce.h) have in common: where rows lie, and how long the parts are that are
// summed by themselves.
#pragma once

#include "core/reduce.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {

// Running sums, as launch_reduce.
Status launch_running_sums(const ReduceProblem& problem, const Executor& executor);

namespace {

constexpr int kLanes = 32, kChunk = 1024;  // threads that work together, elements of a part
constexpr int kReduceThreads = 256;

// Where row `o` begins, in elements.
TILEDMM_DEVICE int64_t offset_of(const ReduceProblem& p, int64_t o, int64_t stride_outer, int64_t stride_inner) {
  if (p.outer == 1) return o * stride_inner;
  if (p.inner == 1) return o * stride_outer;
  const int64_t outer = o / p.inner;
  return outer * stride_outer + (o - outer * p.inner) * stride_inner;
}
TILEDMM_DEVICE int64_t offset_in_x(const ReduceProblem& p, int64_t o) {
  return offset_of(p, o, p.stride_outer, p.stride_inner);
}
TILEDMM_DEVICE int64_t offset_in_y(const ReduceProblem& p, int64_t o) {
  return offset_of(p, o, p.stride_y_outer, p.stride_y_inner);
}

}  // namespace
}  // namespace tiledmm::gpu
