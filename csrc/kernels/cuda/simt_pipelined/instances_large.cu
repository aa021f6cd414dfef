// Instances of the simt_pipelined kernel: tiles of 256 x 128, 128 x 96.
#include "kernels/cuda/simt_pipelined/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<0>(const FoldedProblem&, const SimtWork&, const Executor&);  // 256 x 128
template Status launch_shape<1>(const FoldedProblem&, const SimtWork&, const Executor&);  // 128 x 96

}  // namespace tiledmm::gpu
