// Instances of the mma_async kernel: fp64, tiles of 32 x 64, 32 x 32, 16 x 32 with 7 and 10 stages.
#include "kernels/cuda/mma_async/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<double, 5>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<double, 6>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<double, 7>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);
template Status launch_shape<double, 8>(const FoldedProblem&, const MmaAsyncChoice&, bool, const Executor&);

}  // namespace tiledmm::gpu
