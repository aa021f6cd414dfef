// Rung 04 for the instruction set portable.
#if 1
#define TILEDMM_ISA_PORTABLE
#include "kernels/cpu/04_register_tiled.h"
#include "kernels/cpu/fma_peak.h"

namespace tiledmm::cpu {
Status launch_register_tiled_portable(const GemmProblem& problem, const Executor& executor) {
  return launch(problem, executor);
}
double fma_peak_portable(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }
}  // namespace tiledmm::cpu
#endif
