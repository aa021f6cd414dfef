// Rung 06, compiled for processors with AMX; with TILEDMM_EMULATE_AMX for any with AVX2.
#if defined(__x86_64__)
#if defined(TILEDMM_EMULATE_AMX)
#define TILEDMM_ISA_AVX2
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors of 64 bytes never leave their inlined functions
#else
#define TILEDMM_ISA_AVX512_BF16
#endif
#include "kernels/cpu/amx_split/launch.h"

namespace tiledmm::cpu {
Status launch_amx_split(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  const AmxSplitPlan& own = plan.as<AmxSplitPlan>();
  return own.is_exchanged ? Multiplication<SixProducts<true>>(problem, own, executor).run()
                          : Multiplication<SixProducts<false>>(problem, own, executor).run();
}
}  // namespace tiledmm::cpu
#endif
