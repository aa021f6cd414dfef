// The constants of the direct kernels' cost models.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumDirectTiles = 4;

// A warp's times are nanoseconds that its multiprocessor has for no other warp.
struct DirectCosts {
  // Loads of elements, and of several neighbours at once, of an operand along k and along m (n).
  Fixed load_k = 1.862, load_mn = 2.445, wide_k = 2.148, wide_mn = 11.92;
  Mma16Time multiply = 2.06;  // a matrix instruction
  FmaTime fma = 0.3;          // a multiply-add
  // Stores of elements, where neighbouring lanes have neighbours and where not, and of several neighbours at once.
  Fixed tile = 23.62, store = 1.325, store_apart = 6, wide_store = 3.869;
  MemoryRate rate = 2.904e6;  // bytes per us
  // us: of a call by its tile, whose code is in no cache; of steps of k whose loads are waited for together.
  Fixed start[kNumDirectTiles] = {4.258, 4.362, 4.507, 4.803}, step = 1.297;
  Fixed overlap = 0.6737;  // of the shorter of memory's time and the warps'
};
inline constexpr CostRow<DirectCosts> kDirectMmaCosts[] = {
    // H100, 390 random batches
    {90, {}}};
inline constexpr CostRow<DirectCosts> kDirectTf32Costs[] = {
    // H100, 71 random batches
    {90,
     {2.351,
      2.599,
      2.148,
      3.224,
      1.391,
      0.3,
      43.98,
      1.173,
      6,
      2.505,
      5.221e6,
      {5.109, 5.132, 5.319, 5.383},
      0.6757,
      0.7072}}};
inline constexpr CostRow<DirectCosts> kDirectF32Costs[] = {
    // H100, 144 random batches
    {90,
     {1.285,
      1.061,
      4.821,
      1.275,
      1,
      0.1755,
      33.79,
      2.128,
      3.664,
      3.751,
      2.386e6,
      {4.554, 4.391, 4.47, 4.954},
      0.7313,
      0.2393}}};
inline constexpr CostRow<DirectCosts> kDirectF64Costs[] = {
    // H100, 147 random batches
    {90,
     {1.623,
      1.962,
      4.879,
      1.992,
      1,
      0.3248,
      33.96,
      1.917,
      5.316,
      3.687,
      2.351e6,
      {4.937, 4.509, 4.771, 4.947},
      0.5709,
      0.248}}};

}  // namespace tiledmm
