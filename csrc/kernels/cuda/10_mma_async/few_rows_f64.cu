// One row of C in fp64, by multiply-adds in the order of rung 10: its bits are those of a chain of them.
#include "kernels/cuda/shared/few_rows.h"

namespace tiledmm::gpu {

Status launch_few_rows_f64(const FewRowsPlan& plan, const FoldedProblem& problem, const Executor& executor) {
  return launch_few_rows<double>(plan, problem, executor);
}

}  // namespace tiledmm::gpu
