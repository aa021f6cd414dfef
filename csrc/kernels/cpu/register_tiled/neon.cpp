// Rung 04, and functions of each element, for the instruction set neon.
#if defined(__aarch64__)
#define TILEDMM_ISA_NEON
#include "kernels/cpu/register_tiled/fma_peak.h"
#include "kernels/cpu/register_tiled/launch.h"
#include "kernels/cpu/shared/elementwise.h"

namespace tiledmm::cpu {
Status launch_register_tiled_neon(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return launch(problem.gemm, plan.as<CpuPlan>(), executor);
}
double fma_peak_neon(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
void elementwise_neon(const ElementwiseProblem& problem, const Executor& executor) { elementwise(problem, executor); }
}  // namespace tiledmm::cpu
#endif
