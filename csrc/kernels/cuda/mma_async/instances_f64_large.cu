// Instances of the mma_async kernel: fp64, tiles of 128 x 128.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<double, 0>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
