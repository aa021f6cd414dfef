// Host side of rung 13: which instance is launched, and the kernel that adds up chunks after it.
#include "core/plan.h"
#include "kernels/hip/shared/plan.h"
#include "kernels/hip/wmma_rdna/plan.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

Status launch_wmma_rdna(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const WmmaPlan& plan = made.as<WmmaPlan>();
  const WmmaShape& shape = kWmmaShapes[plan.shape];
  FoldedProblem problem = given;
  clear_single_strides(problem.gemm);
  const GemmProblem& p = problem.gemm;
  const bool splits = plan.num_splits > 1;
  WmmaWork work{};
  work.tiles_m = int32_t(ceil_div(p.m, shape.block_m)), work.tiles_n = int32_t(ceil_div(p.n, shape.block_n));
  work.num_splits = plan.num_splits;
  work.chunk_k = problem.chunk_k;
  work.split_k = splits ? problem.chunk_k : p.k;
  ChunkSums<float> chunk_sums(problem, p.n, executor);
  if (splits && !chunk_sums.allocate()) return Status::out_of_memory;
  work.partials = chunk_sums.sums;
  const auto launch = [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const Status status = launch_wmma_tile<T>(problem, plan, work, executor);
    return status == Status::ok && splits ? chunk_sums.template add<T>() : status;
  };
  return p.dtype_a == DType::f16 ? launch(static_cast<Half*>(nullptr)) : launch(static_cast<BFloat16*>(nullptr));
}

}  // namespace tiledmm::gpu
