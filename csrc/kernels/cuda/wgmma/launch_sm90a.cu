// Host side of rung 11: what is copied first, which of the two transposed problems is computed, which instance is
// launched, and the kernel that adds up chunks after it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/shared/copy_operands.h"
#include "kernels/cuda/wgmma/launch_tile.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/tf32_plan.h"
#include "platform/chunk_sums.h"

namespace tiledmm::cuda {
namespace {

template <class T, int TILE = 0>
const char* launch_chosen(const Task& task) {
  constexpr bool kIsTf32 = sizeof(T) == 4;
  if constexpr (TILE < (kIsTf32 ? kNumTf32TileShapes : kNumTileShapes)) {
    if (task.plan.tiles.tile != TILE) return launch_chosen<T, TILE + 1>(task);
    if constexpr (kIsTf32)
      return launch_tile_tf32<TILE>(task);
    else
      return launch_tile<T, TILE>(task);
  }
  return "no such tile";
}

// T: an element of the matrix unit; Element: the same of platform/; Word: one that is copied.
template <class T, class Element, class Word>
Status launch(const FoldedProblem& given, const WgmmaPlan& plan, bool is_transposed, const Executor& executor) {
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
  if (launch_chosen<T>({is_transposed ? transposed(problem) : problem, plan, is_transposed, chunk_sums.sums,
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
    return cuda::launch<float, float, float>(problem, plan, plan.is_transposed, executor);
  }
  const WgmmaPlan& plan = made.as<WgmmaPlan>();
  const bool is_exchanged = plan.tiles.is_exchanged;
  return problem.gemm.dtype_a == DType::f16
             ? cuda::launch<__half, Half, uint16_t>(problem, plan, is_exchanged, executor)
             : cuda::launch<__nv_bfloat16, BFloat16, uint16_t>(problem, plan, is_exchanged, executor);
}

}  // namespace tiledmm::gpu
