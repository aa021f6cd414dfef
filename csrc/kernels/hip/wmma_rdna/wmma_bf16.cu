// The wmma_rdna kernel in bf16.
#include "kernels/hip/wmma_rdna/kernel.h"

namespace tiledmm::gpu {

template Status launch_wmma_tile<BFloat16>(const FoldedProblem&, const WmmaPlan&, const WmmaWork&, const Executor&);

}  // namespace tiledmm::gpu
