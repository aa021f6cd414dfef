// The entry of wgmma_split.
#include "core/rung.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/cuda/wgmma_split/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_wgmma_split;

namespace {

const char* refuse(const FoldedProblem& problem, const Chip&) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  const GemmProblem& p = problem.gemm;
  if (p.dtype_c != DType::f32 || (p.bias && p.dtype_bias != DType::f32)) return "its result and its bias are fp32";
  if (p.k < kSplitMinK) return nullptr;  // left to others
  if (p.m >= kLimit || p.n >= kLimit || p.k >= kLimit) return "a size is 2^30 or more";
  // Tiles are counted in 32 bits, and so are those of the split: kSplitRows by a chunk of k.
  const double tiles_m = double(ceil_div(p.m, kSplitBlock)), tiles_n = double(ceil_div(p.n, kSplitBlock));
  const double batch = double(problem.batch_size), chunks = double(ceil_div(p.k, kSplitChunkK));
  const double splits = kSplitBlock / kSplitRows * batch * (tiles_m + tiles_n) * chunks;
  if (batch * tiles_m * tiles_n >= double(kLimit) || splits >= double(kLimit)) {
    return "it has 2^30 tiles or more";
  }
  return nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  double cost_us = 0;
  SplitCosts borrowed;
  const SplitCosts& costs = costs_for(kSplitCosts, chip, borrowed);
  const SplitPlan plan = plan_split(costs, problem, chip.num_cus, cost_us);
  visit(plan, cost_us);
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const SplitWork own = lay_out(first_groups(problem), plan.as<SplitPlan>().first);
  fields.add_tile("block", kSplitBlock, kSplitBlock);
  fields.add("path", std::to_string(own.a.num_terms + own.b.num_terms - 1) + " products in fp16");
  fields.add("one_product_within", "9.1*2^-24");  // of it; docs/numerics.md
  const bool is_late = own.late != SplitLate::none;
  if (is_late) fields.add("split_after_load", own.late == SplitLate::a ? "A" : "B");
  fields.add("workspace", own.workspace_bytes() + group_sum_bytes(problem));
  fields.add("chunks", ceil_div(problem.gemm.k, kSplitChunkK));
  if (!is_late && own.whole_tiles < own.num_tiles) fields.add("tiles_by_chunks", own.num_tiles - own.whole_tiles);
}

}  // namespace

const Rung wgmma_split_rung = {
    .name = "wgmma_split",
    .description = "Hopper: fp32 as two fp16 terms, 16 bits as one, short sums",
    .is_gpu = true,
    .order = Order::split_chunks,
    .takes = {.dtypes = {DType::f32}, .num_dtypes = 1, .served = kTakesFp32.served, .mixed = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_wgmma_split,
    .is_split = true,
    .min_k = kSplitMinK,
};

}  // namespace tiledmm::gpu
