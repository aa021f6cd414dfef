// The entry of rung 09: what it serves, and a rough cost model.
#include "core/rung.h"
#include "kernels/cuda/shared/plan.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_wgmma_single;

namespace {

constexpr int kBlockM = 128, kBlockN = 256;
// A call takes kLaunchUs, a tile kTileUs before its first matrix instruction and behind its last one, and in between
// the matrix unit has kEfficiency of its peak. All three are guesses.
constexpr double kLaunchUs = 4, kTileUs = 4, kEfficiency = 0.65;

const char* refuse(const FoldedProblem& problem, const Chip&) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  const GemmProblem& p = problem.gemm;
  if (p.k == 0) return "k is 0";
  if (p.m >= kLimit || p.n >= kLimit || p.k >= kLimit) return "a size is 2^30 or more";
  if (double(ceil_div(p.m, kBlockM)) * double(ceil_div(p.n, kBlockN)) >= double(kLimit))
    return "it has 2^30 tiles or more";
  TensorMapView view;
  if (!describe_operand(view_a(p), problem, view) || !describe_operand(view_b(p), problem, view)) {
    return "the copy engine takes rows without gaps, each at a multiple of 16 bytes";
  }
  return nullptr;
}

// One tile after the other on each multiprocessor.
void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  const double tiles = double(ceil_div(p.m, kBlockM) * ceil_div(p.n, kBlockN)) * double(problem.batch_size);
  const double flops = 2.0 * kBlockM * kBlockN * double(round_up(p.k, 64)), cus = double(chip.num_cus);
  const double tile_us = kTileUs + flops * cus / (kEfficiency * chip.mma_tflops[int(p.dtype_a)] * 1e6);
  visit(NoConfig{}, kLaunchUs + std::ceil(tiles / cus) * tile_us);
}

void describe(const FoldedProblem&, const Chip&, const Plan&, Fields& fields) {
  fields.add_tile("block", kBlockM, kBlockN);
  fields.add("block_k", 64);
  fields.add("stages", 4);
}

}  // namespace

const Rung wgmma_single_rung = {
    .name = "wgmma_single",
    .description = "Hopper: the copy engine fills a ring, warpgroup matrix instructions read it",
    .number = 9,
    .is_gpu = true,
    .order = Order::mma_chain,
    .takes = kTakes16Bits,
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_wgmma_single,
};

}  // namespace tiledmm::gpu
