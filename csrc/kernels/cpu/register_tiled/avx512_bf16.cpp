// Rung 04, and functions of each element, for the instruction set avx512_bf16. Its own is bf16 alone: the kernels of
// the other dtypes are those of avx512.
#if defined(__x86_64__)
#define TILEDMM_ISA_AVX512_BF16
#include "kernels/cpu/register_tiled/fma_peak.h"
#include "kernels/cpu/register_tiled/launch.h"
#include "kernels/cpu/shared/elementwise.h"

namespace tiledmm::cpu {
Status launch_register_tiled_avx512_bf16(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  if (problem.gemm.dtype_a != DType::bf16) return launch_register_tiled_avx512(problem, plan, executor);
  return launch_oriented<BFloat16, DotBf16, DType::bf16>(problem.gemm, plan.as<CpuPlan>(), executor);
}
double fma_peak_avx512_bf16(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
void elementwise_avx512_bf16(const ElementwiseProblem& problem, const Executor& executor) {
  elementwise(problem, executor);
}
}  // namespace tiledmm::cpu
#endif
