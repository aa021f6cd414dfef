// The entry of skinny.
#include "core/rung.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/cuda/skinny/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_skinny;

namespace {

const char* refuse(const FoldedProblem& problem, const Chip&) {
  const DType dtype = problem.gemm.dtype_a;
  if (min_of(problem.gemm.m, problem.gemm.n) > skinny_max_m(dtype))
    return dtype == DType::f64 ? "in fp64 it serves up to 8 rows or columns" : "it serves up to 64 rows or columns";
  const bool are_along_k = is_k_major(view_a(problem.gemm)) && is_k_major(view_b(problem.gemm));
  if (mix_of(problem.gemm) == Mix::fp8_b) {
    if (problem.gemm.m > skinny_max_m(dtype)) return "it serves up to 64 rows beside a B of 8 bits";
    if (!are_along_k || problem.gemm.num_batch_dims > 0) return "beside a B of 8 bits A and B lie along k, one of each";
    return nullptr;
  }
  if (problem.gemm.dtype_c != dtype && !are_along_k) return "its C in fp32 needs operands in 16 bits that lie along k";
  return nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const auto show = [&](const auto& rows, auto borrowed) {
    const auto& costs = costs_for(rows, chip, borrowed);
    for_each_skinny_launch(costs, problem, chip.num_cus, chip.max_shared_bytes, visit);
  };
  if (mix_of(problem.gemm) == Mix::fp8_b) return show(kSkinnyFp8Costs, SkinnyFp8Costs{});
  problem.gemm.dtype_a == DType::f64 ? show(kSkinnyF64Costs, SkinnyF64Costs{}) : show(kSkinnyCosts, SkinnyCosts{});
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const SkinnyLaunch& own = plan.as<SkinnyLaunch>();
  const int block_m = skinny_block_m(own.is_exchanged ? problem.gemm.n : problem.gemm.m);
  fields.add_tile("block", block_m, own.plan.cols);
  fields.add("block_k", skinny_block_k(problem.gemm.dtype_a, block_m, size_of(problem.gemm.dtype_b) == 1));
  fields.add("stages", own.plan.num_stages);
  fields.add_split_k(own.plan.num_chunks);
  fields.add("chunks", max_of(1, ceil_div(problem.gemm.k, problem.chunk_k)));
  if (own.is_exchanged) fields.add("computes", "C^T");
}

}  // namespace

const Rung skinny_rung = {
    .name = "skinny",
    .description = "few rows: the other operand streams through the matrix instructions once",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.dtypes = {DType::f16, DType::bf16, DType::f64},
              .num_dtypes = 3,
              .served = "it serves fp16, bf16 and fp64",
              .wide_result = true,
              .fp8_b = true},
    .refuse_chip = refuse_not_nvidia,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_skinny,
};

}  // namespace tiledmm::gpu
