// Instances of the mma_async kernel: bf16.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<BFloat16, 0>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<BFloat16, 1>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
