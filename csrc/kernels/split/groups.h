// Long k of products by split operands: groups of kSplitGroupK elements, each a product of its own, whose results are
// added in the order of k. Included by the launchers of such products.
#pragma once

#include "kernels/split/layout.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {
namespace {

// launch(a problem) for groups at a time, whose results it adds.
template <class Launch>
Status launch_groups(const FoldedProblem& problem, const Executor& executor, const Launch& launch) {
  const int64_t k = problem.gemm.k;
  if (k <= kSplitGroupK) return launch(problem);
  auto* const sums = static_cast<float*>(executor.allocate(executor.self, size_t(group_sum_bytes(problem))));
  if (!sums) return Status::out_of_memory;
  Status status = Status::ok;
  for (int64_t first = 0, next = 0; first < k && status == Status::ok; first = next) {
    const int64_t num_groups = max_of(1, min_of((k - first) / kSplitGroupK, groups_at_once(problem)));
    next = first + num_groups * kSplitGroupK;
    FoldedProblem part = groups_of(problem, first, min_of(k - first, kSplitGroupK), num_groups);
    part.gemm.c = sums;
    status = launch(part);
    if (status != Status::ok) break;
    FoldedProblem whole = problem;
    if (next < k) drop_epilogue(whole.gemm);
    const auto add = first == 0 ? add_chunks_of<float> : add_chunks_of<float, true>;
    status = add(whole, sums, problem.gemm.n, num_groups, executor);
  }
  executor.release(executor.self, sums);
  return status;
}

}  // namespace
}  // namespace tiledmm::gpu
