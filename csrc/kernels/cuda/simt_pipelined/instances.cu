// The instances of the simt_pipelined kernel, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its
// part in plan.h.
#include "kernels/cuda/simt_pipelined/kernel.h"

namespace tiledmm::gpu {

constexpr int kNumInstances = 4;
static_assert(kNumInstances == std::size(kSimtInstances));
template Status launch_instance<TILEDMM_INSTANCE>(int, const FoldedProblem&, const SimtWork&, const Executor&);

}  // namespace tiledmm::gpu
