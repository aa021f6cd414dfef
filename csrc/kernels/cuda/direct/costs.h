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
  // Stores of elements, where neighbouring lanes have neighbours and where not, and of several neighbours at once.
  Fixed tile = 55.94, store = 1.107, store_apart = 6, wide_store = 3.292;
  MemoryRate rate = 3.16e6;  // bytes per us
  // us: of a call by its tile, whose code is in no cache; of steps of k whose loads are waited for together.
  Fixed start[kNumDirectTiles] = {4.739, 4.975, 4.866, 4.799}, step = 0.6562;
  Fixed overlap = 0.8161;  // of the shorter of memory's time and the warps'
  Fixed parts = 2;         // how many times longer memory takes for parts of C's sectors, one at a time
  // Few columns: a warp's nanoseconds for a tile, for copies of all lanes, for a step along k; a step's where the warp
  // waits for the one before; us of a call.
  Fixed few_tile = 30, few_copy = 4, few_step = 1.5, few_chain = 20, few_start = 4.8;
  MemoryRate few_rate = 2.9e6;
};
inline constexpr CostRow<DirectCosts> kDirectMmaCosts[] = {
    // H100, 687 random batches
    {90,
     {0.7597, 0.8201, 1.355, 2.333, 0.9199, 0.3,   66.47, 0.9207, 6,      3.244, 2.797e6, {4.622, 4.852, 4.792, 4.905},
      0.6396, 1.001,  2,     33.65, 3.994,  1.525, 25.41, 5.619,  2.765e6}}};
inline constexpr CostRow<DirectCosts> kDirectTf32Costs[] = {
    // H100, 687 random batches
    {90,
     {1.064,  1.084,  2.148, 2.098, 0.9132, 0.3,   44.1,  1.457, 6,      2.131, 2.656e6, {4.611, 4.795, 4.895, 4.952},
      0.6837, 0.5948, 2,     35.31, 3.349,  1.485, 35.82, 5.428, 2.408e6}}};
inline constexpr CostRow<DirectCosts> kDirectF32Costs[] = {
    // H100, 1222 random batches
    {90,
     {1.043, 0.7943, 5.146, 1.022, 1,     0.09596, 45.3,  1.847, 1.871,  2.941, 2.142e6, {4.766, 4.818, 4.574, 5.146},
      0.717, 0.2144, 1.456, 34.65, 1.788, 1.163,   8.472, 5.209, 2.214e6}}};
inline constexpr CostRow<DirectCosts> kDirectF64Costs[] = {
    // H100, 687 random batches
    {90,
     {1.729,  1.58,   4.375, 1.722, 1,     0.2845, 50.62, 1.783, 3.68,   3.784, 2.41e6, {4.825, 4.775, 4.789, 5.029},
      0.6839, 0.1797, 1.478, 34.96, 2.802, 0.4776, 9.529, 5.411, 2.211e6}}};

}  // namespace tiledmm
