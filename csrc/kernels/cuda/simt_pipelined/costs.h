// The constants of the simt_pipelined kernel's cost models. Cycles are the H200's.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumSimtShapes = 14;

struct SimtCosts {
  // By tile: cycles for each k, of a block alone on its multiprocessor, and of each block where there are several.
  FmaTime alone[kNumSimtShapes] = {318, 149, 90.7, 74.3, 53, 73.9, 47.8, 31.8, 31.4, 22.5, 14, 12.5, 11.1, 58};
  FmaTime crowded[kNumSimtShapes] = {318, 125.2, 81.4, 63, 43.9, 64, 39.8, 27.1, 25.8, 17.3, 11.7, 11, 8.4, 46};
  FmaTime transposed = 0.071;                // cycles for each k and element of a tile copied by 4 bytes
  FmaTime fold = 0.07;                       // cycles for each element of a tile between chunks
  FmaTime loop = 3.5;                        // cycles for each multiply-add of the loop: its code comes from memory
  MemoryRate read = 2.8e6, stored = 1.75e6;  // caches full of dirty lines, as a rule
  MemoryRate added = 4.5e6, packed = 3.8e6;  // of the kernels that add chunks and that copy operands
  Fixed start = 5.2, cycles_per_us = 1980, round = 1.3, addition = 2.7, pack = 4.3;
  Fixed element = 1.4e-5, staged = 9.4e-5;  // of an element of C, and of one that leaves by a stage
  Fixed edge = 0.038;                       // of an element that a thread copies where k ends within a tile
  Fixed unaligned = 0.18, overlap = 0.1;    // share that copies of 4 bytes take longer; of the shorter of two times
  Fixed lone_overlap = 0.3;                 // the latter where a block has a multiprocessor for itself
};
inline constexpr CostRow<SimtCosts> kSimtCosts[] = {{90, {}}};
inline constexpr CostRow<SimtCosts> kSimtBatchCosts[] = {
    // H200, 230 random batches
    {90,
     {{318, 204.9, 109.1, 78.16, 45.28, 76.77, 43.46, 30.65, 26.93, 20.16, 14.53, 12.9, 11.75, 58},
      {328.1, 119.5, 85.84, 61.05, 41.75, 66.52, 39.57, 27.66, 24.82, 16.75, 11.64, 11.24, 7.921, 48},
      0.06793,
      0.06895,
      3.22,
      2.626e6,
      2.418e6,
      5.718e6,
      4.199e6,
      4.83,
      2122,
      1.636,
      3.089,
      6.014,
      1.484e-5,
      8.421e-5,
      0.03601,
      0.1522,
      0.1864,
      0.1864}}};

struct FewRowsCosts {
  FmaTime load = 1.15, lone = 8, step = 5;  // cycles for each k: of a load; of a lone warp, and for each of its steps
  MemoryRate rate = 3.7e6, short_rows = 1.4e6, added = 4.5e6;  // where rows along n are short; that adds chunks
  Fixed start = 5.2, cycles_per_us = 1980, latency = 1, round = 3.5, addition = 2.7, overlap = 0.1;
  Fixed drawn = 30e3;  // bytes per us that one multiprocessor draws
  // A stage that lacks columns costs `unused` for each of them and each k, up to `most_k`, and the share
  // `unused_memory` of memory's time for each of them.
  Fixed unused = 4e-5, most_k = 5000, unused_memory = 0.008;
  Fixed by_elements = 0;  // us of a call whose B is copied by single elements
};
inline constexpr CostRow<FewRowsCosts> kFewRowsCosts[] = {{90, {}}};
inline constexpr CostRow<FewRowsCosts> kFewRowsBatchCosts[] = {
    // H200, 249 plans of random batches
    {90,
     {1.18, 0.765, 12.75, 3.585e6, 1.493e6, 5.603e6, 6.075, 3207, 0.05657, 2.056, 1.914, 0.1187, 4.547e4, 2.455e-5,
      5000, 0.03702, 2.2}}};

}  // namespace tiledmm
