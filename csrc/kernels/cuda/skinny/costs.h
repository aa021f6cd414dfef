// The constants of the skinny kernel's cost models.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

// In 16 bits. Microseconds, but where it says something else.
struct SkinnyCosts {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f16)]; }
  struct {
    double product;  // of a multiply-add at the data sheet's rate: the chain of an H200 always takes longer
  } multiply;
  struct {
    double rate_b, rate_a;  // bytes per us: of the operand that streams, of the few rows
  } memory;
  struct {
    double start, split;            // of a call; of the second kernel, which adds chunks
    double unit, narrow_unit;       // of a unit; and of one of a batch with copies of less than 16 bytes
    double k_tile_256, k_tile_128;  // the chain of one k tile, by its length
    double copy_8, copy_4, copy_2;  // more for each copy of a thread that takes so many bytes
    double copied;                  // bytes per us that one multiprocessor copies
    double idle;                    // share of the memory's rate that the first multiprocessor draws
    double short_runs, least_run;   // memory takes 1 + short_runs / columns as long; columns at least
    double items_of_round, items;   // of a batch: for each round of several; where there is one
  } fixed;
};
inline constexpr CostRow<SkinnyCosts> kSkinnyCosts[] = {
    // NVIDIA H200, cold second-level cache, which has to write back what it holds
    {90, {{2.67e-7}, {3.3e6, 4.5e6}, {7.2, 3.5, 0.3, 1.4, 0.45, 0.3, 0.30, 0.37, 0.67, 46e3, 0.85, 12.8, 32, 6, 2}}},
};

struct SkinnyF64Costs {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f64)]; }
  struct {
    double k_tile, group;  // of a k tile: whatever it holds, and for each group of columns
  } multiply;
  struct {
    double rate;  // bytes per us
  } memory;
  struct {
    double start, split, unit, narrow;  // as above; k tiles take `narrow` times as long with narrow copies
    double items_of_round, items;
  } fixed;
};
inline constexpr CostRow<SkinnyF64Costs> kSkinnyF64Costs[] = {
    // NVIDIA H200, 64 random products; a tenth more than measured, as mma_async expects of few rows
    {90, {{0.55, 0.11}, {3.55e6}, {7.5, 3.1, 0.9, 1.5, 6, 2}}},
};

}  // namespace tiledmm
