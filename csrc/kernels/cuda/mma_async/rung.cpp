// The entry of mma_async.
#include "core/rung.h"
#include "kernels/cuda/mma_async/fp8_plan.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/cuda/mma_async/unaligned_plan.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_mma_async;

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  const bool is_left = is_grouped(p) && problem.batch_dims[0].size > 0 && p.k > 0 && (p.stride_cn == 1 || p.n == 1) &&
                       max_of(p.m, max_of(p.n, p.k)) < int64_t(1) << 30;
  if (is_left && chip.arch == 90 && size_of(p.dtype_a) == 2 && p.dtype_c == p.dtype_a) {
    return "on Hopper such groups are wgmma_grouped's, which sums a group of k in one chain";
  }
  return refuse_tf32(p, chip);
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  size_of(problem.gemm.dtype_a) == 1 ? for_each_mma_fp8_plan(problem, chip, visit)
                                     : for_each_mma_async_plan(problem, chip, visit);
}

void describe_fp8(const MmaFp8Plan& plan, Fields& fields) {
  const MmaFp8Shape& shape = kMmaFp8Shapes[plan.shape];
  fields.add("widened_to", "fp16");
  fields.add_tile("block", shape.block_m, shape.block_n);
  fields.add("block_k", shape.block_k);
  fields.add("stages", shape.num_stages);
  fields.add_copies(plan.copies_a, plan.copies_b);
  if (plan.is_exchanged) fields.add("computes", "C^T");
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  if (size_of(problem.gemm.dtype_a) == 1) return describe_fp8(plan.as<MmaFp8Plan>(), fields);
  const MmaAsyncPlan& own = plan.as<MmaAsyncPlan>();
  if (own.unaligned_shape >= 0) {
    const MmaUnalignedShape& shape = kMmaUnalignedShapes[own.unaligned_shape];
    fields.add("path", "unaligned");
    fields.add_tile("block", shape.block_m, shape.block_n);
    fields.add("block_k", shape.block_k);
  } else {
    const MmaAsyncShape& shape = mma_async_shape(problem.gemm.dtype_a, own.choice.shape);
    fields.add_tile("block", shape.block_m, shape.block_n);
    fields.add("block_k", shape.block_k);
    fields.add("stages", shape.num_stages);
    fields.add_split_k(own.choice.num_splits);
  }
  if (problem.gemm.grouping != Grouping::k)  // each group has its own number
    fields.add("chunks", max_of(1, ceil_div(problem.gemm.k, problem.chunk_k)));
  if (own.is_exchanged) fields.add("computes", "C^T");
}

}  // namespace

const Rung mma_async_rung = {
    .name = "mma_async",
    .description = "matrix instructions fed by asynchronous copies",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.wide_result = true, .groups = true, .fp8 = true},
    .refuse_chip = refuse_not_nvidia,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_mma_async,
};

}  // namespace tiledmm::gpu
