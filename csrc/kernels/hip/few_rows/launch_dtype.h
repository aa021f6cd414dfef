// The instances of the few_rows kernel by dtype, which compile side by side: kernel.h defines the template, and each
// few_*.cu instantiates it for one of them.
#pragma once

#include "kernels/hip/few_rows/plan.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

// The kernel's first parameter.
struct FewWork {
  int64_t tiles;       // blocks that share out the large operand's rows
  int64_t num_splits;  // and each of them k
  int64_t part_k;      // what a block sums
  void* partials;      // as ChunkSums has them, null where a block computes all of k
};

template <class T>
Status launch_few_rows_of(const FoldedProblem& problem, const FewPlan& plan, const FewWork& work,
                          const Executor& executor);

}  // namespace tiledmm::gpu
