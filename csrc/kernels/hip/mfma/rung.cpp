// The entry of rung 12.
#include "core/rung.h"
#include "kernels/hip/mfma/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_mfma(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  if (chip.platform != Platform::hip || chip.warp_size != 64) return "the chip has no MFMA instruction";
  for (const OperandView& view : {view_a(p), view_b(p)}) {
    if (tile_span(view, p.dtype_a) >= double(kMaxMfmaTileBytes)) return "a tile's rows are spread over 2 GiB or more";
  }
  // HIP counts threads in 32 bits; a tile of 64 has 128.
  const double num_tiles = (double(p.m) / 64 + 1) * (double(p.n) / 64 + 1);
  if (num_tiles >= double(1 << 25)) return "it has 2^25 tiles or more";
  return nullptr;
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const MfmaPlan& own = plan.as<MfmaPlan>();
  fields.add_tile("block", kMfmaShapes[own.shape].block, kMfmaShapes[own.shape].block);
  fields.add("block_k", mfma_block_k(problem.gemm.dtype_a));
  fields.add("split_k", own.num_splits);
  fields.add("chunks", max_of(1, ceil_div(problem.gemm.k, own.chunk_k)));
  fields.add("copies", kMfmaCopiesNames[int(own.copies)]);
}

}  // namespace

const Rung mfma_rung = {
    .name = "mfma",
    .description = "CDNA: matrix instructions of two halves of a block in turns",
    .number = 12,
    .is_gpu = true,
    .is_native = true,
    .order = Order::mfma_chunks,
    .takes = {},
    .refuse = refuse,
    .for_each_plan = for_each_mfma_plan,
    .describe = describe,
    .launch = launch_mfma,
};

}  // namespace tiledmm::gpu
