// Long k of products by split operands: groups of kSplitGroupK elements, each a product of its own, whose results are
// added in the order of k. Included by the launchers of such products.
#pragma once

#include "core/split_layout.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

constexpr int kAddGroupThreads = 256;

// C += sums, [item][row][col]; then bias and activation. An element a thread.
TILEDMM_KERNEL(kAddGroupThreads, 1)
add_group(const float* sums, FoldedProblem problem) {
  let_later_kernels_start();
  wait_for_earlier_kernels();
  const int64_t count = problem.gemm.m * problem.gemm.n, idx = block_idx() * kAddGroupThreads + thread_idx();
  const int64_t item = idx / count;
  if (item >= problem.batch_size) return;
  const int64_t row = (idx - item * count) / problem.gemm.n, col = idx - item * count - row * problem.gemm.n;
  const GemmProblem p = item_of<true>(problem, item);
  const float c = load_global(static_cast<const float*>(p.c) + row * p.stride_cm + col * p.stride_cn);
  store_element<float>(p, row, col, c + load_global(sums + idx));
}

// Elements `first` and so many of k, without bias and activation.
inline FoldedProblem part_of_k(const FoldedProblem& problem, int64_t first, int64_t count) {
  FoldedProblem part = problem;
  GemmProblem& p = part.gemm;
  p.k = count;
  p.a = static_cast<const float*>(p.a) + first * p.stride_ak;
  p.b = static_cast<const float*>(p.b) + first * p.stride_bk;
  p.bias = nullptr;
  p.activation = Activation::none;
  return part;
}

// launch(part of the problem) for each group: the first one's C is the caller's, the others' is the workspace's.
template <class Launch>
Status launch_groups(const FoldedProblem& problem, const Executor& executor, const Launch& launch) {
  const GemmProblem& p = problem.gemm;
  if (p.k <= kSplitGroupK) return launch(problem);
  const int64_t count = problem.batch_size * p.m * p.n;
  auto* const sums = static_cast<float*>(executor.allocate(executor.self, size_t(count) * sizeof(float)));
  if (!sums) return Status::out_of_memory;
  Status status = launch(part_of_k(problem, 0, kSplitGroupK));
  for (int64_t first = kSplitGroupK; first < p.k && status == Status::ok; first += kSplitGroupK) {
    FoldedProblem part = part_of_k(problem, first, min_of(p.k - first, kSplitGroupK));
    part.gemm.c = sums, part.gemm.stride_cm = p.n, part.gemm.stride_cn = 1;
    int64_t items = 1;
    for (int32_t d = p.num_batch_dims - 1; d >= 0; --d) {
      part.batch_dims[d].stride_c = items * p.m * p.n;
      items *= part.batch_dims[d].size;
    }
    status = launch(part);
    if (status != Status::ok) break;
    const bool is_last = first + kSplitGroupK >= p.k;
    status = launch_kernel(add_group, ceil_div(count, kAddGroupThreads), 1, kAddGroupThreads, 0, executor,
                           static_cast<const float*>(sums), is_last ? problem : part_of_k(problem, 0, p.k));
  }
  executor.release(executor.self, sums);
  return status;
}

}  // namespace
}  // namespace tiledmm::gpu
