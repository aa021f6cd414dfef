// The multiply-add peak of an instruction set: what a benchmark measures the rungs against, in the same run.
// Independent chains of the very instruction that rung 04 uses, on every thread at once, operands in registers.
// Included once per instruction set by <isa>.cpp.
#pragma once

#include <chrono>

#include "core/executor.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

template <class Op>
struct FmaChains {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  static constexpr int kChains = TILEDMM_VECTOR_BYTES == 64 ? 24 : 12;
  static constexpr int64_t kRounds = 20000;
  static constexpr double kFlops = 2.0 * kChains * kRounds * Simd<Acc>::kLanes * Op::kPerWord;

  static void run(volatile Acc* sink) {
    Reg<Acc> acc[kChains];
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = broadcast(Acc(c));  // chains that differ cannot be merged
    Reg<Word> a{}, b{};
    for (int64_t round = 0; round < kRounds; ++round) {
      asm volatile("" : "+m"(*sink));  // no round is merged with the next
#pragma GCC unroll 24
      for (int c = 0; c < kChains; ++c) acc[c] = Op::multiply_add(a, b, acc[c]);
    }
#pragma GCC unroll 24
    for (int c = 1; c < kChains; ++c) acc[0] += acc[c];
    *sink = acc[0][0];
  }
};

// GFLOP/s of all threads together: the best of several short runs.
template <class Op>
double fma_peak_of(const Executor& executor) {
  double best = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(executor, executor.num_threads, [&](int64_t) {
      typename Op::Acc sink = 0;
      FmaChains<Op>::run(&sink);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = FmaChains<Op>::kFlops * executor.num_threads / seconds.count() / 1e9;
    if (rate > best) best = rate;
  }
  return best;
}

[[maybe_unused]] double fma_peak(DType dtype, const Executor& executor) {
  if (dtype == DType::f64) return fma_peak_of<Fma<double, double>>(executor);
#if defined(TILEDMM_ISA_AVX512_BF16)
  if (dtype == DType::bf16) return fma_peak_of<DotBf16<BFloat16>>(executor);
#endif
  return fma_peak_of<Fma<float, float>>(executor);
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END
