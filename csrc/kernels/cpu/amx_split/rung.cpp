// The entry of amx_split.
#include "core/rung.h"
#include "kernels/cpu/amx_split/plan.h"
#include "kernels/cpu/shared/cost.h"
#include "kernels/rungs.h"

namespace tiledmm::cpu {

TILEDMM_IF_LINKED Launcher launch_amx_split;

namespace {

constexpr double kFlopsPerCycle = 1024.0 / kAmxSplitProducts * 0.85;  // of one core

const char* refuse_chip(const Chip& chip) {
  return chip.arch < int(Isa::amx) ? "the CPU lacks AMX, or the system does not let this process use it" : nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  visit(choose_amx_split_plan(problem, chip.num_cus), cost_us(problem, chip, kFlopsPerCycle, true));
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const AmxSplitPlan& own = plan.as<AmxSplitPlan>();
  const GemmProblem& p = problem.gemm;
  fields.add("path", "6 products in bf16");
  fields.add("one_product_within", "2.1*2^-24");  // of it; docs/numerics.md
  const int64_t m = own.is_exchanged ? p.n : p.m, n = own.is_exchanged ? p.m : p.n;
  const int64_t strips_a = ceil_div(m, kAmxStrip), strips_b = ceil_div(min_of(n, own.range_n), kAmxStrip);
  fields.add_tile("block", own.task_m, own.task_n);
  fields.add("block_k", kAmxSplitChunkK);
  fields.add_tile("tasks", own.tasks_m, own.tasks_n);
  fields.add("threads", own.num_threads);
  fields.add_split_k(own.splits_k ? ceil_div(p.k, kAmxSplitChunkK) : 1, "all threads");
  fields.add("workspace",
             (strips_a * own.is_a_shared + strips_b * own.is_b_shared) * ceil_div(p.k, kAmxStep) * kAmxSplitUnitBytes);
  if (own.is_exchanged) fields.add("computes", "C^T");
}

}  // namespace

const Rung amx_split_rung = {
    .name = "amx_split",
    .description = "AMX: fp32 as three bf16 terms, six products",
    .order = Order::amx_split_chunks,
    .takes = {.dtypes = {DType::f32}, .num_dtypes = 1, .served = "it serves fp32", .kept_sum = true},
    .refuse_chip = refuse_chip,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_amx_split,
    .is_split = true,
    .min_k = kAmxSplitMinK,
    .min_n = kAmxSplitMinN,
};

}  // namespace tiledmm::cpu
