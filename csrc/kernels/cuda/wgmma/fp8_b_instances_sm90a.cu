// The instances of wgmma_fp8_b, compiled in parts, side by side: TILEDMM_INSTANCE is the index of its part in
// fp8_b_task.h.
#include "kernels/cuda/wgmma/fp8_b.h"

namespace tiledmm::cuda {

constexpr int kNumInstances = 8;
static_assert(kNumInstances == std::size(kFp8BInstances));
template const char* launch_fp8_b_instance<TILEDMM_INSTANCE>(const Fp8BTask&);

}  // namespace tiledmm::cuda
