// What the launchers of the wgmma kernel know before they choose its instantiation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/math.h"
#include "core/problem.h"
#include "kernels/cuda/wgmma/tf32_plan.h"
#include "platform/instance.h"

namespace tiledmm::cuda {

struct Task {
  FoldedProblem problem;  // as the kernel computes it, of copies
  const WgmmaPlan& plan;
  bool is_exchanged;  // of tf32: C is column-major
  float* partial;
  cudaStream_t stream;
};

// Distance of the rows of partial sums, which are stored in pairs. Where A's rows are summed as well, the last element
// of a row is that sum; rows still begin with sectors of the second-level cache where n is a multiple of eight.
constexpr int64_t ld_partial(int64_t n, bool sums_rows = false) { return round_up(n, 2) + (sums_rows ? 8 : 0); }

// The tiles that are compiled together, of kTileShapes and of kTf32TileShapes; the slowest first.
inline constexpr Instance kWgmmaInstances[] = {
    {DType::bf16, 2, 6},        {DType::f16, 2, 6},       {DType::bf16, 0, 2},       {DType::f16, 0, 2},
    {DType::bf16, 15, 18},      {DType::f16, 15, 18},     {DType::bf16, 8, 12},      {DType::f16, 8, 12},
    {DType::f32, 0, 2},         {DType::bf16, 6, 8},      {DType::f16, 6, 8},        {DType::f32, 2, 6},
    {DType::bf16, 12, 15},      {DType::f16, 12, 15},     {DType::bf16, 0, 8, true}, {DType::f16, 0, 8, true},
    {DType::bf16, 8, 18, true}, {DType::f16, 8, 18, true}};
static_assert(hold_all(kWgmmaInstances, DType::bf16, kNumTileShapes) &&
              hold_all(kWgmmaInstances, DType::f16, kNumTileShapes) &&
              hold_all(kWgmmaInstances, DType::bf16, kNumTileShapes, true) &&
              hold_all(kWgmmaInstances, DType::f16, kNumTileShapes, true) &&
              hold_all(kWgmmaInstances, DType::f32, kNumTf32TileShapes));

// Launches the kernel of the plan's tile; the reason why not, else null.
template <int INSTANCE>
const char* launch_instance(const Task& task);

}  // namespace tiledmm::cuda
