// The few_rows kernel in bf16.
#include "kernels/hip/few_rows/kernel.h"

namespace tiledmm::gpu {

template Status launch_few_rows_of<BFloat16>(const FoldedProblem&, const FewPlan&, const FewWork&, const Executor&);

}  // namespace tiledmm::gpu
