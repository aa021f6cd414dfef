// The instances of the wmma_rdna kernel, compiled in parts, side by side: TILEDMM_INSTANCE is 0 for fp16, 1 for bf16.
#include "kernels/hip/wmma_rdna/kernel.h"

namespace tiledmm::gpu {

constexpr int kNumInstances = 2;
static_assert(TILEDMM_INSTANCE < kNumInstances);
using T = ElementOf<TILEDMM_INSTANCE == 0 ? DType::f16 : DType::bf16>;
template Status launch_wmma_tile<T>(const FoldedProblem&, const WmmaPlan&, const WmmaWork&, const Executor&);

}  // namespace tiledmm::gpu
