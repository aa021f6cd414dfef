// amx: its launcher, and GFLOP/s of the tile instruction on all threads, measured.
#pragma once

#include "core/executor.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiledmm::cpu {

TILEDMM_IF_LINKED Status launch_amx(const FoldedProblem& problem, const Plan& plan, const Executor& executor);
TILEDMM_IF_LINKED double tile_peak_amx(DType dtype, const Executor& executor);

}  // namespace tiledmm::cpu
