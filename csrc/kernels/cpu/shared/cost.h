// The cost model of the CPU's rungs: the larger of the time to compute and the time to move the operands once.
#pragma once

#include "core/chip.h"
#include "core/problem.h"

namespace tiledmm::cpu {

// Microseconds at `flops_per_cycle` of one core; `is_threaded`: the rung shares out its work over chip.num_cus threads.
inline double cost_us(const FoldedProblem& problem, const Chip& chip, double flops_per_cycle, bool is_threaded) {
  constexpr double kGHz = 3.5, kBytesPerUs = 20e3;  // memory, one core
  constexpr double kLaunchUs = 0.1, kThreadsUs = 4;
  const GemmProblem& p = problem.gemm;
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(problem.batch_size);
  const double compute_us = 2 * m * n * k * batch / (flops_per_cycle * kGHz * 1e3);
  const double memory_us = bytes_moved(problem) / kBytesPerUs;
  const double one_thread_us = compute_us > memory_us ? compute_us : memory_us;
  const double many_threads_us = one_thread_us / chip.num_cus + kThreadsUs;
  const bool is_parallel = is_threaded && chip.num_cus > 1 && many_threads_us < one_thread_us;
  return kLaunchUs + (is_parallel ? many_threads_us : one_thread_us);
}

}  // namespace tiledmm::cpu
