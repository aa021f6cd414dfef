// The instances of the mma_async kernel by dtype and shape, which compile side by side: kernel.h defines the template,
// and each instances_*.cu instantiates it for some of them.
#pragma once

#include "core/executor.h"
#include "core/problem.h"
#include "kernels/cuda/mma_async/plan.h"

namespace tiledmm::gpu {

// Launches the kernel of one shape of block tiles (plan.h) for the layouts of the problem.
template <class T, int SHAPE>
Status launch_shape(const FoldedProblem& problem, const MmaAsyncChoice& choice, bool is_vectorised,
                    const Executor& executor);

}  // namespace tiledmm::gpu
