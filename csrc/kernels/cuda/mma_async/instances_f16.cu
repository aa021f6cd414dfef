// Instances of the mma_async kernel: fp16.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<Half, 0>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<Half, 1>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
