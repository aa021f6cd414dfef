// The constants of the skinny kernel's cost models. H200: with a cold second-level cache, which has to write back what
// it holds; in fp64 64 random products, a tenth more than measured, as mma_async expects of few rows.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

struct SkinnyCosts {                          // in 16 bits
  Mma16Time product = 2.67e-7;                // a multiply-add at the data sheet's rate, which an H200 never meets
  MemoryRate rate_b = 3.3e6, rate_a = 4.5e6;  // of the operand that streams, of the few rows
  Fixed start = 7.2, split = 3.5;             // of a call; of the second kernel, which adds chunks
  Fixed unit = 0.3, narrow_unit = 1.4;        // of a unit; and of one of a batch with copies of less than 16 bytes
  Fixed k_tile_256 = 0.45, k_tile_128 = 0.3;  // the chain of one k tile, by its length
  Fixed copy_8 = 0.30, copy_4 = 0.37, copy_2 = 0.67;  // more for each copy of a thread that takes so many bytes
  Fixed copied = 46e3, copied_2 = 9.4e3;              // bytes per us that one multiprocessor copies; of B, 2 at a time
  Fixed idle = 0.85;                                  // share of the memory's rate that few multiprocessors draw
  Fixed short_runs = 12.8, least_run = 32;            // memory takes 1 + short_runs / columns as long; columns at least
  Fixed items_of_round = 6, items = 2;                // of a batch: for each round of several; where there is one
};
inline constexpr CostRow<SkinnyCosts> kSkinnyCosts[] = {{90, {}}};

struct SkinnyF64Costs {
  Mma64Time k_tile = 0.55, group = 0.11;  // of a k tile: whatever it holds, and for each group of columns
  MemoryRate rate = 3.55e6;
  Fixed start = 7.5, split = 3.1, unit = 0.9, items_of_round = 6, items = 2;  // as above
  Fixed narrow = 1.5;                                                         // times as long with narrow copies
};
inline constexpr CostRow<SkinnyF64Costs> kSkinnyF64Costs[] = {{90, {}}};

// Beside a B of 8 bits. H200, 960 plans of 40 products: what it picks takes 1.4 % longer than the best plan.
struct SkinnyFp8Costs {
  MemoryRate rate_b = 3.39e6, rate_a = 3.78e6;  // as above
  Fixed start = 8, split = 1.2, unit = 2.6;
  Fixed k_tile = 0.53;                       // the chain of a k tile
  Fixed group = 0.056, eight_rows = 0.0376;  // of a k tile of a warp; more for each 8 rows
  Fixed copied = 36.4e3;                     // bytes per us that one multiprocessor copies
  Fixed narrow = 2;                          // times as long with narrow copies, which is a guess
};
inline constexpr CostRow<SkinnyFp8Costs> kSkinnyFp8Costs[] = {{90, {}}};

}  // namespace tiledmm
