// The constants of the direct kernels' cost models.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumDirectTiles = 4;

// A warp's times are nanoseconds that its multiprocessor has for no other warp.
struct DirectCosts {
  // Loads of elements, and of several neighbours at once, of an operand along k and along m (n).
  Fixed load_k = 1.051, load_mn = 1.33, wide_k = 1.576, wide_mn = 2.957;
  Mma16Time multiply = 1.154;  // a matrix instruction
  FmaTime fma = 0.3;           // a multiply-add
  // Stores of elements, and of several neighbours at once.
  Fixed tile = 55.94, store = 1.107, wide_store = 3.292;
  MemoryRate rate = 3.16e6;  // bytes per us
  // us: of a call by its tile, whose code is in no cache; of steps of k whose loads are waited for together.
  Fixed start[kNumDirectTiles] = {4.739, 4.975, 4.866, 4.799}, step = 0.6562;
  Fixed overlap = 0.8161;  // of the shorter of memory's time and the warps'
  // Few columns: a warp's nanoseconds for a tile, for copies of all lanes, for a step along k; a step's where the warp
  // waits for the one before; us of a call; of the shorter of memory's time and the warps'.
  Fixed few_tile = 36.6, few_copy = 3.909, few_step = 1.523, few_chain = 26.06, few_start = 5.815;
  MemoryRate few_rate = 3.2e6;
  Fixed few_overlap = 0.5;
};
inline constexpr CostRow<DirectCosts> kDirectMmaCosts[] = {
    // H100, 432 random batches; few columns: H100 and H200, 15 products
    {90, {}}};
inline constexpr CostRow<DirectCosts> kDirectTf32Costs[] = {
    // H100, 214 random batches; few columns: 685
    {90, {1.965,  1.626,  2.148, 2.439, 1.153, 0.3,   36.46, 1.208,   2.217, 3.24e6, {4.673, 4.836, 5.017, 4.958},
          0.6959, 0.7598, 32.86, 3.186, 1.464, 39.41, 5.773, 2.728e6, 0.7598}}};
inline constexpr CostRow<DirectCosts> kDirectF32Costs[] = {
    // H100, 211 random batches; few columns: 685
    {90, {1.179, 1.052,  4.983, 0.92,  1,     0.1412, 45.42, 1.839,  3.839, 2.276e6, {4.912, 5.126, 4.745, 5.503},
          0.647, 0.2147, 28.7,  2.028, 1.055, 6.843,  5.303, 2.16e6, 0.2147}}};
inline constexpr CostRow<DirectCosts> kDirectF64Costs[] = {
    // H100, 211 random batches; few columns: 687
    {90, {1.836,  1.796,  4.178, 1.766, 1,      0.3119, 44.55, 1.836,   3.785, 2.486e6, {5.194, 5.076, 5.118, 5.123},
          0.5549, 0.2152, 34.96, 2.802, 0.4776, 9.529,  5.411, 2.211e6, 0.2152}}};

}  // namespace tiledmm
