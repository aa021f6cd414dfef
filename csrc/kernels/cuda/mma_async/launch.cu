// Host side of rung 10: what is repacked first, and which instance is launched.
#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/mma_async/launch_shape.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/mma_async/repack_batch.h"
#include "kernels/cuda/mma_async/unaligned_plan.h"

namespace tiledmm::gpu {
namespace {

template <class T, int SHAPE = 0>
Status launch_chosen(const FoldedProblem& problem, const MmaAsyncChoice& choice, bool is_vectorised,
                     const Executor& executor) {
  if constexpr (SHAPE < num_mma_async_shapes(sizeof(T) == 8 ? DType::f64 : DType::f16))
    return choice.shape == SHAPE ? launch_shape<T, SHAPE>(problem, choice.num_splits, is_vectorised, executor)
                                 : launch_chosen<T, SHAPE + 1>(problem, choice, is_vectorised, executor);
  else
    return Status::unsupported;
}

}  // namespace

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
  return visit_dtype(p.dtype_a, [&](auto* element) {
    return launch_chosen<std::remove_pointer_t<decltype(element)>>(problem, plan.choice, plan.is_vectorised, executor);
  });
}

}  // namespace tiledmm::gpu
