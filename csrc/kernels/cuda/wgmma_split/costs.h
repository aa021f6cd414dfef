// The constants of the wgmma_split kernel's cost model.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

struct SplitCosts {
  Mma16Time full = 1.3;                   // a block of k in a round that fills the chip
  Mma16Time least = 0.85, fuller = 0.45;  // in another round: at least; times the share of multiprocessors with work
  Mma16Time few_block = 0.45, few_row = 0.024;      // one of few rows, and for each of these
  MemoryRate split = 3.5e6, few = 4e6, sums = 8e6;  // of the kernel that splits, of the split after the load, of sums
  Fixed start = 14, few_start = 8, unit = 2, addition = 3;  // of a call, with few rows, of a round, of adding chunks
};
inline constexpr CostRow<SplitCosts> kSplitCosts[] = {{90, {}}};

}  // namespace tiledmm
