// Rung 14, skinny.
#include "kernels/gpu/kernels.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"

namespace tiledmm::gpu {

Status launch_skinny(const GpuProblem&, const Executor&) { return Status::unsupported; }

}  // namespace tiledmm::gpu
