// Host side of wgmma_fp8: what is copied first, and which instance is launched.
#include "core/transposed.h"
#include "kernels/cuda/shared/copy_operands.h"
#include "kernels/cuda/wgmma/fp8_task.h"

namespace tiledmm::gpu {

Status launch_wgmma_fp8(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const WgmmaPlan& plan = made.as<WgmmaPlan>();
  FoldedProblem problem = plan.is_column_major ? transposed(given) : given;
  OperandCopies<uint8_t> copies(executor);
  Status status = Status::ok;
  const auto copy = [&](const OperandView& view) {
    if (status == Status::ok) status = copies.add(problem, view, true, copied_ld(view.dtype, view.k));
  };
  if (plan.copies_a) copy(view_a(problem.gemm));
  if (plan.copies_b) copy(view_b(problem.gemm));
  if (status == Status::ok) status = copies.launch();
  if (status != Status::ok) return status;
  const bool is_exchanged = plan.tiles.is_exchanged;
  const cuda::Task task{is_exchanged ? transposed(problem) : problem, plan, is_exchanged, nullptr,
                        static_cast<cudaStream_t>(executor.stream)};
  const char* const refusal = visit_number<0, int(std::size(cuda::kFp8Instances))>(
      cuda::find_fp8_instance(cuda::kFp8Instances, task.problem.gemm), "no such kernel",
      [&](auto instance) { return cuda::launch_fp8_instance<decltype(instance)::value>(task); });
  return refusal ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu
