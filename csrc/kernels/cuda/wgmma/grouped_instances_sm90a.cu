// The instances of wgmma_grouped, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its part in
// grouped_task.h.
#include "kernels/cuda/wgmma/grouped.h"

namespace tiledmm::cuda {

constexpr int kNumInstances = 4;
static_assert(kNumInstances == std::size(kGroupedInstances));
template const char* launch_grouped_instance<TILEDMM_INSTANCE>(const GroupedTask&);

}  // namespace tiledmm::cuda
