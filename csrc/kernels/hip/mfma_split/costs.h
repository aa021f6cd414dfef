// The constants of the mfma_split kernel's cost model. Nobody has run the kernel: they are assumed. What has an index
// is of a tile.
#pragma once

namespace tiledmm {

inline constexpr int kNumMfmaSplitShapes = 2;

struct MfmaSplitCosts {
  // Share of the peak rate of a CU with all the blocks that it takes, and of one with a single block: what mfma assumes
  // of its tiles of these sizes in 16 bits, less a fifth for the vector instructions that scale and add sums.
  double busy[kNumMfmaSplitShapes] = {0.40, 0.12}, alone[kNumMfmaSplitShapes] = {0.24, 0.08};
  double start = 5.8, bandwidth = 0.69;  // as of mfma
};
inline constexpr MfmaSplitCosts kMfmaSplitCosts{};

}  // namespace tiledmm
