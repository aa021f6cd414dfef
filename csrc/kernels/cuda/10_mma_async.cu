// Rung 10, mma_async.
#include "kernels/gpu/kernels.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"

namespace tiledmm::gpu {

Status launch_mma_async(const GpuProblem&, const Executor&) { return Status::unsupported; }

}  // namespace tiledmm::gpu
