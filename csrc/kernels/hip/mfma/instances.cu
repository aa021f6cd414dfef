// The instances of the mfma kernel, compiled in parts, side by side: TILEDMM_INSTANCE is the number of its dtype.
#include "kernels/hip/mfma/kernel.h"

namespace tiledmm::gpu {

constexpr int kNumInstances = 4;
static_assert(kNumInstances == kNumDTypes);
using T = ElementOf<DType(TILEDMM_INSTANCE)>;
template Status launch_mfma_of<T>(const FoldedProblem&, const MfmaPlan&, const Executor&);

}  // namespace tiledmm::gpu
