// The instances of the wgmma kernel, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its part in
// task.h.
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {

constexpr int kNumInstances = 18;
static_assert(kNumInstances == std::size(kWgmmaInstances));
template const char* launch_instance<TILEDMM_INSTANCE>(const Task&);

}  // namespace tiledmm::cuda
