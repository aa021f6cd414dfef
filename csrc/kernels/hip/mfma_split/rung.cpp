// The entry of mfma_split.
#include "core/rung.h"
#include "kernels/hip/mfma_split/plan.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_mfma_split;

namespace {

const char* refuse_chip(const Chip& chip) {
  if (const char* reason = refuse_not_cdna(chip)) return reason;
  return chip.arch == 0x90a ? "the chip's MFMA instructions read denormal fp16 as zero" : nullptr;
}

const char* refuse(const FoldedProblem& problem, const Chip&) {
  // A tile's rows of terms lie within 2 GiB; HIP counts threads in 32 bits, and so are tiles counted, those of the
  // split, kSplitRows by a chunk of k, too.
  constexpr int64_t kMaxK = int64_t(1) << 21;
  constexpr double kMaxTiles = double(1 << 23);
  const GemmProblem& p = problem.gemm;
  if (p.k < kSplitMinK) return nullptr;  // left to others
  if (p.k > kMaxK) return "k is more than 2^21";
  const double tiles_m = double(ceil_div(p.m, 64)), tiles_n = double(ceil_div(p.n, 64));
  const double batch = double(problem.batch_size), chunks = double(ceil_div(p.k, kSplitChunkK));
  const double splits = kSplitBlock / kSplitRows * batch * (tiles_m + tiles_n) * chunks;
  if (batch * tiles_m * tiles_n >= kMaxTiles || splits >= 2 * kMaxTiles) {
    return "it has 2^23 tiles or more";
  }
  return nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  for_each_mfma_split_plan(first_groups(problem), double(group_rounds(problem)), chip, visit);
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const MfmaSplitPlan& own = plan.as<MfmaSplitPlan>();
  const int block = kMfmaSplitShapes[own.shape].block;
  fields.add_tile("block", block, block);
  fields.add("path", "3 products in fp16");
  fields.add("one_product_within", "10.1*2^-24");  // of it; docs/numerics.md
  fields.add("workspace", own.a.bytes() + own.b.bytes() + group_sum_bytes(problem));
}

}  // namespace

const Rung mfma_split_rung = {
    .name = "mfma_split",
    .description = "CDNA 3 and 4: fp32 as two fp16 terms, three products, short sums",
    .is_gpu = true,
    .order = Order::mfma_split_sums,
    .takes = kTakesFp32,
    .refuse_chip = refuse_chip,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_mfma_split,
    .is_split = true,
    .min_k = kSplitMinK,
};

}  // namespace tiledmm::gpu
