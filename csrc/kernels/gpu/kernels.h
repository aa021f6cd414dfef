// Launchers of the GPU rungs, one file each. They check nothing: dispatch/gpu.cpp knows which problems a rung serves.
#pragma once

#include "core/api.h"
#include "core/mma_async_config.h"
#include "core/problem.h"

namespace tiledmm::gpu {

Status launch_naive(const GpuProblem& problem, const Executor& executor);
Status launch_block_tiled(const GpuProblem& problem, const Executor& executor);
Status launch_block_tiled_8(const GpuProblem& problem, const Executor& executor);
Status launch_block_tiled_32(const GpuProblem& problem, const Executor& executor);
Status launch_row_register_tiled(const GpuProblem& problem, const Executor& executor);
Status launch_register_tiled(const GpuProblem& problem, const Executor& executor);
Status launch_register_tiled_4x4(const GpuProblem& problem, const Executor& executor);
Status launch_mma(const GpuProblem& problem, const Executor& executor);
Status launch_mma_cached(const GpuProblem& problem, const Executor& executor);
Status launch_mma_double_buffered(const GpuProblem& problem, const Executor& executor);
Status launch_mma_output_cached(const GpuProblem& problem, const Executor& executor);
// kernels/cuda: NVIDIA's chips from sm_80 on, and sm_90a alone.
Status launch_simt_pipelined(const GpuProblem& problem, const Executor& executor);
Status launch_mma_async(const GpuProblem& problem, const Executor& executor);
// The same with a given tile and split instead of the fastest ones; null: those.
Status launch_mma_async_as(const MmaAsyncChoice* forced, const GpuProblem& problem, const Executor& executor);
Status launch_mma_unaligned(const GpuProblem& problem, int shape, const Executor& executor);  // of rung 10
Status launch_skinny(const GpuProblem& problem, const Executor& executor);
Status launch_wgmma(const GpuProblem& problem, const Executor& executor);

// The current device of the calling thread becomes `idx`, and what its runtime says of it; false where there is none.
bool use_device(int32_t idx, int32_t& arch, int32_t& num_cus, int32_t& warp_size);
// Why that, or a launch, failed, in the runtime's words; null where it has none. The runtime forgets it.
const char* take_error();

}  // namespace tiledmm::gpu
