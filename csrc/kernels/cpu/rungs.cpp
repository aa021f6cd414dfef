// The entries of the CPU's teaching rungs, 01 and 02, and what each instruction set has beside kernels.
#include "kernels/rungs.h"
#include "kernels/cpu/shared/cost.h"
#include "kernels/cpu/shared/variants.h"

namespace tiledmm::cpu {

TILEDMM_IF_LINKED Launcher launch_naive, launch_block_tiled;

namespace {

// Multiply-adds that no vector width speeds up much.
void for_each_naive_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  visit(NoConfig{}, cost_us(problem, chip, 0.5, false));
}
void for_each_block_tiled_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  visit(NoConfig{}, cost_us(problem, chip, 4, true));
}

void describe_naive(const FoldedProblem&, const Chip&, const Plan&, Fields&) {}
void describe_block_tiled(const FoldedProblem&, const Chip&, const Plan&, Fields& fields) {
  fields.add_tile("block", 64, 64);
}

}  // namespace

const Rung naive_rung = {
    .name = "naive",
    .description = "three loops",
    .number = 1,
    .order = Order::chain,
    .takes = {.wide_result = true, .mixed = true, .kept_sum = true},
    .for_each_plan = for_each_naive_plan,
    .describe = describe_naive,
    .launch = launch_naive,
};
const Rung block_tiled_rung = {
    .name = "block_tiled",
    .description = "block tiles copied near, threads",
    .number = 2,
    .order = Order::chain,
    .takes = {.wide_result = true, .mixed = true, .kept_sum = true},
    .for_each_plan = for_each_block_tiled_plan,
    .describe = describe_block_tiled,
    .launch = launch_block_tiled,
};

double measure_fma_peak(Isa isa, DType dtype, const Executor& executor) {
  const bool has_tiles = dtype == DType::bf16 ? isa >= Isa::amx : dtype == DType::f16 && isa >= Isa::amx_fp16;
  if (has_tiles && tile_peak_amx) return tile_peak_amx(dtype, executor);
  // By Isa.
  constexpr decltype(&fma_peak_portable) kPeaks[kNumIsas] = {fma_peak_portable, fma_peak_neon,        fma_peak_avx2,
                                                             fma_peak_avx512,   fma_peak_avx512_bf16, fma_peak_avx512,
                                                             fma_peak_avx512};
  const auto peak = kPeaks[int(isa)];
  return peak ? peak(dtype, executor) : 0;
}

void compute_elementwise(Isa isa, const ElementwiseProblem& problem, const Executor& executor) {
  // By Isa. The kernels of AMX store as avx512_bf16 does.
  constexpr decltype(&elementwise_portable) kVariants[kNumIsas] = {
      elementwise_portable,    elementwise_neon,        elementwise_avx2,       elementwise_avx512,
      elementwise_avx512_bf16, elementwise_avx512_bf16, elementwise_avx512_bf16};
  kVariants[int(isa)](problem, executor);
}

Status compute_sums(Isa isa, const ReduceProblem& problem, const Executor& executor) {
  // By Isa.
  constexpr decltype(&reduce_portable) kVariants[kNumIsas] = {
      reduce_portable, reduce_neon, reduce_avx2, reduce_avx512, reduce_avx512, reduce_avx512, reduce_avx512};
  return kVariants[int(isa)](problem, executor);
}

Status compute_softmax(Isa isa, const ColumnSoftmaxProblem& problem, const Executor& executor) {
  // By Isa.
  constexpr decltype(&column_softmax_portable) kVariants[kNumIsas] = {
      column_softmax_portable, column_softmax_neon,   column_softmax_avx2,  column_softmax_avx512,
      column_softmax_avx512,   column_softmax_avx512, column_softmax_avx512};
  return kVariants[int(isa)](problem, executor);
}

}  // namespace tiledmm::cpu
