// What the launchers of the wgmma kernel make of a problem before they choose its instantiation.
#pragma once

#include "core/transposed.h"
#include "core/wgmma_config.h"
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

// Memory for the sums of chunks, given back when the kernels have been launched.
struct Workspace {
  const Executor& executor;
  void* memory = nullptr;
  ~Workspace() {
    if (memory) executor.release(executor.self, memory);
  }
};

}  // namespace
}  // namespace tiledmm::cuda
