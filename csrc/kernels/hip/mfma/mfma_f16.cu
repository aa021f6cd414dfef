// Instances of the mfma kernel: fp16.
#include "kernels/hip/mfma/kernel.h"

namespace tiledmm::gpu {

template Status launch_mfma_shape<Half, 0>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<Half, 1>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<Half, 2>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<Half, 3>(const FoldedProblem&, const MfmaPlan&, const Executor&);

}  // namespace tiledmm::gpu
