// The entry of rung 17.
#include "core/rung.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/hip/simt_rdna/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_simt_rdna(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_amd(problem, chip)) return reason;
  return is_rdna(chip) ? nullptr : "it is for RDNA 3 and 4";
}

void describe(const FoldedProblem&, const Chip&, const Plan& plan, Fields& fields) {
  const SimtRdnaPlan& own = plan.as<SimtRdnaPlan>();
  fields.add_tile("block", kSimtRdnaShapes[own.shape].block_m, kSimtRdnaShapes[own.shape].block_n);
  if (!own.is_whole) fields.add("copies", "elements");
}

}  // namespace

const Rung simt_rdna_rung = {
    .name = "simt_rdna",
    .description = "fp32 by multiply-adds, two of them at a time",
    .number = 17,
    .is_gpu = true,
    .is_native = true,
    .order = Order::chain,
    .takes = kTakesFp32,
    .refuse = refuse,
    .for_each_plan = for_each_simt_rdna_plan,
    .describe = describe,
    .launch = launch_simt_rdna,
};

}  // namespace tiledmm::gpu
