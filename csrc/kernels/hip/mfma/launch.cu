// Host side of rung 12: which instance is launched.
#include "core/plan.h"
#include "kernels/hip/mfma/plan.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {

Status launch_mfma(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const MfmaPlan& plan = made.as<MfmaPlan>();
  FoldedProblem problem = given;
  problem.chunk_k = plan.chunk_k;
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    return launch_mfma_of<std::remove_pointer_t<decltype(element)>>(problem, plan, executor);
  });
}

}  // namespace tiledmm::gpu
