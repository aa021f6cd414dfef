// Rung 09, simt_pipelined.
#include "kernels/gpu/kernels.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"

namespace tiledmm::gpu {

Status launch_simt_pipelined(const GpuProblem&, const Executor&) { return Status::unsupported; }

}  // namespace tiledmm::gpu
