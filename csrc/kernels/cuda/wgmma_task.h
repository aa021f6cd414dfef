// What the launchers of the wgmma kernel make of a problem before they choose its instantiation.
#pragma once

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

// C^T = B^T A^T.
GpuProblem transposed_problem(const GpuProblem& problem) {
  GpuProblem transposed = problem;
  const GemmProblem& p = problem.gemm;
  GemmProblem& q = transposed.gemm;
  q.m = p.n, q.n = p.m;
  q.a = p.b, q.stride_am = p.stride_bn, q.stride_ak = p.stride_bk;
  q.b = p.a, q.stride_bk = p.stride_ak, q.stride_bn = p.stride_am;
  q.stride_cm = p.stride_cn, q.stride_cn = p.stride_cm;
  q.stride_bias_m = p.stride_bias_n, q.stride_bias_n = p.stride_bias_m;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    transposed.batch_dims[d].stride_a = problem.batch_dims[d].stride_b;
    transposed.batch_dims[d].stride_b = problem.batch_dims[d].stride_a;
  }
  return transposed;
}

// The one of the two whose C is row-major.
GpuProblem row_major(const GpuProblem& problem) {
  return problem.gemm.stride_cn == 1 || problem.gemm.n == 1 ? problem : transposed_problem(problem);
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
