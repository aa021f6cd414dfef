// The CPU rungs, declared for the dispatcher. Each takes any GemmProblem (0 sizes, any strides, a batch).
#pragma once

#include "core/api.h"
#include "core/problem.h"

namespace tiledmm::cpu {

Status launch_naive(const GemmProblem& problem, const Executor& executor);
Status launch_block_tiled(const GemmProblem& problem, const Executor& executor);
Status launch_register_tiled_portable(const GemmProblem& problem, const Executor& executor);
Status launch_register_tiled_neon(const GemmProblem& problem, const Executor& executor);
Status launch_register_tiled_avx2(const GemmProblem& problem, const Executor& executor);
Status launch_register_tiled_avx512(const GemmProblem& problem, const Executor& executor);
Status launch_register_tiled_avx512_bf16(const GemmProblem& problem, const Executor& executor);

// GFLOP/s of the multiply-add instruction on all threads, measured.
double fma_peak_portable(DType dtype, const Executor& executor);
double fma_peak_neon(DType dtype, const Executor& executor);
double fma_peak_avx2(DType dtype, const Executor& executor);
double fma_peak_avx512(DType dtype, const Executor& executor);
double fma_peak_avx512_bf16(DType dtype, const Executor& executor);

}  // namespace tiledmm::cpu
