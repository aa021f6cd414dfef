// Rung 04 for the instruction set avx512.
#if defined(__x86_64__)
#define TILEDMM_ISA_AVX512
#include "kernels/cpu/04_register_tiled.h"
#include "kernels/cpu/fma_peak.h"

namespace tiledmm::cpu {
Status launch_register_tiled_avx512(const GemmProblem& problem, const Executor& executor) {
  return launch(problem, executor);
}
double fma_peak_avx512(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
}  // namespace tiledmm::cpu
#endif
