// The entry of wmma_rdna.
#include "core/rung.h"
#include "kernels/hip/shared/refuse.h"
#include "kernels/hip/wmma_rdna/plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Status launch_wmma_rdna(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (const char* reason = refuse_amd(problem, chip)) return reason;
  if (!is_rdna(chip)) return "it is for RDNA 3 and 4";
  return size_of(problem.gemm.dtype) == 2 ? nullptr : "it serves fp16 and bf16";
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WmmaPlan& own = plan.as<WmmaPlan>();
  fields.add_tile("block", kWmmaShapes[own.shape].block_m, kWmmaShapes[own.shape].block_n);
  fields.add_split_k(own.num_splits);
  fields.add("chunks", ceil_div(max_of(problem.gemm.k, 1), problem.chunk_k));
  if (!own.is_whole) fields.add("loads", "by element");
}

}  // namespace

const Rung wmma_rdna_rung = {"wmma_rdna",
                             "fp16 and bf16 by WMMA, tiles loaded without tests",
                             true,
                             true,
                             Order::mma_chunks,
                             refuse,
                             for_each_wmma_plan,
                             describe,
                             launch_wmma_rdna};

}  // namespace tiledmm::gpu
