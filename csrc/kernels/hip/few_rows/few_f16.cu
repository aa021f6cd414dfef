// The few_rows kernel in fp16.
#include "kernels/hip/few_rows/kernel.h"

namespace tiledmm::gpu {

template Status launch_few_rows_of<Half>(const FoldedProblem&, const FewPlan&, const FewWork&, const Executor&);

}  // namespace tiledmm::gpu
