// Rung 05, compiled for processors with AMX; with TILEDMM_EMULATE_AMX for any with AVX2.
#if defined(__x86_64__)
#if defined(TILEDMM_EMULATE_AMX)
#define TILEDMM_ISA_AVX2
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors of 64 bytes never leave their inlined functions
#else
#define TILEDMM_ISA_AVX512_BF16
#endif
#include "kernels/cpu/amx/launch.h"
#include "kernels/cpu/amx/tile_peak.h"
#include "kernels/cpu/shared/variants.h"

namespace tiledmm::cpu {
Status launch_amx(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  const AmxPlan& own = plan.as<AmxPlan>();
  return problem.gemm.dtype_a == DType::bf16 ? multiply_planned<Bf16Tiles>(problem, own, executor)
                                             : multiply_planned<Fp16Tiles>(problem, own, executor);
}
double tile_peak_amx(DType dtype, const Executor& executor) {
  return dtype == DType::f16 ? tile_peak<Fp16Tiles>(executor) : tile_peak<Bf16Tiles>(executor);
}
}  // namespace tiledmm::cpu
#endif
