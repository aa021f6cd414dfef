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
  bool is_transposed = false;  // of tf32: C is column-major
};

// The one of the two whose C is row-major.
GpuProblem row_major(const GpuProblem& problem) {
  return problem.gemm.stride_cn == 1 || problem.gemm.n == 1 ? problem : transposed(problem);
}

// Distance of the rows of partial sums: they are stored in pairs.
constexpr int64_t ld_partial(int64_t n) { return round_up(n, 2); }

}  // namespace
}  // namespace tiledmm::cuda
