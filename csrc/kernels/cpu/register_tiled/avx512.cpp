// Rung 04, and functions of each element, for the instruction set avx512.
#if defined(__x86_64__)
#define TILEDMM_ISA_AVX512
#include "kernels/cpu/register_tiled/fma_peak.h"
#include "kernels/cpu/register_tiled/launch.h"
#include "kernels/cpu/shared/elementwise.h"

namespace tiledmm::cpu {
Status launch_register_tiled_avx512(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return launch(problem.gemm, plan.as<CpuPlan>(), executor);
}
double fma_peak_avx512(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
void elementwise_avx512(const ElementwiseProblem& problem, const Executor& executor) { elementwise(problem, executor); }
}  // namespace tiledmm::cpu
#endif
