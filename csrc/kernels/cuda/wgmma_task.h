// What the launchers of the wgmma kernel make of a problem before they choose its instantiation.
#pragma once

#include "core/transposed.h"
#include "core/wgmma_config.h"
#include "kernels/cuda/chunk_sums.h"
#include "kernels/cuda/tensor_map.h"

namespace tiledmm::cuda {
namespace {

// A problem and what was learned of it.
struct Task {
  GpuProblem problem;
  Operand a, b, c;
  bool stores_by_tma;
  TilePlan plan;
  float* partial;
  int num_sms;
  cudaStream_t stream;
};

// The one of the two whose C is row-major.
GpuProblem row_major(const GpuProblem& problem) {
  return problem.gemm.stride_cn == 1 || problem.gemm.n == 1 ? problem : transposed(problem);
}

// Launches the kernels of a planned task by `launch`; where chunks are computed side by side, with memory for their
// sums and a kernel behind that adds them up to the C of `problem`, which is row-major.
template <class Launch>
Status launch_with_chunks(Task& task, const GpuProblem& problem, const Executor& executor, const Launch& launch) {
  const GemmProblem& p = problem.gemm;
  const PartialSums sums{nullptr, round_up(p.n, 2), int(ceil_div(p.k, problem.chunk_k))};
  if (task.plan.splits_chunks) {
    const int64_t count = problem.batch_size * sums.num_chunks * p.m * sums.ld;
    task.partial = static_cast<float*>(executor.allocate(executor.self, size_t(count) * sizeof(float)));
    if (!task.partial) return Status::out_of_memory;
  }
  const char* refused = launch();
  if (task.plan.splits_chunks) {
    if (!refused) refused = launch_sum_chunks(problem, {task.partial, sums.ld, sums.num_chunks}, task.stream);
    executor.release(executor.self, task.partial);
  }
  return refused ? Status::launch_failed : Status::ok;
}

}  // namespace
}  // namespace tiledmm::cuda
