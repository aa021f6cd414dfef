// What the host gives simt_pipelined's kernel beside the problem.
#pragma once

#include "core/executor.h"
#include "core/problem.h"
#include "platform/divisor.h"

namespace tiledmm::gpu {

// The kernel's parameter.
struct SimtWork {
  // Tiles of each product whose chunks of k one block computes each. Those of the others are shared out: each block
  // stores its sums to a tile of its own, [item][tile][chunk][row][col].
  int64_t num_whole;
  int32_t num_split;
  Divisor tiles_n, chunks;  // tiles of a row of tiles; chunks of k
  float* partial;
  bool is_a_padded, is_b_padded;  // rows along m (n) of a multiple of 4 elements may be read whole
};

// Launches the kernel of kSimtShapes[shape] for the layouts of the problem.
template <int INSTANCE>
Status launch_instance(int shape, const FoldedProblem& problem, const SimtWork& work, const Executor& executor);

}  // namespace tiledmm::gpu
