// Rung 04 for the instruction set neon.
#if defined(__aarch64__)
#define TILEDMM_ISA_NEON
#include "kernels/cpu/04_register_tiled.h"
#include "kernels/cpu/fma_peak.h"

namespace tiledmm::cpu {
Status launch_register_tiled_neon(const GemmProblem& problem, const Executor& executor) {
  return launch(problem, executor);
}
double fma_peak_neon(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
}  // namespace tiledmm::cpu
#endif
