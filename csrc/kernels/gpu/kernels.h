// The launchers of the ladder, rungs 01 to 08, and the tiles that they know. They check nothing: rungs.cpp says which
// problems a rung serves, and plans.
#pragma once

#include "core/plan.h"

namespace tiledmm::gpu {

struct LadderPlan {
  int32_t block_m, block_n;
  bool is_large;  // of a rung's two tiles
};

// The block tile of rung 04: thread tiles of 8 x 8 or of 4 x 4. A warp of 64 lanes has twice the rows.
constexpr LadderPlan register_tile(bool is_large, bool is_amd, int warp_size) {
  if (!is_large) return {2 * warp_size, 32, false};
  return {4 * warp_size, is_amd ? 64 : 128, true};
}

// The block tile of rungs 05 to 08. fp64 has the small one alone: its sums take two registers. AMD's large one is
// smaller than NVIDIA's, since its compiler has more values alive at a time.
constexpr LadderPlan mma_tile(bool is_large, bool is_amd) {
  if (!is_large) return {64, 64, false};
  return {128, is_amd ? 128 : 256, true};
}

TILEDMM_IF_LINKED Launcher launch_naive, launch_block_tiled, launch_row_register_tiled, launch_register_tiled,
    launch_mma, launch_mma_cached, launch_mma_double_buffered, launch_mma_output_cached;

}  // namespace tiledmm::gpu
