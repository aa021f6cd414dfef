// The constants of the simt_pipelined kernel's cost models. Cycles are the H200's.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumSimtShapes = 13;

struct SimtCosts {
  // By tile: cycles for each k, of a block alone on its multiprocessor, and of each block where there are several.
  FmaTime alone[kNumSimtShapes] = {318, 149, 90.7, 74.3, 53, 73.9, 47.8, 31.8, 31.4, 22.5, 14, 12.5, 11.1};
  FmaTime crowded[kNumSimtShapes] = {318, 125.2, 81.4, 63, 43.9, 64, 39.8, 27.1, 25.8, 17.3, 11.7, 11, 8.4};
  FmaTime transposed = 0.071;                // cycles for each k and element of a tile copied by 4 bytes
  FmaTime fold = 0.07;                       // cycles for each element of a tile between chunks
  FmaTime loop = 3.5;                        // cycles for each multiply-add of the loop: its code comes from memory
  MemoryRate read = 2.8e6, stored = 1.75e6;  // caches full of dirty lines, as a rule
  MemoryRate added = 4.5e6, packed = 3.8e6;  // of the kernels that add chunks and that copy operands
  Fixed start = 5.2, cycles_per_us = 1980, round = 1.3, addition = 2.7, pack = 4.3;
  Fixed element = 1.4e-5, staged = 9.4e-5;  // of an element of C, and of one that leaves by a stage
  Fixed edge = 0.038;                       // of an element that a thread copies where k ends within a tile
  Fixed unaligned = 0.18, overlap = 0.1;    // share that copies of 4 bytes take longer; of the shorter of two times
};
inline constexpr CostRow<SimtCosts> kSimtCosts[] = {{90, {}}};
inline constexpr CostRow<SimtCosts> kSimtBatchCosts[] = {
    // H100, 1222 random batches
    {90,
     {{318, 236.9, 109.3, 78.89, 47.52, 81.92, 39.66, 30.35, 25.35, 19.38, 13.62, 12.86, 12.35},
      {344.3, 123.2, 77.12, 53.23, 37.35, 61.57, 33.26, 24.15, 24.56, 14.82, 11.08, 11.92, 9.867},
      0.07474,
      0.06942,
      5.545,
      2.727e6,
      2.068e6,
      5.965e6,
      3.063e6,
      5.782,
      1896,
      1.12,
      2.948,
      5.982,
      1.607e-5,
      8.973e-5,
      0.03045,
      0.1725,
      0.1341}}};

struct FewRowsCosts {
  FmaTime load = 1.15, lone = 8, step = 5;  // cycles for each k: of a load; of a lone warp, and for each of its steps
  MemoryRate rate = 3.7e6, short_rows = 1.4e6, added = 4.5e6;  // where rows along n are short; that adds chunks
  Fixed start = 5.2, cycles_per_us = 1980, latency = 1, round = 3.5, addition = 2.7, overlap = 0.1;
  Fixed drawn = 30e3;  // bytes per us that one multiprocessor draws
  // A stage that lacks columns costs `unused` for each of them and each k, up to `most_k`, and the share
  // `unused_memory` of memory's time for each of them.
  Fixed unused = 4e-5, most_k = 5000, unused_memory = 0.008;
};
inline constexpr CostRow<FewRowsCosts> kFewRowsCosts[] = {{90, {}}};
inline constexpr CostRow<FewRowsCosts> kFewRowsBatchCosts[] = {
    // H100, 1222 random batches
    {90,
     {1.049, 5.591, 6.497, 3.7e6, 1.391e6, 4.541e6, 6.672, 2411, 0.6054, 2.606, 2.37, 0.1033, 2.132e4, 3.701e-5, 5000,
      0.008832}}};

}  // namespace tiledmm
