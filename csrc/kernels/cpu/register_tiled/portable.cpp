// Rung 04, and functions of each element, for the instruction set portable.
#define TILEDMM_ISA_PORTABLE
#include "kernels/cpu/register_tiled/fma_peak.h"
#include "kernels/cpu/register_tiled/launch.h"
#include "kernels/cpu/shared/elementwise.h"

namespace tiledmm::cpu {
Status launch_register_tiled_portable(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return launch(problem.gemm, plan.as<CpuPlan>(), executor);
}
double fma_peak_portable(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
void elementwise_portable(const ElementwiseProblem& problem, const Executor& executor) {
  elementwise(problem, executor);
}
}  // namespace tiledmm::cpu
