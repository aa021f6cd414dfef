// The entries of few_rows. They follow the orders of wmma_rdna on RDNA, of mfma on CDNA, and of simt_rdna on RDNA in
// fp32 and fp64.
#include "core/rung.h"
#include "core/summation.h"
#include "kernels/hip/few_rows/plan.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_few_rows;

namespace {

bool is_by_multiply_add(const Chip& chip, DType dtype) { return is_rdna(chip) && size_of(dtype) >= 4; }

// CDNA's order has the chunks of 16 bits for every dtype; multiply-adds are one chain.
int64_t chunk_k_on(const Chip& chip, const FoldedProblem& problem) {
  const int64_t k = problem.gemm.k;
  if (is_by_multiply_add(chip, problem.gemm.dtype_a)) return max_of(k, 1);
  return is_rdna(chip) ? problem.chunk_k : mma_chunk_k(problem.asked_n, k, false);
}

FewPlan plan_on(const Chip& chip, const FoldedProblem& problem) {
  return plan_few_rows(problem, chip, chunk_k_on(chip, problem));
}

template <Order ORDER>
const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_long_k(problem, chip)) return reason;
  if (ORDER == Order::mfma_chunks) {
    if (const char* reason = refuse_mfma(problem, chip)) return reason;
  } else if (is_by_multiply_add(chip, problem.gemm.dtype_a) != (ORDER == Order::chain)) {
    return ORDER == Order::chain ? "it serves fp32 and fp64" : "the chip has no matrix instruction for this dtype";
  }
  if (min_of(problem.gemm.m, problem.gemm.n) > kMostFewRows) return "it serves up to 16 rows or columns";
  const FewPlan plan = plan_on(chip, problem);
  return few_partial_bytes(problem, plan) > double(kMaxPartialBytes) ? "its chunks' sums would take 256 MB" : nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const FewPlan plan = plan_on(chip, problem);
  visit(plan, few_rows_us(plan, problem, chip));
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const FewPlan& own = plan.as<FewPlan>();
  const int tile = few_rows_tile(size_of(problem.gemm.dtype_a), own.is_whole && !own.is_k_major);
  own.are_columns_few ? fields.add_tile("block", tile, kMostFewRows) : fields.add_tile("block", kMostFewRows, tile);
  fields.add_split_k(own.num_splits);
  if (!own.is_whole) fields.add("loads", "by element");
}

template <Order ORDER>
constexpr Rung entry(const char* name, const char* description) {
  return {.name = name,
          .description = description,
          .is_gpu = true,
          .is_native = true,
          .order = ORDER,
          .refuse_chip = ORDER == Order::mfma_chunks ? refuse_not_cdna : refuse_not_rdna,
          .refuse = refuse<ORDER>,
          .for_each_plan = for_each_plan,
          .describe = describe,
          .launch = launch_few_rows};
}

}  // namespace

const Rung few_rows_rung =
    entry<Order::mma_chunks>("few_rows", "RDNA: few rows, the other operand straight to the matrix instructions");
const Rung few_rows_mfma_rung = entry<Order::mfma_chunks>("few_rows.mfma", "CDNA: the same");
const Rung few_rows_chain_rung =
    entry<Order::chain>("few_rows.chain", "RDNA, fp32 and fp64: the same by multiply-adds");

}  // namespace tiledmm::gpu
