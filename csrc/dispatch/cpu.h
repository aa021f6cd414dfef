// The CPU as data: what this machine can run, the kernels that exist, and what each costs.
#pragma once

#include "core/registry.h"

namespace tiledmm {

// One row per instruction set. Rates are of one core, multiply and add counted as two operations.
struct CpuChip {
  Isa isa;
  double flops_per_cycle[kNumDTypes];  // of the multiply-add instruction, by DType
};

const CpuChip& cpu_chip(Isa isa);
// What this machine has, by cpuid, read once.
bool has_isa(Isa isa);
Isa best_isa();
int32_t num_cores();

inline constexpr int kNumCpuKernels = 7;
const CpuKernel* cpu_kernels();

// GFLOP/s of the best multiply-add instruction of this machine on all threads, measured now.
double measure_fma_peak(DType dtype, const Executor& executor);

// Microseconds that the model predicts for a kernel; the rates are those of a core at `kCpuGHz`.
double cpu_cost_us(const CpuKernel& kernel, const GemmProblem& problem, int32_t num_threads);

}  // namespace tiledmm
