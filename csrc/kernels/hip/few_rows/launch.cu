// Host side of rung 16: which instance is launched, and the kernel that adds up chunks after it.
#include "core/plan.h"
#include "kernels/hip/few_rows/plan.h"
#include "kernels/hip/shared/plan.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

Status launch_few_rows(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const FewPlan& plan = made.as<FewPlan>();
  FoldedProblem problem = given;
  clear_single_strides(problem.gemm);
  problem.chunk_k = plan.chunk_k;
  const bool splits = plan.num_splits > 1;
  FewWork work{plan.tiles, plan.num_splits, splits ? plan.chunk_k : problem.gemm.k, nullptr};
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    ChunkSums<Acc<T>> chunk_sums(problem, problem.gemm.n, executor);
    if (splits && !chunk_sums.allocate()) return Status::out_of_memory;
    work.partials = chunk_sums.sums;
    const Status status = launch_few_rows_of<T>(problem, plan, work, executor);
    return status == Status::ok && splits ? chunk_sums.template add<T>() : status;
  });
}

}  // namespace tiledmm::gpu
