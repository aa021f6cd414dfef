// The instances of the mma_async kernel, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its part in
// plan.h.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

constexpr int kNumInstances = 9;
static_assert(kNumInstances == std::size(kMmaAsyncInstances));
template Status launch_instance<TILEDMM_INSTANCE>(const FoldedProblem&, const MmaAsyncPlan&, const Executor&);

}  // namespace tiledmm::gpu
