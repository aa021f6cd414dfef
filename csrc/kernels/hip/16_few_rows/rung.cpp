// The entry of rung 16.
#include "core/rung.h"
#include "kernels/hip/16_few_rows/plan.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_few_rows(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_amd(problem, chip)) return reason;
  if (!is_rdna(chip)) return "it is for RDNA 3 and 4";
  if (size_of(problem.gemm.dtype) != 2) return "it serves fp16 and bf16";
  if (min_of(problem.gemm.m, problem.gemm.n) > kMostFewRows) return "it serves up to 16 rows or columns";
  const FewPlan plan = plan_few_rows(problem, chip, problem.chunk_k);
  return few_partial_bytes(problem, plan) > kMaxFewPartialBytes ? "its chunks' sums would take 256 MB" : nullptr;
}

void plan(const FoldedProblem& problem, const Chip& chip, Plan& plan) {
  if (is_empty(problem)) return;
  plan.as<FewPlan>() = plan_few_rows(problem, chip, problem.chunk_k);
  plan.cost_us = few_rows_us(plan.as<FewPlan>(), problem, chip);
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  if (is_empty(problem)) return;
  const FewPlan& own = plan.as<FewPlan>();
  const int tile = few_rows_tile(size_of(problem.gemm.dtype), own.is_whole && !own.is_k_major);
  own.are_columns_few ? fields.add_tile("block", tile, kMostFewRows) : fields.add_tile("block", kMostFewRows, tile);
  fields.add("split_k", own.num_splits);
  if (!own.is_whole) fields.add("copies", "elements");
}

}  // namespace

const Rung few_rows_rung = {"few_rows", "few rows: the other operand streams straight to the matrix instructions",
                            16,         true,
                            true,       Order::mma_chunks,
                            refuse,     plan,
                            describe,   launch_few_rows};

}  // namespace tiledmm::gpu
