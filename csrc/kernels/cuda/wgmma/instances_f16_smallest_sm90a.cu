// Instances of the wgmma kernel: fp16, tiles of 64 x 96, 64 x 64, 64 x 32.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile<__half, 12>(const Task&);  // 64 x 96
template const char* launch_tile<__half, 13>(const Task&);  // 64 x 64
template const char* launch_tile<__half, 14>(const Task&);  // 64 x 32

}  // namespace tiledmm::cuda
