// Host side of mma_async: what is repacked first, and which instance is launched.
#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/mma_async/fp8_plan.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/mma_async/unaligned_plan.h"
#include "kernels/cuda/shared/copy_operands.h"

namespace tiledmm::gpu {

Status launch_mma_unaligned(const FoldedProblem& problem, int shape, const Executor& executor);

Status launch_mma_async(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  if (size_of(given.gemm.dtype_a) == 1) return launch_mma_fp8(given, made.as<MmaFp8Plan>(), executor);
  const MmaAsyncPlan& plan = made.as<MmaAsyncPlan>();
  FoldedProblem problem = oriented(given, plan.is_exchanged);
  if (plan.unaligned_shape >= 0) return launch_mma_unaligned(problem, plan.unaligned_shape, executor);
  OperandCopies<uint16_t> copies(executor);
  Status status = Status::ok;
  const auto copy_if_unaligned = [&](const OperandView& view) {
    const bool along_k = is_read_along_k(view, problem.gemm);
    if (status == Status::ok && problem.gemm.k > 0 && !is_vectorised(view, problem))
      status = copies.add(problem, view, along_k, round_up(along_k ? view.k : view.rows, 8));
  };
  if (is_grouped(problem.gemm) && problem.gemm.k == 0) problem.gemm.stride_ak = 1;  // a layout that there is
  if (size_of(problem.gemm.dtype_a) == 2) {
    copy_if_unaligned(view_a(problem.gemm));
    copy_if_unaligned(view_b(problem.gemm));
    if (status == Status::ok) status = copies.launch();
    if (status != Status::ok) return status;
  }
  const auto launch = [&](auto instance) {
    return launch_instance<decltype(instance)::value>(problem, plan, executor);
  };
  return visit_instance(kMmaAsyncInstances, problem.gemm.dtype_a, plan.choice.shape, Status::unsupported, launch,
                        mix_of(problem.gemm) == Mix::wide_result);
}

}  // namespace tiledmm::gpu
