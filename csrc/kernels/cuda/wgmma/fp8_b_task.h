// What the launcher of wgmma_fp8_b knows before it chooses an instance of the kernel.
#pragma once

#include <cuda_runtime.h>

#include "core/problem.h"
#include "kernels/cuda/wgmma/fp8_b_plan.h"
#include "platform/instance.h"

namespace tiledmm::cuda {

struct Fp8BTask {
  const FoldedProblem& problem;
  const Fp8BPlan& plan;
  float* partial;  // where chunks are split: their sums, [chunk][row of A][column]
  cudaStream_t stream;
};

// The tiles that are compiled together, of kFp8BTiles.
inline constexpr Instance kFp8BInstances[] = {
    {DType::bf16, 8, 10}, {DType::f16, 8, 10}, {DType::bf16, 10, 12}, {DType::f16, 10, 12},
    {DType::bf16, 0, 4},  {DType::f16, 0, 4},  {DType::bf16, 4, 8},   {DType::f16, 4, 8},
};
static_assert(hold_all(kFp8BInstances, DType::bf16, kNumFp8BTiles) &&
              hold_all(kFp8BInstances, DType::f16, kNumFp8BTiles));

// Launches the kernel of the plan's tile; the reason why not, else null.
template <int INSTANCE>
const char* launch_fp8_b_instance(const Fp8BTask& task);

}  // namespace tiledmm::cuda
