// Host side of the wgmma kernel for fp32 with products in tf32: which operands are copied, which of the two transposed
// problems is computed.
#pragma once

#include <utility>

#include "kernels/cuda/wgmma/task.h"
#include "kernels/cuda/wgmma/tf32_plan.h"
#include "kernels/cuda/wgmma/transpose.h"
#include "platform/chunk_sums.h"

namespace tiledmm::cuda {
namespace {

// C is row-major.
template <class LaunchTile>
Status launch_wgmma_tf32(const FoldedProblem& row_major, const Tf32Plan& plan, const Executor& executor,
                         const LaunchTile& launch_tile) {
  Task task{row_major, {}, {}, {}, false, {}, nullptr, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  FoldedProblem& problem = task.problem;
  GemmProblem& p = problem.gemm;
  CopyAlongK copies(executor);
  Status status = Status::ok;
  if (plan.copies_a) status = copies.add(problem, p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a);
  if (plan.copies_b && status == Status::ok)
    status = copies.add(problem, p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b);
  if (status != Status::ok) return status;
  if (!describe_operand(view_a(p), problem, task.a) || !describe_operand(view_b(p), problem, task.b)) {
    return Status::launch_failed;
  }
  task.is_transposed = plan.is_transposed;
  if (plan.is_transposed) {
    problem = transposed(problem);
    std::swap(task.a, task.b);
  }
  task.stores_by_tma = describe_result(row_major, task.c) && is_storable(p.dtype_c, task.c);
  task.plan = plan.tiles;

  gpu::ChunkSums<float> chunk_sums(row_major, ld_partial(row_major.gemm.n), executor);
  if (task.plan.splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  task.partial = chunk_sums.sums;
  const char* refused = copies.launch();
  if (!refused) refused = launch_tile(task);
  if (refused) return Status::launch_failed;
  return task.plan.splits_chunks ? chunk_sums.add<float>() : Status::ok;
}

}  // namespace
}  // namespace tiledmm::cuda
