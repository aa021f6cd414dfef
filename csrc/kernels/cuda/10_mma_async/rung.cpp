// The entry of rung 10.
#include "core/rung.h"
#include "kernels/cuda/10_mma_async/plan.h"
#include "kernels/cuda/10_mma_async/unaligned_plan.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_mma_async(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_chip(problem, chip)) return reason;
  if (problem.gemm.row_sums) return "it does not sum rows";
  return refuse_tf32(problem.gemm, chip);
}

void plan(const FoldedProblem& problem, const Chip& chip, Plan& plan) {
  if (is_empty(problem)) return;
  plan.as<MmaAsyncPlan>() = plan_mma_async(problem, chip.num_cus, chip.max_shared_bytes, plan.cost_us);
}

void list_plans(const FoldedProblem& problem, const Chip& chip, std::vector<Plan>& plans) {
  for_each_mma_async_plan(problem, chip.num_cus, chip.max_shared_bytes, [&](const MmaAsyncPlan& own, double cost_us) {
    plans.emplace_back().as<MmaAsyncPlan>() = own;
    plans.back().cost_us = cost_us;
  });
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  if (is_empty(problem)) return;
  const MmaAsyncPlan& own = plan.as<MmaAsyncPlan>();
  if (own.unaligned_shape >= 0) {
    const MmaUnalignedShape& shape = kMmaUnalignedShapes[own.unaligned_shape];
    fields.add("path", "unaligned");
    fields.add_tile("block", shape.block_m, shape.block_n);
    fields.add("block_k", shape.block_k);
  } else {
    const MmaAsyncShape& shape = mma_async_shape(problem.gemm.dtype, own.choice.shape);
    fields.add_tile("block", shape.block_m, shape.block_n);
    fields.add("block_k", shape.block_k);
    fields.add("stages", shape.num_stages);
    fields.add("split_k", own.choice.num_splits);
  }
  fields.add("chunks", max_of(1, ceil_div(problem.gemm.k, problem.chunk_k)));
  if (own.is_transposed) fields.add("computes", "C^T");
}

}  // namespace

const Rung mma_async_rung = {"mma_async", "matrix instructions fed by asynchronous copies",
                             10,          true,
                             true,        Order::mma_chunks,
                             refuse,      plan,
                             describe,    launch_mma_async,
                             false,       list_plans};

}  // namespace tiledmm::gpu
