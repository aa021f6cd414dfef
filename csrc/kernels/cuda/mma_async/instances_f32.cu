// Instances of the mma_async kernel: fp32.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<float, 0>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<float, 1>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
