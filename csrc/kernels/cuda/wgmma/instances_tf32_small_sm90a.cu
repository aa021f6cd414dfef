// Instances of the wgmma kernel: tf32, tiles of 128 x 64, 64 x 128, 64 x 64, 64 x 32.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

template const char* launch_tile_tf32<2>(const Task&);  // 128 x 64
template const char* launch_tile_tf32<3>(const Task&);  // 64 x 128
template const char* launch_tile_tf32<4>(const Task&);  // 64 x 64
template const char* launch_tile_tf32<5>(const Task&);  // 64 x 32

}  // namespace tiledmm::cuda
