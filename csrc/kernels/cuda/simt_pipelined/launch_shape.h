// The instances of the simt_pipelined kernel by shape, which compile side by side: kernel.h defines the template, and
// each instances_*.cu instantiates it for some shapes.
#pragma once

#include "core/executor.h"
#include "core/problem.h"

namespace tiledmm::gpu {

struct SimtWork {
  // Tiles of each product whose chunks of k one block computes each. Those of the others are shared out: each block
  // stores its sums to a tile of its own, [item][tile][chunk][row][col].
  int64_t num_whole;
  int32_t num_split, num_chunks;
  float* partial;
  bool is_a_padded, is_b_padded;  // rows along m (n) of a multiple of 4 elements may be read whole
};

// Launches the kernel of kSimtShapes[SHAPE] for the layouts of the problem.
template <int SHAPE>
Status launch_shape(const FoldedProblem& problem, const SimtWork& work, const Executor& executor);

}  // namespace tiledmm::gpu
