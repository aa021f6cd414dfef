// Host side of rung 10: what is repacked first, and which instance is launched.
#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/mma_async/repack_batch.h"
#include "kernels/cuda/mma_async/unaligned_plan.h"

namespace tiledmm::gpu {

Status launch_mma_unaligned(const FoldedProblem& problem, int shape, const Executor& executor);

Status launch_mma_async(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const MmaAsyncPlan& plan = made.as<MmaAsyncPlan>();
  FoldedProblem problem = oriented(given, plan.is_transposed);
  if (plan.unaligned_shape >= 0) return launch_mma_unaligned(problem, plan.unaligned_shape, executor);
  Workspace packed_a(executor), packed_b(executor);
  GemmProblem& p = problem.gemm;
  if (size_of(p.dtype_a) == 2) {
    Status status = repack_if_unaligned(problem, &BatchDim::stride_a, p.a, p.m, p.stride_am, p.stride_ak, packed_a);
    if (status == Status::ok)
      status = repack_if_unaligned(problem, &BatchDim::stride_b, p.b, p.n, p.stride_bn, p.stride_bk, packed_b);
    if (status != Status::ok) return status;
  }
  const auto launch = [&](auto instance) {
    return launch_instance<decltype(instance)::value>(problem, plan.choice, plan.is_vectorised, executor);
  };
  return visit_instance(kMmaAsyncInstances, p.dtype_a, plan.choice.shape, Status::unsupported, launch);
}

}  // namespace tiledmm::gpu
