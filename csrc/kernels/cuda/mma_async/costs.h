// The constants of the mma_async kernel's cost models.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumMmaAsyncShapes64 = 9, kNumMmaAsyncShapes16 = 2, kNumMmaUnalignedShapes = 3;

// In 16 bits, and tf32. Microseconds, but where it says something else; what has an index is of a tile.
struct MmaAsyncCosts {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f16)]; }
  struct {
    // Of a step of 8 words along k, of a block that has a multiprocessor for itself, and of each block where several
    // share it.
    double alone[kNumMmaAsyncShapes16], busy[kNumMmaAsyncShapes16];
  } multiply;
  struct {
    double rate, added;  // bytes per us; of the kernel that adds chunks
  } memory;
  struct {
    double start, round, element, addition;  // of a call, a further round, an element of C, the sum of chunks
    double tf32, narrow;     // how many times longer a step takes: in tf32; with copies of single elements
    double copy, copied, c;  // operands copied first: of a call, elements per us; of each element of C then
  } fixed;
};
inline constexpr CostRow<MmaAsyncCosts> kMmaAsyncCosts[] = {
    // NVIDIA H200
    {90, {{{0.337, 0.101}, {0.337, 0.073}}, {3.9e6, 2.3e6}, {6.4, 2.2, 1.1e-4, 6.5, 1.1, 1.45, 3.8, 0.75e6, 3e-6}}},
};

struct MmaAsyncF64Costs {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f64)]; }
  struct {
    double alone[kNumMmaAsyncShapes64], busy[kNumMmaAsyncShapes64];
  } multiply;
  struct {
    double rate, cached, added;  // bytes per us: of memory, of the second-level cache, of the kernel that adds chunks
  } memory;
  struct {
    double narrow[kNumMmaAsyncShapes64];
    double start[kNumMmaAsyncShapes64];  // before the first step, with code that is in no cache
    double round[kNumMmaAsyncShapes64];
    double element, visit, visit_in_c;  // of an element of C; and whenever a chunk is added to a total; to one in C
    double total;                       // how many times longer it takes with a total in registers
    double uneven;                      // share of the rest of a round that the last one takes as well
    double sectors, long_sectors;       // how many times more the cache reads of rows that split sectors
    double addition;
  } fixed;
};
inline constexpr CostRow<MmaAsyncF64Costs> kMmaAsyncF64Costs[] = {
    // NVIDIA H200, 15000 measurements
    {90,
     {{{0.525, 0.270, 0.225, 0.153, 0.132, 0.101, 0.065, 0.052, 0.052},
       {0.525, 0.270, 0.133, 0.153, 0.075, 0.076, 0.052, 0.043, 0.052}},
      {3.25e6, 12.1e6, 2e6},
      {{1.11, 1.10, 1.07, 1.18, 1.18, 1.45, 1.23, 1.45, 1.45},
       {7.1, 5.8, 7.4, 5.3, 6.0, 6.0, 5.1, 4.7, 4.7},
       {1.6, 2.2, 0.0, 1.7, 0.5, 1.2, 1.2, 1.3, 1.3},
       3.5e-4,
       1e-4,
       4.5e-4,
       1.05,
       0.08,
       2.52,
       1.76,
       4.8}}},
};

// Of 16-bit operands that are not aligned.
struct MmaUnalignedCosts {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f16)]; }
  struct {
    // Of a step of 16 along k: of a block that has a multiprocessor for itself, and of all where several share it.
    double alone[kNumMmaUnalignedShapes], busy[kNumMmaUnalignedShapes];
  } multiply;
  struct {
    double rate, added;
  } memory;
  struct {
    // Of a call; of a full round of blocks, and of each block of one that is not full; of the sum of chunks.
    double start[kNumMmaUnalignedShapes], round[kNumMmaUnalignedShapes];
    double block[kNumMmaUnalignedShapes], addition[kNumMmaUnalignedShapes];
    // How much longer a step takes with rows that begin in the middle of a word, for each operand that is aligned to 16
    // bytes, and for each whose rows are not along k.
    double odd[kNumMmaUnalignedShapes], aligned[kNumMmaUnalignedShapes], not_k_major[kNumMmaUnalignedShapes];
  } fixed;
};
inline constexpr CostRow<MmaUnalignedCosts> kMmaUnalignedCosts[] = {
    // NVIDIA H200, 800 random products, mostly within 15 %
    {90,
     {{{0.0347, 0.0579, 0.1100}, {0.0641, 0.1052, 0.1893}},
      {3.3e6, 2.3e6},
      {{5.92, 5.85, 5.57},
       {2.67, 2.77, 3.24},
       {0.59, 0.90, 1.45},
       {7.9, 3.7, 3.0},
       {1.90, 1.57, 1.62},
       {0.94, 0.86, 0.89},
       {1.20, 1.06, 1.03}}}},
};

}  // namespace tiledmm
