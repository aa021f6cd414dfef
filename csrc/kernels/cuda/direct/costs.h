// The constants of the direct kernels' cost models. H200: 330 random batches and 52 products in 16 bits, random
// batches: 340 in tf32, 230 in fp32, 360 in fp64, and of few columns 670 plans; H100: 211 products in fp64, 687 of few
// columns.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumDirectTiles = 4;

// A warp's times are nanoseconds that its multiprocessor has for no other warp.
struct DirectCosts {
  // Loads of elements, and of several neighbours at once, of an operand along k and along m (n).
  Fixed load_k = 1.218, load_mn = 1.217, wide_k = 0.8972, wide_mn = 2.39;
  Mma16Time multiply = 2.306;  // a matrix instruction
  FmaTime fma = 0.3;           // a multiply-add
  // Stores of elements, and of several neighbours at once.
  Fixed tile = 58.65, store = 6.836, wide_store = 5.453;
  MemoryRate rate = 3.597e6;  // bytes per us
  // us: of a call by its tile, whose code is in no cache; of steps of k whose loads are waited for together.
  Fixed start[kNumDirectTiles] = {4.519, 4.581, 4.538, 4.512}, step = 0.4051;
  Fixed overlap = 0.923;  // of the shorter of memory's time and the warps'
  // Few columns: a warp's nanoseconds for a tile, for copies of all lanes, for a step along k; a step's where the warp
  // waits for the one before; us of a call; of the shorter of memory's time and the warps'.
  Fixed few_tile = 35.99, few_copy = 3.919, few_step = 1.523, few_chain = 26.44, few_start = 5.368;
  MemoryRate few_rate = 3.183e6;
  Fixed few_overlap = 0.518, few_lone_copy = 0;  // of copies of all lanes, where the warp is alone
  Fixed few_step_m = 2.12;                       // in fp32, a step where A lies along m
};
inline constexpr CostRow<DirectCosts> kDirectMmaCosts[] = {{90, {}}};
// Batches have constants of their own.
inline constexpr CostRow<DirectCosts> kDirectMmaBatchCosts[] = {
    {90, {1.404,  1.105,  1.251, 2.71,  1.757, 0.3,  63.26, 1.398,   3.586, 3.58e6, {4.523, 4.671, 4.656, 4.657},
          0.4674, 0.8545, 24.36, 3.437, 1.523, 16.4, 4.97,  4.041e6, 1,     82.57}}};
inline constexpr CostRow<DirectCosts> kDirectTf32Costs[] = {
    {90, {1.911,  1.23,   2.148, 2.295, 1.264,  0.3,   40.54, 2.663,   2.022, 4.894e6, {4.271, 4.493, 4.466, 4.958},
          0.6635, 0.8474, 21.74, 2.115, 0.8671, 23.68, 5.058, 3.903e6, 1,     66.21}}};
inline constexpr CostRow<DirectCosts> kDirectF32Costs[] = {
    {90, {1.231,  1.227,  4.236, 0.3416, 1,    0.1412, 50.49, 4.708,   2.34,   2.941e6, {4.319, 4.507, 4.297, 4.696},
          0.7222, 0.1926, 38.54, 0.3483, 1.01, 1.115,  4.889, 3.403e6, 0.1922, 48.3}}};
inline constexpr CostRow<DirectCosts> kDirectF64Costs[] = {
    {90, {1.836,  1.796,  4.178, 1.766, 1,      0.3119, 44.55, 1.836,   3.785, 2.486e6, {5.194, 5.076, 5.118, 5.123},
          0.5549, 0.2152, 34.96, 2.802, 0.4776, 9.529,  5.411, 2.211e6, 0.2152}}};
// Batches have constants of their own.
inline constexpr CostRow<DirectCosts> kDirectF64BatchCosts[] = {
    {90, {2.462,  2.082,  4.323, 1.339,  1,     0.2546, 62.46, 1.995,   3.471,  2.685e6, {3.994, 3.645, 4.699, 4.465},
          0.5768, 0.2715, 56.3,  0.6838, 2.029, 2.104,  4.94,  3.163e6, 0.1165, 48.02}}};

}  // namespace tiledmm
