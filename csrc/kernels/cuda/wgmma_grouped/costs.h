// The constants of wgmma_grouped's cost model, by the times of 17 shapes, equal and skewed groups, on an H100.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

struct GroupedCosts {
  Mma16Time k_tile[5] = {0.65, 0.38, 0.34, 0.22, 0.16};  // of a k tile of each of kGroupedTileShapes
  MemoryRate rate = 3e6, cached = 13e6;                  // of memory, of the second-level cache
  MemoryRate repacked = 3e6;                             // operands that are copied first
  Fixed start = 5, ramp = 12, tile = 0.8, element = 3.2e-5, overlap = 0.08;
  Fixed tail = 0.15;                         // how a last round slows memory
  Fixed many_rows = 100, small_tiles = 1.3;  // from so many rows of a group on, smaller tiles take longer
  Fixed repack = 2.5;
};
inline constexpr CostRow<GroupedCosts> kGroupedCosts[] = {{90, {}}};

}  // namespace tiledmm
