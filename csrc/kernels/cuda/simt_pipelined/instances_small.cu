// Instances of the simt_pipelined kernel: tiles of 96 x 48, 64 x 48, 64 x 32.
#include "kernels/cuda/simt_pipelined/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<5>(const FoldedProblem&, const SimtWork&, const Executor&);  // 96 x 48
template Status launch_shape<6>(const FoldedProblem&, const SimtWork&, const Executor&);  // 64 x 48
template Status launch_shape<7>(const FoldedProblem&, const SimtWork&, const Executor&);  // 64 x 32

}  // namespace tiledmm::gpu
