// Host side of rung 11: what is copied first, which of the two transposed problems is computed, which instance is
// launched, and the kernel that adds up chunks after it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/wgmma/launch_tile.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/repack.h"
#include "kernels/cuda/wgmma/tf32_plan.h"
#include "kernels/cuda/wgmma/transpose.h"
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

// T: an element of the matrix unit; Element: the same of platform/.
template <class T, class Element, class Copies>
Status launch(const FoldedProblem& given, const WgmmaPlan& plan, bool is_transposed, const Executor& executor) {
  FoldedProblem problem = plan.is_column_major ? transposed(given) : given;
  GemmProblem& p = problem.gemm;
  Copies copies(executor);
  Status status = Status::ok;
  if (plan.copies_a) status = copies.add(problem, p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a);
  if (plan.copies_b && status == Status::ok)
    status = copies.add(problem, p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b);
  if (status != Status::ok) return status;
  gpu::ChunkSums<float> chunk_sums(problem, ld_partial(p.n, p.row_sums != nullptr), executor);
  if (plan.tiles.splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  const char* refused = copies.launch();
  if (!refused)
    refused = launch_chosen<T>({is_transposed ? transposed(problem) : problem, plan, is_transposed, chunk_sums.sums,
                                static_cast<cudaStream_t>(executor.stream)});
  if (refused) return Status::launch_failed;
  return plan.tiles.splits_chunks ? chunk_sums.add<Element>() : Status::ok;
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  if (problem.gemm.dtype == DType::f32) {
    const Tf32Plan& plan = made.as<Tf32Plan>();
    return cuda::launch<float, float, cuda::CopyAlongK>(problem, plan, plan.is_transposed, executor);
  }
  const WgmmaPlan& plan = made.as<WgmmaPlan>();
  const bool is_exchanged = plan.tiles.is_exchanged;
  return problem.gemm.dtype == DType::f16
             ? cuda::launch<__half, Half, cuda::Repack>(problem, plan, is_exchanged, executor)
             : cuda::launch<__nv_bfloat16, BFloat16, cuda::Repack>(problem, plan, is_exchanged, executor);
}

}  // namespace tiledmm::gpu
