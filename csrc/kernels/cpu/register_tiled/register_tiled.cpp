// Rung 04, functions of each element, sums, and softmax of columns, compiled for one instruction set after the other:
// TILEDMM_INSTANCE is its number, that of Isa. Nothing of those of another processor.
constexpr int kNumInstances = 5;
#if TILEDMM_INSTANCE == 0
#define TILEDMM_ISA_PORTABLE
#define TILEDMM_OF_ISA(NAME) NAME##_portable
#elif TILEDMM_INSTANCE == 1 && defined(__aarch64__)
#define TILEDMM_ISA_NEON
#define TILEDMM_OF_ISA(NAME) NAME##_neon
#elif TILEDMM_INSTANCE == 2 && defined(__x86_64__)
#define TILEDMM_ISA_AVX2
#define TILEDMM_OF_ISA(NAME) NAME##_avx2
#elif TILEDMM_INSTANCE == 3 && defined(__x86_64__)
#define TILEDMM_ISA_AVX512
#define TILEDMM_OF_ISA(NAME) NAME##_avx512
#elif TILEDMM_INSTANCE == 4 && defined(__x86_64__)
#define TILEDMM_ISA_AVX512_BF16
#define TILEDMM_OF_ISA(NAME) NAME##_avx512_bf16
#endif

#if defined(TILEDMM_OF_ISA)
#include "core/chip.h"
#include "kernels/cpu/register_tiled/fma_peak.h"
#include "kernels/cpu/register_tiled/launch.h"
#include "kernels/cpu/shared/elementwise.h"
#include "kernels/cpu/shared/reduce.h"
#include "kernels/cpu/shared/softmax.h"

namespace tiledmm::cpu {

static_assert(kNumInstances == int(Isa::avx512_bf16) + 1);

Status TILEDMM_OF_ISA(launch_register_tiled)(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
#if defined(TILEDMM_ISA_AVX512_BF16)  // its own is bf16 alone: the kernels of the other dtypes are those of avx512
  if (problem.gemm.dtype_a != DType::bf16) return launch_register_tiled_avx512(problem, plan, executor);
  using Dot = DotBf16<BFloat16>;
  static_assert(Dot::kPerWord == kernel_shape(kIsa, DType::bf16).k_per_word, "the plan knows the words");
  const CpuPlan& own = plan.as<CpuPlan>();
  if (problem.gemm.dtype_b == DType::e4m3) {
    return TiledProduct<E4m3, DotBf16<E4m3>>{problem.gemm, own.config, executor}.run();
  }
  return launch_oriented(problem.gemm, own, [&](const GemmProblem& oriented) {
    return launch_as<BFloat16, Dot>(oriented, own.config, executor);
  });
#else
  return launch(problem.gemm, plan.as<CpuPlan>(), executor);
#endif
}

double TILEDMM_OF_ISA(fma_peak)(DType dtype, const Executor& executor) { return fma_peak(dtype, executor); }

void TILEDMM_OF_ISA(elementwise)(const ElementwiseProblem& problem, const Executor& executor) {
  elementwise(problem, executor);
}

#if !defined(TILEDMM_ISA_AVX512_BF16)  // sums of bf16 are those of avx512
Status TILEDMM_OF_ISA(reduce)(const ReduceProblem& problem, const Executor& executor) {
  return reduce(problem, executor);
}
Status TILEDMM_OF_ISA(column_softmax)(const ColumnSoftmaxProblem& problem, const Executor& executor) {
  return column_softmax(problem, executor);
}
#endif

}  // namespace tiledmm::cpu
#endif
