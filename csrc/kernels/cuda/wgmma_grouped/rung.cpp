// The entry of wgmma_grouped.
#include "core/rung.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/cuda/wgmma_grouped/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_wgmma_grouped;

namespace {

const char* refuse(const FoldedProblem& problem, const Chip&) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  const GemmProblem& p = problem.gemm;
  if (!is_grouped(p) && !p.gated_b) return "it is for groups and gated layers";
  if (p.k == 0) return "k is 0";
  if (p.stride_cn != 1 && p.n != 1) return "rows of C have no unit stride";
  if (p.gated_b) {
    if (p.grouping == Grouping::k) return "it has no gated layers of groups of k";
    if (p.bias || p.alpha != 1) return "gated sums are neither scaled nor have they a bias";
    if (p.activation == Activation::none) return "gated sums have an activation";
    if (!is_grouped(p) && p.num_batch_dims > 0) return "it has no batch of gated layers";
    TensorMapView view;
    for (const void* data : {p.b, p.gated_b}) {
      OperandView b = view_b(p);
      b.data = data;
      if (!describe_operand(b, problem, view)) return "the copy engine cannot take both B as they lie";
    }
  }
  const int64_t num_groups = is_grouped(p) ? problem.batch_dims[0].size : 1;
  if (num_groups == 0) return "there are no groups";
  if (p.m >= kLimit || p.n >= kLimit || p.k >= kLimit || num_groups >= kLimit) return "a size is 2^30 or more";
  const int64_t tiles_n = ceil_div(p.n, 64);
  if (double(most_tiles(p, num_groups, ceil_div(p.m, 64), 1)) * double(tiles_n) >= double(kLimit)) {
    return "it has 2^30 tiles or more";
  }
  return nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  GroupedCosts borrowed;
  for_each_grouped_plan(problem, costs_for(kGroupedCosts, chip, borrowed), chip.num_cus, visit);
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WgmmaGroupedPlan& own = plan.as<WgmmaGroupedPlan>();
  const TileShape& shape = kGroupedTileShapes[own.tile];
  fields.add_tile("block", shape.block_m, problem.gemm.gated_b ? shape.block_n / 2 : shape.block_n);
  fields.add_copies(own.copies_a, own.copies_b);
  fields.add("chunks", problem.gemm.grouping == Grouping::k ? 1 : max_of(1, ceil_div(problem.gemm.k, problem.chunk_k)));
  fields.add("block_k", kWgmmaBlockK);
}

}  // namespace

const Rung wgmma_grouped_rung = {
    .name = "wgmma_grouped",
    .description = "Hopper: groups of rows or of k, gated layers, by wgmma's pipeline",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.dtypes = {DType::f16, DType::bf16},
              .num_dtypes = 2,
              .served = "it serves fp16 and bf16",
              .groups = true,
              .gated = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_wgmma_grouped,
};

}  // namespace tiledmm::gpu
