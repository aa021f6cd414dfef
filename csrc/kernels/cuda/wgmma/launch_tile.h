// The instances of the wgmma kernel by tile, which compile side by side: kernel.h defines the templates, and each
// instances_*_sm90a.cu instantiates them for one dtype and some tiles.
#pragma once

#include "kernels/cuda/wgmma/task.h"
#include "kernels/cuda/wgmma/tf32_plan.h"

namespace tiledmm::cuda {

// Launch the kernel of kTileShapes[TILE] or kTf32TileShapes[TILE] that serves the task; the reason why not, else null.
template <class T, int TILE>
const char* launch_tile(const Task& task);
template <int TILE>
const char* launch_tile_tf32(const Task& task);

}  // namespace tiledmm::cuda
