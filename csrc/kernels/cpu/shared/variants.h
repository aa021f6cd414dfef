// What is compiled for one instruction set: a launcher of rung 04, functions of each element, sums, softmax of columns,
// and a measurement of the multiply-add instruction, or of AMX's tile instruction: GFLOP/s on all threads.
#pragma once

#include "core/elementwise.h"
#include "core/plan.h"
#include "core/reduce.h"
#include "core/softmax.h"

namespace tiledmm::cpu {

#define TILEDMM_REGISTER_TILED(ISA)                                                                             \
  TILEDMM_IF_LINKED Status reduce_##ISA(const ReduceProblem& problem, const Executor& executor);                \
  TILEDMM_IF_LINKED Status column_softmax_##ISA(const ColumnSoftmaxProblem& problem, const Executor& executor); \
  TILEDMM_IF_LINKED Launcher launch_register_tiled_##ISA;                                                       \
  TILEDMM_IF_LINKED double fma_peak_##ISA(DType dtype, const Executor& executor);                               \
  TILEDMM_IF_LINKED void elementwise_##ISA(const ElementwiseProblem& problem, const Executor& executor);
TILEDMM_REGISTER_TILED(portable)
TILEDMM_REGISTER_TILED(neon)
TILEDMM_REGISTER_TILED(avx2)
TILEDMM_REGISTER_TILED(avx512)
TILEDMM_REGISTER_TILED(avx512_bf16)
#undef TILEDMM_REGISTER_TILED
TILEDMM_IF_LINKED double tile_peak_amx(DType dtype, const Executor& executor);

}  // namespace tiledmm::cpu
