// The entry of mfma.
#include "core/rung.h"
#include "kernels/hip/mfma/plan.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_mfma;

namespace {

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const MfmaPlan& own = plan.as<MfmaPlan>();
  fields.add_tile("block", kMfmaShapes[own.shape].block, kMfmaShapes[own.shape].block);
  fields.add("block_k", mfma_block_k(problem.gemm.dtype_a));
  fields.add_split_k(own.num_splits);
  fields.add("chunks", max_of(1, ceil_div(problem.gemm.k, own.chunk_k)));
  fields.add("loads", kMfmaCopiesNames[int(own.copies)]);
}

}  // namespace

const Rung mfma_rung = {
    .name = "mfma",
    .description = "CDNA: matrix instructions of two halves of a block in turns",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mfma_chunks,
    .refuse_chip = refuse_not_cdna,
    .refuse = refuse_mfma,
    .for_each_plan = for_each_mfma_plan,
    .describe = describe,
    .launch = launch_mfma,
};

}  // namespace tiledmm::gpu
