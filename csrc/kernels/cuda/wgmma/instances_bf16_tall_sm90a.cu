// Instances of the wgmma kernel: bf16, tiles of 192 x 192, 192 x 96.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile<__nv_bfloat16, 15>(const Task&);  // 192 x 192
template const char* launch_tile<__nv_bfloat16, 16>(const Task&);  // 192 x 96

}  // namespace tiledmm::cuda
