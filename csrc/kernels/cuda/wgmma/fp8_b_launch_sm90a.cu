// Host side of wgmma_fp8_b: which instance is launched, and the kernel that adds up chunks after it.
#include "core/plan.h"
#include "kernels/cuda/wgmma/fp8_b_task.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

Status launch_wgmma_fp8_b(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  const Fp8BPlan& plan = made.as<Fp8BPlan>();
  ChunkSums<float> chunk_sums(problem, problem.gemm.n, executor);
  const bool adds_chunks = plan.split == Fp8BSplit::by_kernel;
  if (adds_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  const cuda::Fp8BTask task{problem, plan, chunk_sums.sums, static_cast<cudaStream_t>(executor.stream)};
  const auto launch = [&](auto instance) { return cuda::launch_fp8_b_instance<decltype(instance)::value>(task); };
  if (visit_instance(cuda::kFp8BInstances, problem.gemm.dtype_a, plan.tile, "no such tile", launch, false))
    return Status::launch_failed;
  return adds_chunks ? chunk_sums.add<AnyElement, true>() : Status::ok;
}

}  // namespace tiledmm::gpu
