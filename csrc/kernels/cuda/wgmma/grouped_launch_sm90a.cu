// Host side of wgmma_grouped: what is copied first, and which instance is launched.
#include "kernels/cuda/wgmma/grouped_copies.h"
#include "kernels/cuda/wgmma/grouped_task.h"

namespace tiledmm::gpu {

Status launch_wgmma_grouped(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const WgmmaGroupedPlan& plan = made.as<WgmmaGroupedPlan>();
  FoldedProblem problem = given;
  OperandCopies<uint16_t> copies(executor);
  if (const Status status = copy_grouped(copies, plan, problem); status != Status::ok) return status;
  const cuda::GroupedTask task{problem, plan, static_cast<cudaStream_t>(executor.stream)};
  const auto launch = [&](auto instance) { return cuda::launch_grouped_instance<decltype(instance)::value>(task); };
  const char* const reason =
      visit_instance(cuda::kGroupedInstances, problem.gemm.dtype_a, plan.tile, "no such tile", launch);
  return reason ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu
