// Instances of the mfma kernel: fp32.
#include "kernels/hip/mfma/kernel.h"

namespace tiledmm::gpu {

template Status launch_mfma_shape<float, 0>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<float, 1>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<float, 2>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<float, 3>(const FoldedProblem&, const MfmaPlan&, const Executor&);

}  // namespace tiledmm::gpu
