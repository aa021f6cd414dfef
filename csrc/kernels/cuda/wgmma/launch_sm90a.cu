// Host side of the wgmma kernel: what is copied first, which of the two transposed problems is computed, which instance
// is launched, and the kernel that adds up chunks after it.
#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/shared/copy_operands.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/task.h"
#include "platform/chunk_sums.h"

namespace tiledmm::cuda {
namespace {

const char* launch_chosen(const Task& task) {
  const GemmProblem& p = task.problem.gemm;
  const auto launch = [&](auto instance) { return launch_instance<decltype(instance)::value>(task); };
  return visit_instance(kWgmmaInstances, p.dtype_a, task.plan.tiles.tile, "no such tile", launch,
                        p.dtype_c != p.dtype_a);
}

// Element: of the result; Word: an element that is copied.
template <class Element, class Word>
Status launch(const FoldedProblem& given, const WgmmaPlan& plan, bool is_exchanged, const Executor& executor) {
  FoldedProblem problem = plan.is_column_major ? transposed(given) : given;
  gpu::OperandCopies<Word> copies(executor);
  Status status = Status::ok;
  const auto copy = [&](const OperandView& view) {
    const bool along_k = copies_along_k(problem.gemm.dtype_a, view);
    status = copies.add(problem, view, along_k, copied_ld(problem.gemm.dtype_a, along_k ? view.k : view.rows));
  };
  if (plan.copies_a) copy(view_a(problem.gemm));
  if (plan.copies_b && status == Status::ok) copy(view_b(problem.gemm));
  if (status != Status::ok) return status;
  const GemmProblem& p = problem.gemm;
  gpu::ChunkSums<float> chunk_sums(problem, ld_partial(p.n, p.row_sums != nullptr), executor);
  if (plan.tiles.splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  status = copies.launch();
  if (status != Status::ok) return status;
  if (launch_chosen({is_exchanged ? transposed(problem) : problem, plan, is_exchanged, chunk_sums.sums,
                     static_cast<cudaStream_t>(executor.stream)}))
    return Status::launch_failed;
  return plan.tiles.splits_chunks ? chunk_sums.add<Element>() : Status::ok;
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  if (problem.gemm.dtype_a == DType::f32) {
    const Tf32Plan& plan = made.as<Tf32Plan>();
    return cuda::launch<float, float>(problem, plan, plan.is_exchanged, executor);
  }
  const WgmmaPlan& plan = made.as<WgmmaPlan>();
  const bool is_exchanged = plan.tiles.is_exchanged;
  if (problem.gemm.dtype_c == DType::f32)
    return cuda::launch<AnyElement, uint16_t>(problem, plan, is_exchanged, executor);
  return problem.gemm.dtype_a == DType::f16 ? cuda::launch<Half, uint16_t>(problem, plan, is_exchanged, executor)
                                            : cuda::launch<BFloat16, uint16_t>(problem, plan, is_exchanged, executor);
}

}  // namespace tiledmm::gpu
