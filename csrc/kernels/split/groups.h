// Long k of products by split operands: groups of kSplitGroupK elements, each a product of its own, whose results are
// added in the order of k. Included by the launchers of such products.
#pragma once

#include "kernels/split/layout.h"
#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

constexpr int kAddGroupThreads = 256;

// C = sums of the first groups, [group][item][row][col], or C += those of later ones; then the epilogue. An
// element a thread.
TILEDMM_KERNEL(kAddGroupThreads, 1)
add_groups(const float* sums, int64_t num_groups, bool is_first, FoldedProblem problem) {
  let_later_kernels_start();
  wait_for_earlier_kernels();
  const int64_t matrix = problem.gemm.m * problem.gemm.n, count = problem.batch_size * matrix;
  const int64_t idx = block_idx() * kAddGroupThreads + thread_idx(), item = idx / matrix;
  if (idx >= count) return;
  const int64_t row = (idx - item * matrix) / problem.gemm.n, col = idx - item * matrix - row * problem.gemm.n;
  const GemmProblem p = item_of<true>(problem, item);
  float total = -0.0f;  // adds nothing
  if (!is_first) total = load_global(static_cast<const float*>(p.c) + row * p.stride_cm + col * p.stride_cn);
  TILEDMM_NO_UNROLL for (int64_t group = 0; group < num_groups; ++group) {
    total += load_global(sums + idx + group * count);
  }
  store_element<float>(p, row, col, total);
}

// launch(a problem) for groups at a time, whose results it adds.
template <class Launch>
Status launch_groups(const FoldedProblem& problem, const Executor& executor, const Launch& launch) {
  const int64_t k = problem.gemm.k, count = problem.batch_size * problem.gemm.m * problem.gemm.n;
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
    status = launch_kernel(add_groups, ceil_div(count, kAddGroupThreads), 1, kAddGroupThreads, 0, executor,
                           static_cast<const float*>(sums), num_groups, first == 0, whole);
  }
  executor.release(executor.self, sums);
  return status;
}

}  // namespace
}  // namespace tiledmm::gpu
