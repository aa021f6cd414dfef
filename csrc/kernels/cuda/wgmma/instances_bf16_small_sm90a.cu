// Instances of the wgmma kernel: bf16, tiles of 64 x 256, 64 x 192, 64 x 160, 64 x 128.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile<__nv_bfloat16, 8>(const Task&);   // 64 x 256
template const char* launch_tile<__nv_bfloat16, 9>(const Task&);   // 64 x 192
template const char* launch_tile<__nv_bfloat16, 10>(const Task&);  // 64 x 160
template const char* launch_tile<__nv_bfloat16, 11>(const Task&);  // 64 x 128

}  // namespace tiledmm::cuda
