// What the launcher of wgmma_fp8_grouped knows before it chooses an instance of the kernel.
#pragma once

#include "kernels/cuda/wgmma/fp8_grouped_plan.h"
#include "kernels/cuda/wgmma/fp8_task.h"
#include "kernels/cuda/wgmma/grouped_task.h"

namespace tiledmm::cuda {

// What is compiled together: all tiles for the dtypes of A and B, a C of fp32 or of 16 bits, and a kind of factors.
inline constexpr Fp8Instance kFp8GroupedInstances[] = {
    {DType::e4m3, DType::e4m3, false, Factors::blocks}, {DType::e4m3, DType::e4m3, false, Factors::rows},
    {DType::e4m3, DType::e4m3, true, Factors::blocks},  {DType::e4m3, DType::e4m3, true, Factors::rows},
    {DType::e4m3, DType::e5m2, false, Factors::rows},   {DType::e4m3, DType::e5m2, true, Factors::rows},
    {DType::e5m2, DType::e4m3, false, Factors::rows},   {DType::e5m2, DType::e4m3, true, Factors::rows},
    {DType::e5m2, DType::e5m2, false, Factors::rows},   {DType::e5m2, DType::e5m2, true, Factors::rows},
};

// Launches the kernel of the plan's tile; the reason why not, else null.
template <int INSTANCE>
const char* launch_fp8_grouped_instance(const GroupedTask& task);

}  // namespace tiledmm::cuda
