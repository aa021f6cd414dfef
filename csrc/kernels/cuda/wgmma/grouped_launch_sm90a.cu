// Host side of wgmma_grouped: what is copied first, and which instance is launched.
#include "core/plan.h"
#include "kernels/cuda/shared/copy_operands.h"
#include "kernels/cuda/wgmma/grouped_plan.h"
#include "kernels/cuda/wgmma/grouped_task.h"

namespace tiledmm::gpu {

Status launch_wgmma_grouped(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const WgmmaGroupedPlan& plan = made.as<WgmmaGroupedPlan>();
  FoldedProblem problem = given;
  OperandCopies<uint16_t> copies(executor);
  Status status = Status::ok;
  const auto copy = [&](const OperandView& view, bool along_k) {
    status = copies.add(problem, view, along_k, copied_ld(view.dtype, along_k ? view.k : view.rows));
  };
  if (plan.copies_a) copy(view_a(problem.gemm), plan.a.is_k_major);
  if (plan.copies_b && status == Status::ok) copy(view_b(problem.gemm), plan.b.is_k_major);
  if (status == Status::ok) status = copies.launch();
  if (status != Status::ok) return status;
  const cuda::GroupedTask task{problem, plan, static_cast<cudaStream_t>(executor.stream)};
  const auto launch = [&](auto instance) { return cuda::launch_grouped_instance<decltype(instance)::value>(task); };
  const char* const reason =
      visit_instance(cuda::kGroupedInstances, problem.gemm.dtype_a, plan.tile, "no such tile", launch);
  return reason ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu
