// The wmma_rdna kernel in fp16.
#include "kernels/hip/wmma_rdna/kernel.h"

namespace tiledmm::gpu {

template Status launch_wmma_tile<Half>(const FoldedProblem&, const WmmaPlan&, const WmmaWork&, const Executor&);

}  // namespace tiledmm::gpu
