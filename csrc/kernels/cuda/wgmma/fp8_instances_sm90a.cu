// The instances of wgmma_fp8, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its part in fp8_task.h.
#include "kernels/cuda/wgmma/fp8.h"

namespace tiledmm::cuda {

constexpr int kNumInstances = 12;
static_assert(kNumInstances == std::size(kFp8Instances));
template const char* launch_fp8_instance<TILEDMM_INSTANCE>(const Task&);

}  // namespace tiledmm::cuda
