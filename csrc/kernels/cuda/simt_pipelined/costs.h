// The constants of the simt_pipelined kernel's cost models.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumSimtShapes = 13;

// Microseconds, but where it says something else; cycles are those of the H200.
struct SimtCosts {
  static constexpr double rate(const Chip& chip) { return chip.simt_tflops[int(DType::f32)]; }
  struct {
    // By tile: cycles for each k, of a block alone on its multiprocessor, and of each block where there are several.
    double alone[kNumSimtShapes], crowded[kNumSimtShapes];
    double transposed;  // cycles for each k and element of a tile copied by 4 bytes
    double fold;        // cycles for each element of a tile between chunks
    double loop;        // cycles for each multiply-add of the main loop, whose instructions come from memory at first
  } multiply;
  struct {
    double read, stored;   // bytes per us: caches full of dirty lines, as a rule
    double added, packed;  // of the second kernel, which adds chunks; of the one that copies operands
  } memory;
  struct {
    double start, cycles_per_us;
    double round, element, staged;  // of a round of blocks; of an element of C that leaves, that does by a stage
    double edge;                    // of each element that a thread copies where k ends within a tile
    double addition, pack;          // of the two other kernels
    double unaligned, overlap;      // share that copies of 4 bytes take longer; of the shorter of work and memory
  } fixed;
};
inline constexpr CostRow<SimtCosts> kSimtCosts[] = {
    // NVIDIA H200
    {90,
     {{{318, 149, 90.7, 74.3, 53, 73.9, 47.8, 31.8, 31.4, 22.5, 14, 12.5, 11.1},
       {318, 125.2, 81.4, 63, 43.9, 64, 39.8, 27.1, 25.8, 17.3, 11.7, 11, 8.4},
       0.071,
       0.07,
       3.5},
      {2.8e6, 1.75e6, 4.5e6, 3.8e6},
      {5.2, 1980, 1.3, 1.4e-5, 9.4e-5, 0.038, 2.7, 4.3, 0.18, 0.1}}},
};

// Of few rows.
struct FewRowsCosts {
  static constexpr double rate(const Chip& chip) { return chip.simt_tflops[int(DType::f32)]; }
  struct {
    double load, start, step;  // cycles for each k: of a load; of a lone warp, and for each of its steps
  } multiply;
  struct {
    double rate, short_rows, added;  // bytes per us: of memory, where rows along n are short, of the second kernel
  } memory;
  struct {
    double start, cycles_per_us, latency, addition;
    double drawn;                          // bytes per us that one multiprocessor draws
    double unused, most_k, unused_memory;  // of each column that a stage lacks: for each k up to most_k; of memory
    double overlap;
  } fixed;
};
inline constexpr CostRow<FewRowsCosts> kFewRowsCosts[] = {
    // NVIDIA H200
    {90, {{1.15, 8, 5}, {3.7e6, 1.4e6, 4.5e6}, {5.2, 1980, 1, 2.7, 30e3, 4e-5, 5000, 0.008, 0.1}}},
};

}  // namespace tiledmm
