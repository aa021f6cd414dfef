// The entry of wmma_rdna.
#include "core/rung.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/hip/wmma_rdna/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_wmma_rdna;

namespace {

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WmmaPlan& own = plan.as<WmmaPlan>();
  fields.add_tile("block", kWmmaShapes[own.shape].block_m, kWmmaShapes[own.shape].block_n);
  fields.add_split_k(own.num_splits);
  fields.add("chunks", ceil_div(max_of(problem.gemm.k, 1), problem.chunk_k));
  if (!own.is_whole) fields.add("loads", "by element");
}

}  // namespace

const Rung wmma_rdna_rung = {
    .name = "wmma_rdna",
    .description = "fp16 and bf16 by WMMA, tiles loaded without tests",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = kTakes16Bits,
    .refuse_chip = refuse_not_rdna,
    .refuse = refuse_long_k,
    .for_each_plan = for_each_wmma_plan,
    .describe = describe,
    .launch = launch_wmma_rdna,
};

}  // namespace tiledmm::gpu
