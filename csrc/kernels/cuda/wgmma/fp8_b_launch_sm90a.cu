// Host side of wgmma_fp8_b: which instance is launched, and the kernel that adds up chunks after it.
#include "core/plan.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/wgmma/fp8_b_task.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

Status launch_wgmma_fp8_b(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  const Fp8BPlan& plan = made.as<Fp8BPlan>();
  const GemmProblem& p = problem.gemm;
  const int64_t ld = cuda::ld_fp8_b_partial(p.n);
  ChunkSums<float> chunk_sums(problem, ld, executor);
  if (plan.split == Fp8BSplit::by_kernel && !chunk_sums.allocate()) return Status::out_of_memory;
  const auto stream = static_cast<cudaStream_t>(executor.stream);
  const auto launch = [&](auto instance) {
    return cuda::launch_fp8_b_instance<decltype(instance)::value>({problem, plan, chunk_sums.sums, stream});
  };
  if (visit_instance(cuda::kFp8BInstances, p.dtype_a, plan.tile, "no such tile", launch, false))
    return Status::launch_failed;
  return chunk_sums.sums ? chunk_sums.add<AnyElement, true>() : Status::ok;
}

}  // namespace tiledmm::gpu
