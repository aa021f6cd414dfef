// The entry of simt_pipelined.
#include "core/rung.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/cuda/simt_pipelined/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_simt_pipelined;

namespace {

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  SimtCosts borrowed;
  FewRowsCosts borrowed_few;
  const bool has_groups = is_grouped(problem.gemm), is_batch = has_groups || problem.batch_size > 1;
  const AllSimtCosts costs{
      is_batch ? costs_for(kSimtBatchCosts, chip, borrowed) : costs_for(kSimtCosts, chip, borrowed),
      is_batch ? costs_for(kFewRowsBatchCosts, chip, borrowed_few) : costs_for(kFewRowsCosts, chip, borrowed_few)};
  if (has_groups) return for_each_simt_plan_of_groups(costs, problem, chip, visit);
  for_each_simt_plan(costs, problem, chip, visit);
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const SimtPlan& own = plan.as<SimtPlan>();
  const SimtShape& shape = kSimtShapes[own.shape];
  if (own.few_rows.rows > 0) {
    fields.add("path", "few_rows");
    fields.add_tile("block", own.few_rows.rows, own.few_rows.cols);
    fields.add("warps", own.few_rows.num_warps);
    fields.add_split_k(own.few_rows.num_splits);
  } else {
    fields.add_tile("block", shape.block_m, shape.block_n);
    fields.add("block_k", shape.block_k);
    fields.add_tile("thread", shape.thread_m, shape.thread_n);
    if (!is_grouped(problem.gemm)) fields.add("whole_tiles", own.num_whole);
  }
  if (problem.gemm.grouping != Grouping::k)  // each group has its own number
    fields.add("chunks", max_of(1, ceil_div(problem.gemm.k, problem.chunk_k)));
  fields.add_copies(own.packs_a, own.packs_b);
  if (own.is_exchanged) fields.add("computes", "C^T");
}

}  // namespace

const Rung simt_pipelined_rung = {
    .name = "simt_pipelined",
    .description = "fp32 multiply-adds fed by asynchronous copies",
    .is_gpu = true,
    .is_native = true,
    .order = Order::simt_chunks,
    .takes = {.dtypes = {DType::f32}, .num_dtypes = 1, .served = kTakesFp32.served, .groups = true},
    .refuse_chip = refuse_not_nvidia,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_simt_pipelined,
};

}  // namespace tiledmm::gpu
