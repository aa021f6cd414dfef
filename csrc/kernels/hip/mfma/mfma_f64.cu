// Instances of the mfma kernel: fp64.
#include "kernels/hip/mfma/kernel.h"

namespace tiledmm::gpu {

template Status launch_mfma_shape<double, 1>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<double, 2>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<double, 3>(const FoldedProblem&, const MfmaPlan&, const Executor&);

}  // namespace tiledmm::gpu
