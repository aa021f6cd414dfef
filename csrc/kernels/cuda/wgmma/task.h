// What the launchers of the wgmma kernel know before they choose its instantiation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/math.h"
#include "core/problem.h"
#include "kernels/cuda/wgmma/plan.h"

namespace tiledmm::cuda {

struct Task {
  FoldedProblem problem;  // as the kernel computes it, of copies
  const WgmmaPlan& plan;
  bool is_transposed;  // of tf32: C is column-major
  float* partial;
  cudaStream_t stream;
};

// Distance of the rows of partial sums, which are stored in pairs. Where A's rows are summed as well, the last element
// of a row is that sum; rows still begin with sectors of the second-level cache where n is a multiple of eight.
constexpr int64_t ld_partial(int64_t n, bool sums_rows = false) { return round_up(n, 2) + (sums_rows ? 8 : 0); }

}  // namespace tiledmm::cuda
