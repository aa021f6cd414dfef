// Instances of the simt_pipelined kernel: tiles of 64 x 32, 32 x 32, 16 x 32, 8 x 32, 4 x 32.
#include "kernels/cuda/simt_pipelined/kernel.h"

namespace tiledmm::gpu {

template Status launch_shape<8>(const FoldedProblem&, const SimtWork&, const Executor&);   // 64 x 32
template Status launch_shape<9>(const FoldedProblem&, const SimtWork&, const Executor&);   // 32 x 32
template Status launch_shape<10>(const FoldedProblem&, const SimtWork&, const Executor&);  // 16 x 32
template Status launch_shape<11>(const FoldedProblem&, const SimtWork&, const Executor&);  // 8 x 32
template Status launch_shape<12>(const FoldedProblem&, const SimtWork&, const Executor&);  // 4 x 32

}  // namespace tiledmm::gpu
