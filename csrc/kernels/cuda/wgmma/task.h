// What the launchers of the wgmma kernel make of a problem before they choose its instantiation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"
#include "kernels/cuda/wgmma/plan.h"

namespace tiledmm::cuda {

// A problem and what was learned of it.
struct Task {
  FoldedProblem problem;
  TensorMapView a, b, c;
  bool stores_by_tma;
  TilePlan plan;
  float* partial;
  int num_sms;
  cudaStream_t stream;
  bool is_exchanged = false;  // of tf32: C is column-major
};

// Distance of the rows of partial sums, which are stored in pairs. Where A's rows are summed as well, the last element
// of a row is that sum; rows still begin with sectors of the second-level cache where n is a multiple of eight.
constexpr int64_t ld_partial(int64_t n, bool sums_rows = false) { return round_up(n, 2) + (sums_rows ? 8 : 0); }

}  // namespace tiledmm::cuda
