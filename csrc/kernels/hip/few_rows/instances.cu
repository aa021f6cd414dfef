// The instances of the few_rows kernel, compiled in parts, side by side: TILEDMM_INSTANCE is the number of its dtype.
#include "kernels/hip/few_rows/kernel.h"

namespace tiledmm::gpu {

constexpr int kNumInstances = 4;
static_assert(kNumInstances == kNumDTypes);
using T = ElementOf<DType(TILEDMM_INSTANCE)>;
template Status launch_few_rows_of<T>(const FoldedProblem&, const FewPlan&, const FewWork&, const Executor&);

}  // namespace tiledmm::gpu
