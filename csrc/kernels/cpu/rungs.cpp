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

const Rung naive_rung = {"naive",        "three loops", false, false, Order::chain, refuse, for_each_naive_plan,
                         describe_naive, launch_naive,  false, 1};
const Rung block_tiled_rung = {"block_tiled",
                               "block tiles copied near, threads",
                               false,
                               false,
                               Order::chain,
                               refuse,
                               for_each_block_tiled_plan,
                               describe_block_tiled,
                               launch_block_tiled,
                               false,
                               2};

}  // namespace tiledmm::cpu
