// Instances of the mfma kernel: bf16.
#include "kernels/hip/mfma/kernel.h"

namespace tiledmm::gpu {

template Status launch_mfma_shape<BFloat16, 0>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<BFloat16, 1>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<BFloat16, 2>(const FoldedProblem&, const MfmaPlan&, const Executor&);
template Status launch_mfma_shape<BFloat16, 3>(const FoldedProblem&, const MfmaPlan&, const Executor&);

}  // namespace tiledmm::gpu
