// Instances of the wgmma kernel: fp16, tiles of 128 x 256, 128 x 224.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile<__half, 0>(const Task&);  // 128 x 256
template const char* launch_tile<__half, 1>(const Task&);  // 128 x 224

}  // namespace tiledmm::cuda
