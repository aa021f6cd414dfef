// The constants of the wgmma_split kernel's cost model.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

// Microseconds, but where it says something else.
struct SplitCosts {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f16)]; }
  struct {
    double full;           // of a block of k in a round that fills the chip
    double least, fuller;  // in one that does not: at least, and times the share of the multiprocessors with work
    double few;            // of one of few rows
  } multiply;
  struct {
    double split;  // bytes per us: of the kernel that splits,
    double sums;   // of chunks' sums, which stay in the second-level cache,
    double few;    // of what is split after the load
  } memory;
  struct {
    double start, few_start;  // of a call; of one with few rows
    double unit;              // of a round of tiles
    double addition;          // of the kernel that adds chunks
  } fixed;
};
inline constexpr CostRow<SplitCosts> kSplitCosts[] = {
    // NVIDIA H200
    {90, {{1.3, 0.85, 0.45, 0.6}, {3.5e6, 8e6, 4e6}, {14, 8, 2, 3}}},
};

}  // namespace tiledmm
