// The constants of the mma_async kernel's cost models. H200: 15000 measurements in fp64, 800 random products of
// operands that are not aligned (mostly within 15 %). What has an index is of a tile.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kNumMmaAsyncShapes64 = 10, kNumMmaAsyncShapes16 = 4, kNumMmaUnalignedShapes = 3,
                     kNumMmaFp8Shapes = 3;

struct MmaAsyncCosts {  // in 16 bits and tf32
  // `alone` is the time of a step of 8 words along k where a block has a multiprocessor for itself; `busy` is each
  // block's where several share one.
  Mma16Time alone[kNumMmaAsyncShapes16] = {0.337, 0.24, 0.101, 0.032},
            busy[kNumMmaAsyncShapes16] = {0.337, 0.19, 0.073, 0.02};
  MemoryRate rate = 3.9e6, added = 2.3e6;                            // of the kernel that adds chunks
  Fixed start = 5.9, round = 2.2, element = 1.1e-4, addition = 6.5;  // of a call, a further round, an element of C
  Fixed tf32 = 1.1, narrow = 1.3;     // how many times longer: in tf32; with copies of single elements
  Fixed copy = 3.8, copied = 0.75e6;  // of operands that are copied first: a call; elements per us
  Fixed stored = 3e-6;                // of each element of C then
};
inline constexpr CostRow<MmaAsyncCosts> kMmaAsyncCosts[] = {{90, {}}};
// Batches have constants of their own.
inline constexpr CostRow<MmaAsyncCosts> kMmaAsyncBatchCosts[] = {
    // H200, 670 random batches
    {90,
     {{0.337, 0.1892, 0.1318, 0.032},
      {0.302, 0.1944, 0.07678, 0.02},
      3.198e6,
      2.404e6,
      5.563,
      2.475,
      0.0001135,
      6.003,
      1.134,
      1.298,
      4.295,
      5.656e5,
      1.888e-6}}};

struct MmaAsyncF64Costs {
  Mma64Time alone[kNumMmaAsyncShapes64] = {0.525, 0.270, 0.225, 0.153, 0.132, 0.101, 0.065, 0.052, 0.052, 0.15};
  Mma64Time busy[kNumMmaAsyncShapes64] = {0.525, 0.270, 0.133, 0.153, 0.075, 0.076, 0.052, 0.043, 0.052, 0.08};
  MemoryRate rate = 3.25e6, cached = 12.1e6, added = 2e6;  // of the second-level cache; of the kernel that adds chunks
  Fixed narrow[kNumMmaAsyncShapes64] = {1.11, 1.10, 1.07, 1.18, 1.18, 1.45, 1.23, 1.45, 1.45, 1.18};
  Fixed start[kNumMmaAsyncShapes64] = {7.1, 5.8, 7.4, 5.3, 6.0,
                                       6.0, 5.1, 4.7, 4.7, 6};  // with code that is in no cache
  Fixed round[kNumMmaAsyncShapes64] = {1.6, 2.2, 0.0, 1.7, 0.5, 1.2, 1.2, 1.3, 1.3, 0.5};
  Fixed element = 3.5e-4, visit = 1e-4, visit_in_c = 4.5e-4;  // of C; when a chunk is added to a total; to one in C
  Fixed total = 1.05;                                         // how many times longer with a total in registers
  Fixed uneven = 0.08;                        // share of a full round's rest that the last one takes as well
  Fixed sectors = 2.52, long_sectors = 1.76;  // how many times more is read of rows that split sectors
  Fixed addition = 4.8;
  Fixed across = 1.3;  // how many times longer an element takes where rows of C are stored across (H100, 16 batches)
};
inline constexpr CostRow<MmaAsyncF64Costs> kMmaAsyncF64Costs[] = {{90, {}}};
// Batches have constants of their own.
inline constexpr CostRow<MmaAsyncF64Costs> kMmaAsyncF64BatchCosts[] = {
    // H200, 360 random batches
    {90,
     {{0.503, 0.2751, 0.2708, 0.1666, 0.1607, 0.1202, 0.07757, 0.05799, 0.05103, 0.1522},
      {0.525, 0.27, 0.1069, 0.153, 0.06997, 0.08509, 0.05485, 0.03999, 0.052, 0.07354},
      4.2e6,
      1.066e7,
      2.267e6,
      {1.084, 1.147, 1.059, 1.115, 1.025, 1.318, 1.149, 1.155, 1.107, 1.058},
      {4.137, 3.862, 4.959, 3.824, 4.77, 5.009, 4.524, 4.011, 3.655, 5.287},
      {1.185, 1.67, 0, 1.826, 0.5355, 1.298, 1.518, 1.834, 1.79, 0.5325},
      0.000353,
      0.0001027,
      0.000393,
      1.007,
      0.1046,
      2.704,
      2.077,
      3.928,
      1.576}}};

struct MmaUnalignedCosts {
  // `alone` is the time of a step of 16 along k where a block has a multiprocessor for itself; `busy` is that of all
  // blocks that share one.
  Mma16Time alone[kNumMmaUnalignedShapes] = {0.0347, 0.0579, 0.1100};
  Mma16Time busy[kNumMmaUnalignedShapes] = {0.0641, 0.1052, 0.1893};
  MemoryRate rate = 3.3e6, added = 2.3e6;
  Fixed start[kNumMmaUnalignedShapes] = {5.92, 5.85, 5.57}, addition[kNumMmaUnalignedShapes] = {7.9, 3.7, 3.0};
  Fixed round[kNumMmaUnalignedShapes] = {2.67, 2.77, 3.24};  // of a full round; of each block of one that is not
  Fixed block[kNumMmaUnalignedShapes] = {0.59, 0.90, 1.45};
  // How much longer a step takes with rows that begin in the middle of a word, for each operand that is aligned to 16
  // bytes, and for each whose rows are not along k.
  Fixed odd[kNumMmaUnalignedShapes] = {1.90, 1.57, 1.62}, aligned[kNumMmaUnalignedShapes] = {0.94, 0.86, 0.89};
  Fixed not_k_major[kNumMmaUnalignedShapes] = {1.20, 1.06, 1.03};
};
inline constexpr CostRow<MmaUnalignedCosts> kMmaUnalignedCosts[] = {{90, {}}};

// The costs of operands of 8 bits are set after the times of eight shapes on an H200.
struct MmaFp8Costs {
  // Both are times of a step of 16 along k, as in MmaAsyncCosts.
  Mma16Time alone[kNumMmaFp8Shapes] = {0.275, 0.15, 0.1}, busy[kNumMmaFp8Shapes] = {0.28, 0.097, 0.044};
  MemoryRate rate = 3.4e6;
  Fixed start = 6.4, element = 1.1e-4;  // of a call, of an element of a tile
  Fixed copy = 3.8, copied = 1.5e6;     // of operands that are copied first: a call; bytes per us
};
inline constexpr CostRow<MmaFp8Costs> kMmaFp8Costs[] = {{90, {}}};

}  // namespace tiledmm
