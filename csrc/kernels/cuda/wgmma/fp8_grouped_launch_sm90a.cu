// Host side of wgmma_fp8_grouped: what is copied first, and which instance is launched.
#include "kernels/cuda/wgmma/fp8_grouped_task.h"
#include "kernels/cuda/wgmma/grouped_copies.h"

namespace tiledmm::gpu {

Status launch_wgmma_fp8_grouped(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const WgmmaGroupedPlan& plan = made.as<WgmmaGroupedPlan>();
  FoldedProblem problem = given;
  OperandCopies<uint8_t> copies(executor);
  if (const Status status = copy_grouped(copies, plan, problem); status != Status::ok) return status;
  const cuda::GroupedTask task{problem, plan, static_cast<cudaStream_t>(executor.stream)};
  const char* const refusal = visit_number<0, int(std::size(cuda::kFp8GroupedInstances))>(
      cuda::find_fp8_instance(cuda::kFp8GroupedInstances, problem.gemm), "no such kernel",
      [&](auto instance) { return cuda::launch_fp8_grouped_instance<decltype(instance)::value>(task); });
  return refusal ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu
