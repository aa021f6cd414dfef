// The instances of wgmma_fp8_grouped, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its part in
// fp8_grouped_task.h.
#include "kernels/cuda/wgmma/fp8_grouped.h"

namespace tiledmm::cuda {

constexpr int kNumInstances = 10;
static_assert(kNumInstances == std::size(kFp8GroupedInstances));
template const char* launch_fp8_grouped_instance<TILEDMM_INSTANCE>(const GroupedTask&);

}  // namespace tiledmm::cuda
