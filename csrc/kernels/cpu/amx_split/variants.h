// amx_split: its launcher.
#pragma once

#include "core/executor.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiledmm::cpu {

TILEDMM_IF_LINKED Status launch_amx_split(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

}  // namespace tiledmm::cpu
