// Instances of the wgmma kernel: tf32, tiles of 128 x 256, 128 x 128.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile_tf32<0>(const Task&);  // 128 x 256
template const char* launch_tile_tf32<1>(const Task&);  // 128 x 128

}  // namespace tiledmm::cuda
