// The entries of rung 16: one follows the order of rung 13, for RDNA, the other that of rung 12, for CDNA.
#include "core/rung.h"
#include "core/summation.h"
#include "kernels/hip/16_few_rows/plan.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_few_rows(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

// CDNA's order has the chunks of 16 bits for every dtype.
int64_t chunk_k_on(const Chip& chip, const FoldedProblem& problem) {
  return is_rdna(chip) ? problem.chunk_k : mma_chunk_k(problem.asked_n, problem.gemm.k, false);
}

FewPlan plan_on(const Chip& chip, const FoldedProblem& problem) {
  return plan_few_rows(problem, chip, chunk_k_on(chip, problem));
}

template <bool IS_RDNA>
const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_amd(problem, chip)) return reason;
  if (is_rdna(chip) != IS_RDNA) return IS_RDNA ? "it is for RDNA 3 and 4" : "it is for CDNA";
  // Or m would choose the order of summation.
  if (!IS_RDNA && mfma_rung.refuse(problem, chip)) return mfma_rung.refuse(problem, chip);
  if (chip.mma_tflops[int(problem.gemm.dtype)] == 0) return "the chip has no matrix instruction for this dtype";
  if (min_of(problem.gemm.m, problem.gemm.n) > kMostFewRows) return "it serves up to 16 rows or columns";
  const FewPlan plan = plan_on(chip, problem);
  return few_partial_bytes(problem, plan) > kMaxFewPartialBytes ? "its chunks' sums would take 256 MB" : nullptr;
}

void plan(const FoldedProblem& problem, const Chip& chip, Plan& plan) {
  if (is_empty(problem)) return;
  plan.as<FewPlan>() = plan_on(chip, problem);
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

template <bool IS_RDNA>
constexpr Rung entry(const char* name, const char* description, Order order) {
  return {name, description, 16, true, true, order, refuse<IS_RDNA>, plan, describe, launch_few_rows};
}

}  // namespace

const Rung few_rows_rung =
    entry<true>("few_rows", "RDNA: few rows, the other operand straight to the matrix instructions", Order::mma_chunks);
const Rung few_rows_mfma_rung = entry<false>("few_rows.mfma", "CDNA: the same", Order::mfma_chunks);

}  // namespace tiledmm::gpu
