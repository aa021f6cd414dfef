// The ladder's entries, rungs 01 to 08: what they serve, their tiles, a cost model.
#include "kernels/rungs.h"
#include "core/math.h"
#include "core/rung.h"
#include "kernels/gpu/costs.h"
#include "kernels/gpu/kernels.h"

namespace tiledmm::gpu {
namespace {

// Of an operand of 8 bits, that of the numbers which it becomes.
DType multiplied_dtype(const GemmProblem& p) { return size_of(p.dtype_a) == 1 ? DType::bf16 : p.dtype_a; }

const char* refuse_mma(const FoldedProblem& problem, const Chip& chip) {
  if (is_grouped(problem.gemm) && size_of(problem.gemm.dtype_a) > 2) return "it takes groups in 16 and in 8 bits alone";
  if (chip.mma_tflops[int(multiplied_dtype(problem.gemm))] == 0)
    return "the chip has no matrix instruction for this dtype";
  return refuse_tf32(problem.gemm, chip);
}

double num_tiles(const FoldedProblem& problem, int64_t block_m, int64_t block_n) {
  return double(ceil_div(problem.gemm.m, block_m)) * double(ceil_div(problem.gemm.n, block_n)) *
         double(problem.batch_size);
}

LadderPlan plan_naive(const FoldedProblem&, const Chip&) { return {8, 32, false}; }

template <int TILE>
LadderPlan plan_block_tiled(const FoldedProblem&, const Chip&) {
  return {TILE, TILE, TILE == 32};
}
// On NVIDIA's chips large tiles where they give every CU several.
LadderPlan plan_block_tiled_auto(const FoldedProblem& problem, const Chip& chip) {
  const bool is_large = chip.platform == Platform::cuda && num_tiles(problem, 32, 32) >= 4 * chip.num_cus;
  return is_large ? plan_block_tiled<32>(problem, chip) : plan_block_tiled<16>(problem, chip);
}

LadderPlan plan_row_register_tiled(const FoldedProblem&, const Chip&) { return {16, 128, false}; }

LadderPlan plan_register_tiled_4x4(const FoldedProblem&, const Chip& chip) {
  return register_tile(false, chip.platform == Platform::hip, chip.warp_size);
}
// The large tile where it gives most CUs one; its sums in fp64, or two sets of them, would not fit into the registers.
// Groups have the small one alone.
LadderPlan plan_register_tiled(const FoldedProblem& problem, const Chip& chip) {
  const LadderPlan large = register_tile(true, chip.platform == Platform::hip, chip.warp_size);
  const int64_t size = size_of(problem.gemm.dtype_a);
  const bool is_large = !is_grouped(problem.gemm) && size > 1 && size < 8 &&
                        2 * num_tiles(problem, large.block_m, large.block_n) > chip.num_cus;
  return is_large ? large : plan_register_tiled_4x4(problem, chip);
}

// The fragments of the large tile would not fit beside the sums of rung 05.
LadderPlan plan_mma_small(const FoldedProblem&, const Chip&) { return mma_tile(false, false); }
// The large tile where it gives most CUs one, else the small one. Both sum in the same order. Groups and operands of 8
// bits have the small one alone.
LadderPlan plan_mma(const FoldedProblem& problem, const Chip& chip) {
  const bool is_f64 = problem.gemm.dtype_a == DType::f64;
  const LadderPlan large = mma_tile(!is_f64, chip.platform == Platform::hip);
  const bool is_large = !is_grouped(problem.gemm) && size_of(problem.gemm.dtype_a) > 1 &&
                        2 * num_tiles(problem, large.block_m, large.block_n) > chip.num_cus;
  return is_large ? large : mma_tile(false, false);
}

template <int NUMBER, bool IS_MMA, LadderPlan (*CHOOSE)(const FoldedProblem&, const Chip&)>
void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  constexpr LadderCosts costs = kLadderCosts;
  const double peak = (IS_MMA ? chip.mma_tflops : chip.simt_tflops)[int(multiplied_dtype(p))];
  const bool is_on_rdna = chip.platform == Platform::hip && chip.warp_size == 32;
  const double efficiency = NUMBER == 4 && is_on_rdna ? costs.register_tiled_on_rdna : costs.efficiency[NUMBER];
  const double us = costs.start + num_flops(problem) / (efficiency * peak * 1e6) +
                    costs.traffic[NUMBER] * bytes_moved(problem) / (chip.tbytes_per_second * 1e6);
  visit(CHOOSE(problem, chip), us);
}

template <bool IS_MMA>
void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  fields.add_tile("block", plan.as<LadderPlan>().block_m, plan.as<LadderPlan>().block_n);
  if (size_of(problem.gemm.dtype_a) == 1) fields.add("widened_to", IS_MMA ? "bf16" : "fp32");
}

template <int NUMBER, bool IS_MMA, LadderPlan (*CHOOSE)(const FoldedProblem&, const Chip&)>
constexpr Rung rung(const char* name, const char* description, bool is_native, Launcher* launch) {
  return {.name = name,
          .description = description,
          .number = NUMBER,
          .is_gpu = true,
          .is_native = is_native,
          .order = IS_MMA ? Order::mma_chain : Order::chain,
          .takes = {.wide_result = NUMBER == 1 || NUMBER == 4 || NUMBER == 8,
                    .mixed = NUMBER == 1 || NUMBER == 4,
                    .alpha = NUMBER != 3,  // the bias is its sums' first value
                    .groups = NUMBER == 1 || NUMBER == 4 || NUMBER == 8,
                    .fp8 = NUMBER == 1 || NUMBER == 4 || NUMBER == 8},
          .refuse = IS_MMA ? refuse_mma : nullptr,
          .for_each_plan = for_each_plan<NUMBER, IS_MMA, CHOOSE>,
          .describe = describe<IS_MMA>,
          .launch = launch};
}

}  // namespace

const Rung naive_rung = rung<1, false, plan_naive>("naive", "one thread for each output", false, launch_naive);
const Rung block_tiled_rung = rung<2, false, plan_block_tiled_auto>(
    "block_tiled", "block tiles of 16 in shared memory, of 32 on NVIDIA for large results", false, launch_block_tiled);
const Rung block_tiled_8_rung =
    rung<2, false, plan_block_tiled<8>>("block_tiled.8", "the same with tiles of 8", false, launch_block_tiled);
const Rung block_tiled_32_rung =
    rung<2, false, plan_block_tiled<32>>("block_tiled.32", "the same with tiles of 32", false, launch_block_tiled);
const Rung row_register_tiled_rung = rung<3, false, plan_row_register_tiled>(
    "row_register_tiled", "one operand straight to registers, the other in shared memory", false,
    launch_row_register_tiled);
const Rung register_tiled_rung = rung<4, false, plan_register_tiled>(
    "register_tiled", "thread tiles of 8 x 8 in registers, 4 x 4 for small results and fp64", true,
    launch_register_tiled);
const Rung register_tiled_4x4_rung = rung<4, false, plan_register_tiled_4x4>(
    "register_tiled.4x4", "the same with thread tiles of 4 x 4", false, launch_register_tiled);
const Rung mma_rung = rung<5, true, plan_mma_small>("mma", "matrix instructions, nothing cached", false, launch_mma);
const Rung mma_cached_rung =
    rung<6, true, plan_mma>("mma_cached", "A and B cached in shared memory", false, launch_mma_cached);
const Rung mma_double_buffered_rung = rung<7, true, plan_mma>(
    "mma_double_buffered", "the next k tile prefetched into registers", false, launch_mma_double_buffered);
const Rung mma_output_cached_rung =
    rung<8, true, plan_mma>("mma_output_cached", "C kept in the accumulators", true, launch_mma_output_cached);

}  // namespace tiledmm::gpu
