// Instances of the mma_async kernel: fp64, tiles of 64 x 64, 32 x 64.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<double, 3>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<double, 4>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
