// What the launchers of the wgmma kernel make of a problem before they choose its instantiation.
#pragma once

#include "core/transposed.h"
#include "kernels/cuda/11_wgmma/plan.h"
#include "kernels/cuda/11_wgmma/tensor_map.h"

namespace tiledmm::cuda {
namespace {

// A problem and what was learned of it.
struct Task {
  GpuProblem problem;
  TensorMapView a, b, c;
  bool stores_by_tma;
  TilePlan plan;
  float* partial;
  int num_sms;
  cudaStream_t stream;
  bool is_transposed = false;  // of tf32: C is column-major
};

// Distance of the rows of partial sums: they are stored in pairs.
constexpr int64_t ld_partial(int64_t n) { return round_up(n, 2); }

}  // namespace
}  // namespace tiledmm::cuda
