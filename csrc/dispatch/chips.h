// The chips that are known, as rows of data, and what this machine has.
#pragma once

#include <string>
#include <vector>

#include "core/chip.h"
#include "core/elementwise.h"
#include "core/executor.h"
#include "core/reduce.h"
#include "core/softmax.h"

namespace tiledmm {

// GPUs, then CPU instruction sets.
const std::vector<Chip>& chips();

// The row for "cpu", "cpu:avx2", "cuda:sm_90", "hip:gfx942"; null where it is not known. NVIDIA's chips beside the
// rows' own keep what sm_80 had.
const Chip* find_chip(const std::string& device);
// The row of a GPU's architecture, by the number that its runtime says; null where there are no kernels for it.
const Chip* find_gpu_chip(int32_t arch);

// In words: what find_chip knows, and what GPUs find_gpu_chip has a row for.
std::string known_devices();
std::string supported_gpus();

// What this machine's CPU has, by cpuid, read once.
Isa best_isa();
// The row of the best instruction set, with so many threads.
Chip cpu_chip(int32_t num_threads);
int32_t num_cores();

// GFLOP/s of the best multiply-add instruction of this machine on all threads, measured now; 0 where the kernel that
// has it is not compiled.
double measure_fma_peak(DType dtype, const Executor& executor);

// A function of each element, sums that are not running, and softmax of columns, by this machine's best instruction
// set.
void compute_elementwise(const ElementwiseProblem& problem, const Executor& executor);
Status compute_sums(const ReduceProblem& problem, const Executor& executor);
Status compute_softmax(const ColumnSoftmaxProblem& problem, const Executor& executor);

}  // namespace tiledmm
