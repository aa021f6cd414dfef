// The entries of the CPU's teaching rungs, 01 and 02.
#include "kernels/rungs.h"
#include "kernels/cpu/shared/cost.h"

namespace tiledmm::cpu {

TILEDMM_IF_LINKED Status launch_naive(const FoldedProblem& problem, const Plan& plan, const Executor& executor);
TILEDMM_IF_LINKED Status launch_block_tiled(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem&, const Chip&) { return nullptr; }

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
    .is_gpu = false,
    .is_native = false,
    .order = Order::chain,
    .takes = {.kept_sum = true},
    .refuse = refuse,
    .for_each_plan = for_each_naive_plan,
    .describe = describe_naive,
    .launch = launch_naive,
};
const Rung block_tiled_rung = {
    .name = "block_tiled",
    .description = "block tiles copied near, threads",
    .number = 2,
    .is_gpu = false,
    .is_native = false,
    .order = Order::chain,
    .takes = {.kept_sum = true},
    .refuse = refuse,
    .for_each_plan = for_each_block_tiled_plan,
    .describe = describe_block_tiled,
    .launch = launch_block_tiled,
};

}  // namespace tiledmm::cpu
