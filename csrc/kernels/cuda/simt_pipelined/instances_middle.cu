// Instances of the simt_pipelined kernel: tiles of 128 x 64, 96 x 64, 64 x 64.
#include "kernels/cuda/simt_pipelined/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<2>(const FoldedProblem&, const SimtWork&, const Executor&);  // 128 x 64
template Status launch_shape<3>(const FoldedProblem&, const SimtWork&, const Executor&);  // 96 x 64
template Status launch_shape<4>(const FoldedProblem&, const SimtWork&, const Executor&);  // 64 x 64

}  // namespace tiledmm::gpu
