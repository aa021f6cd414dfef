// The entries of direct: by matrix instructions, and by multiply-adds.
#include "core/rung.h"
#include "kernels/cuda/direct/plan.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_direct, launch_direct_fma;

namespace {

const char* refuse_size(const FoldedProblem& problem, const Chip&) {
  constexpr double kLimit = 2147483648.0;
  const GemmProblem& p = problem.gemm;
  if (problem.chunk_k < p.k) return "k is more than one chunk";
  const auto spans_too_much = [&](const OperandView& view) {
    return double(view.rows) * double(view.stride_row) + double(view.k) * double(view.stride_k) >= kLimit;
  };
  if (spans_too_much(view_a(p)) || spans_too_much(view_b(p))) return "an operand of an item spans 2^31 elements";
  if (double(p.m) * double(p.n) * double(problem.batch_size) >= kLimit) return "C has 2^31 elements or more";
  return nullptr;
}
const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_tf32(problem.gemm, chip)) return reason;
  FewColumnsPlan plan;
  if (problem.gemm.dtype_c != problem.gemm.dtype_a && !plan_few_columns(problem, true, chip, plan) &&
      !plan_few_columns(transposed(problem), true, chip, plan)) {
    return "its C in fp32 has up to 16 rows or columns, and short operands that lie along k, aligned to 16 bytes";
  }
  return refuse_size(problem, chip);
}

// In fp64, matrix instructions have the bits of multiply-adds in the order of k.
template <bool IS_MMA>
void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  DirectCosts borrowed;
  const DType dtype = problem.gemm.dtype_a;
  const bool is_f64 = dtype == DType::f64, is_batch = problem.batch_size > 1;
  const auto& costs = is_f64                ? (is_batch ? kDirectF64BatchCosts : kDirectF64Costs)
                      : !IS_MMA             ? kDirectF32Costs
                      : dtype == DType::f32 ? kDirectTf32Costs
                                            : (is_batch ? kDirectMmaBatchCosts : kDirectMmaCosts);
  for_each_direct_plan(costs_for(costs, chip, borrowed), problem, IS_MMA && !is_f64, chip, visit);
}

template <bool IS_MMA>
void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const DirectPlan& own = plan.as<DirectPlan>();
  if (own.tile == kNumDirectTiles) {
    fields.add_tile("warp", own.few_columns.rows,
                    round_up(own.is_exchanged ? problem.gemm.m : problem.gemm.n, kFewColumns));
    fields.add("path", "few_columns");
  } else if (IS_MMA && problem.gemm.dtype_a != DType::f64) {
    const DirectTile& tile = kDirectMmaTiles[own.tile];
    fields.add_tile("warp", 8 * tile.rows, 8 * tile.cols);
  } else {
    const DirectTile& tile = kDirectFmaTiles[own.tile];
    fields.add_tile("thread", tile.rows, tile.cols);
  }
  if (own.is_exchanged) fields.add("computes", "C^T");
}

}  // namespace

const Rung direct_rung = {
    .name = "direct",
    .description = "small items and short k: operands go from memory straight to registers",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.wide_result = true},
    .refuse_chip = refuse_not_nvidia,
    .refuse = refuse,
    .for_each_plan = for_each_plan<true>,
    .describe = describe<true>,
    .launch = launch_direct,
};

const Rung direct_fma_rung = {
    .name = "direct_fma",
    .description = "the same by fp32 multiply-adds",
    .is_gpu = true,
    .is_native = true,
    .order = Order::simt_chunks,
    .takes = kTakesFp32,
    .refuse_chip = refuse_not_nvidia,
    .refuse = refuse_size,
    .for_each_plan = for_each_plan<false>,
    .describe = describe<false>,
    .launch = launch_direct_fma,
};

}  // namespace tiledmm::gpu
