// Host side of rung 11: what is copied first, how the problem is described to the copy engine, which instance is
// launched.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/plan.h"
#include "kernels/cuda/wgmma/launch_tile.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/repack.h"
#include "kernels/cuda/wgmma/tf32_launch.h"
#include "platform/chunk_sums.h"

namespace tiledmm::cuda {
namespace {

template <class T, int TILE = 0>
const char* launch_chosen(const Task& task) {
  if constexpr (TILE < kNumTileShapes)
    return task.plan.tile == TILE ? launch_tile<T, TILE>(task) : launch_chosen<T, TILE + 1>(task);
  else
    return "no such tile";
}

template <int TILE = 0>
const char* launch_chosen_tf32(const Task& task) {
  if constexpr (TILE < kNumTf32TileShapes)
    return task.plan.tile == TILE ? launch_tile_tf32<TILE>(task) : launch_chosen_tf32<TILE + 1>(task);
  else
    return "no such tile";
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  using namespace tiledmm::cuda;
  Task task{
      row_major(given), {}, {}, {}, false, {}, nullptr, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  FoldedProblem& problem = task.problem;
  GemmProblem& p = problem.gemm;
  if (p.dtype_a == DType::f32) {
    return launch_wgmma_tf32(problem, made.as<Tf32Plan>(), executor, &launch_chosen_tf32<>);
  }
  const WgmmaPlan& plan = made.as<WgmmaPlan>();
  Repack repack(executor);
  Status status = Status::ok;
  if (plan.copies_a) status = repack.add(problem, p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a);
  if (status == Status::ok && plan.copies_b)
    status = repack.add(problem, p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b);
  if (status != Status::ok) return status;
  task.stores_by_tma = describe_result(problem, task.c) && is_storable(p.dtype_c, task.c);
  ChunkSums<float> chunk_sums(problem, ld_partial(p.n, p.row_sums != nullptr), executor);
  if (plan.tiles.is_exchanged) problem = transposed(problem);
  if (!describe_operand(view_a(p), problem, task.a) || !describe_operand(view_b(p), problem, task.b)) {
    return Status::launch_failed;
  }
  task.plan = plan.tiles;
  if (task.plan.splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  task.partial = chunk_sums.sums;
  const char* refused = repack.launch();
  if (!refused) refused = p.dtype_a == DType::f16 ? launch_chosen<__half>(task) : launch_chosen<__nv_bfloat16>(task);
  if (refused) return Status::launch_failed;
  if (!task.plan.splits_chunks) return Status::ok;
  return p.dtype_a == DType::f16 ? chunk_sums.add<Half>() : chunk_sums.add<BFloat16>();
}

}  // namespace tiledmm::gpu
