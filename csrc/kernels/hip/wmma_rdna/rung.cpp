// The entry of rung 13.
#include "core/rung.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/hip/wmma_rdna/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_wmma_rdna(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_amd(problem, chip)) return reason;
  return is_rdna(chip) ? nullptr : "it is for RDNA 3 and 4";
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WmmaPlan& own = plan.as<WmmaPlan>();
  fields.add_tile("block", kWmmaShapes[own.shape].block_m, kWmmaShapes[own.shape].block_n);
  fields.add("split_k", own.num_splits);
  fields.add("chunks", ceil_div(max_of(problem.gemm.k, 1), problem.chunk_k));
  if (!own.is_whole) fields.add("copies", "elements");
}

}  // namespace

const Rung wmma_rdna_rung = {
    .name = "wmma_rdna",
    .description = "fp16 and bf16 by WMMA, tiles loaded without tests",
    .number = 13,
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = kTakes16Bits,
    .refuse = refuse,
    .for_each_plan = for_each_wmma_plan,
    .describe = describe,
    .launch = launch_wmma_rdna,
};

}  // namespace tiledmm::gpu
