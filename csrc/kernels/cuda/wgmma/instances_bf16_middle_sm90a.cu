// Instances of the wgmma kernel: bf16, tiles of 128 x 160, 128 x 128.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile<__nv_bfloat16, 6>(const Task&);  // 128 x 160
template const char* launch_tile<__nv_bfloat16, 7>(const Task&);  // 128 x 128

}  // namespace tiledmm::cuda
