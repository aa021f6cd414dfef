// Host side of rung 12: which instance is launched.
#include "core/plan.h"
#include "kernels/hip/mfma/launch_shape.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

template <class T, int SHAPE = 0>
Status launch_chosen(const FoldedProblem& problem, const MfmaPlan& plan, const Executor& executor) {
  if constexpr (SHAPE < kNumMfmaShapes) {
    if constexpr (has_mfma_shape(sizeof(T) == 8 ? DType::f64 : DType::f16, SHAPE)) {
      if (plan.shape == SHAPE) return launch_mfma_shape<T, SHAPE>(problem, plan, executor);
    }
    return launch_chosen<T, SHAPE + 1>(problem, plan, executor);
  } else {
    return Status::unsupported;
  }
}

}  // namespace

Status launch_mfma(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const MfmaPlan& plan = made.as<MfmaPlan>();
  FoldedProblem problem = given;
  problem.chunk_k = plan.chunk_k;
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    return launch_chosen<std::remove_pointer_t<decltype(element)>>(problem, plan, executor);
  });
}

}  // namespace tiledmm::gpu
