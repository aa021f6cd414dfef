// The instances of the mfma kernel by dtype and tile, which compile side by side: kernel.h defines the template, and
// each mfma_*.cu instantiates it for one dtype.
#pragma once

#include "core/executor.h"
#include "core/problem.h"
#include "kernels/hip/mfma/plan.h"

namespace tiledmm::gpu {

template <class T, int SHAPE>
Status launch_mfma_shape(const FoldedProblem& problem, const MfmaPlan& plan, const Executor& executor);

}  // namespace tiledmm::gpu
