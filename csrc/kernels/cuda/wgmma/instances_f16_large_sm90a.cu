// Instances of the wgmma kernel: fp16, tiles of 128 x 208, 128 x 192, 128 x 176, 128 x 168.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile<__half, 2>(const Task&);  // 128 x 208
template const char* launch_tile<__half, 3>(const Task&);  // 128 x 192
template const char* launch_tile<__half, 4>(const Task&);  // 128 x 176
template const char* launch_tile<__half, 5>(const Task&);  // 128 x 168

}  // namespace tiledmm::cuda
