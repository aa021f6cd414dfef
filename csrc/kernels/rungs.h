// Declares the entry of every kernel: cpu::naive_rung, gpu::wgmma_rung, ... and what CPUs have beside kernels.
#pragma once

#include "core/chip.h"
#include "core/elementwise.h"
#include "core/quantize.h"
#include "core/reduce.h"
#include "core/rung.h"
#include "core/softmax.h"

namespace tiledmm {
#define TILEDMM_RUNG(NAMESPACE, NAME) \
  namespace NAMESPACE {               \
  extern const Rung NAME##_rung;      \
  }
#include "kernels/rungs.def"
#undef TILEDMM_RUNG

namespace cpu {
// By an instruction set that this machine has. GFLOP/s of its multiply-add or tile instruction on all threads, measured
// now; 0 where the kernel that has it is not compiled. And a function of each element.
TILEDMM_IF_LINKED double measure_fma_peak(Isa isa, DType dtype, const Executor& executor);
TILEDMM_IF_LINKED void compute_elementwise(Isa isa, const ElementwiseProblem& problem, const Executor& executor);
// Sums along a dimension, that are not running.
TILEDMM_IF_LINKED Status compute_sums(Isa isa, const ReduceProblem& problem, const Executor& executor);
// Softmax of columns, and its gradient.
TILEDMM_IF_LINKED Status compute_softmax(Isa isa, const ColumnSoftmaxProblem& problem, const Executor& executor);
// Elements of 8 bits with scales, on every machine.
TILEDMM_IF_LINKED void quantize(const QuantizeProblem& problem, const Executor& executor);
}  // namespace cpu
}  // namespace tiledmm
