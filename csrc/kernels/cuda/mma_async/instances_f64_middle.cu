// Instances of the mma_async kernel: fp64, tiles of 64 x 128, 64 x 64.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<double, 1>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<double, 2>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
