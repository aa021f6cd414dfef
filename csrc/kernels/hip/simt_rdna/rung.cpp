// The entry of simt_rdna.
#include "core/rung.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/hip/simt_rdna/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_simt_rdna;

namespace {

void describe(const FoldedProblem&, const Chip&, const Plan& plan, Fields& fields) {
  const SimtRdnaPlan& own = plan.as<SimtRdnaPlan>();
  fields.add_tile("block", kSimtRdnaShapes[own.shape].block_m, kSimtRdnaShapes[own.shape].block_n);
  if (!own.is_whole) fields.add("loads", "by element");
}

}  // namespace

const Rung simt_rdna_rung = {
    .name = "simt_rdna",
    .description = "fp32 by multiply-adds, two of them at a time",
    .is_gpu = true,
    .is_native = true,
    .order = Order::chain,
    .takes = kTakesFp32,
    .refuse_chip = refuse_not_rdna,
    .refuse = refuse_long_k,
    .for_each_plan = for_each_simt_rdna_plan,
    .describe = describe,
    .launch = launch_simt_rdna,
};

}  // namespace tiledmm::gpu
