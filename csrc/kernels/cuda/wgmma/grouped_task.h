// What the launchers of wgmma_grouped know before they choose an instance of the kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/problem.h"
#include "kernels/cuda/wgmma/grouped_plan.h"
#include "platform/instance.h"

namespace tiledmm::cuda {

struct GroupedTask {
  FoldedProblem problem;  // as the kernel computes it, of copies
  const WgmmaGroupedPlan& plan;
  cudaStream_t stream;
};

// The tiles that are compiled together, of kGroupedTileShapes.
inline constexpr Instance kGroupedInstances[] = {
    {DType::bf16, 0, 2}, {DType::f16, 0, 2}, {DType::bf16, 2, 5}, {DType::f16, 2, 5}};
static_assert(hold_all(kGroupedInstances, DType::bf16, kNumGroupedTileShapes) &&
              hold_all(kGroupedInstances, DType::f16, kNumGroupedTileShapes));

// Launches the kernel of the plan's tile; the reason why not, else null.
template <int INSTANCE>
const char* launch_grouped_instance(const GroupedTask& task);

}  // namespace tiledmm::cuda
