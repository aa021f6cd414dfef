// Host side of the wgmma kernel for fp32 with products in tf32: which operands are copied, which of the two transposed
// problems is computed.
#pragma once

#include <utility>

#include "core/wgmma_tf32_config.h"
#include "kernels/cuda/chunk_sums.h"
#include "kernels/cuda/transpose.h"
#include "kernels/cuda/wgmma_task.h"

namespace tiledmm::cuda {
namespace {

Tf32Operand plan_operand(bool is_readable, const Operand& operand) {
  if (!is_readable) return {Tf32Layout::unreadable, false};
  return {operand.is_k_major ? Tf32Layout::along_k : Tf32Layout::across_k, operand.ld % 8 == 0};
}

// C is row-major.
template <class LaunchTile>
Status launch_wgmma_tf32(const GpuProblem& row_major, const Executor& executor, const LaunchTile& launch_tile) {
  Task task{row_major, {}, {}, {}, false, {}, nullptr, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  GpuProblem& problem = task.problem;
  GemmProblem& p = problem.gemm;
  const auto describe_a = [&] {
    return describe_matrix(p.a, p.dtype, p.m, p.k, p.stride_am, p.stride_ak, task.a) &&
           describe_batch(problem, &BatchDim::stride_a, task.a);
  };
  const auto describe_b = [&] {
    return describe_matrix(p.b, p.dtype, p.n, p.k, p.stride_bn, p.stride_bk, task.b) &&
           describe_batch(problem, &BatchDim::stride_b, task.b);
  };
  const Tf32Operand a = plan_operand(describe_a(), task.a), b = plan_operand(describe_b(), task.b);
  const Tf32Plan plan = plan_tf32({p.m, p.n, p.k, problem.chunk_k, problem.batch_size, a, b}, executor.num_cus);
  CopyAlongK copies(executor);
  Status status = Status::ok;
  if (plan.copies_a) status = copies.add(problem, p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a);
  if (plan.copies_b && status == Status::ok)
    status = copies.add(problem, p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b);
  if (status != Status::ok) return status;
  if (!describe_a() || !describe_b()) return Status::launch_failed;
  task.is_transposed = plan.is_transposed;
  if (plan.is_transposed) {
    problem = transposed(problem);
    std::swap(task.a, task.b);
  }
  const bool is_matrix = plan.is_transposed ? describe_matrix(p.c, p.dtype, p.n, p.m, p.stride_cn, 1, task.c)
                                            : describe_matrix(p.c, p.dtype, p.m, p.n, p.stride_cm, 1, task.c);
  task.stores_by_tma =
      describe_batch(problem, &BatchDim::stride_c, task.c) && is_matrix && is_storable(p.dtype, task.c);
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
