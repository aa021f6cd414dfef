// The entry of simt_rdna.
#include "core/rung.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/hip/simt_rdna/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_simt_rdna(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_amd(problem, chip)) return reason;
  if (!is_rdna(chip)) return "it is for RDNA 3 and 4";
  return problem.gemm.dtype == DType::f32 ? nullptr : "it serves fp32";
}

void describe(const FoldedProblem&, const Chip&, const Plan& plan, Fields& fields) {
  const SimtRdnaPlan& own = plan.as<SimtRdnaPlan>();
  fields.add_tile("block", kSimtRdnaShapes[own.shape].block_m, kSimtRdnaShapes[own.shape].block_n);
  if (!own.is_whole) fields.add("loads", "by element");
}

}  // namespace

const Rung simt_rdna_rung = {"simt_rdna",
                             "fp32 by multiply-adds, two of them at a time",
                             true,
                             true,
                             Order::chain,
                             refuse,
                             for_each_simt_rdna_plan,
                             describe,
                             launch_simt_rdna};

}  // namespace tiledmm::gpu
