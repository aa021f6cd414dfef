// The constants of the wgmma kernel's cost models.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

// In 16 bits. Microseconds, but where it says something else.
struct WgmmaCosts {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f16)]; }
  struct {
    double least_k_tile, k_tile;  // of a k tile: at least; for each element of the block tile
  } multiply;
  struct {
    double rate, narrow_rate;  // bytes per us: of memory, and where strips of B along n are narrow,
    double ramp;               // which needs some time to get up to speed,
    double repacked;           // of operands that are copied first,
    double drawn_16, drawn;    // of rows along k that strips draw, aligned to 16 bytes; to more
    double sums;               // elements per us of the chunks' sums
  } memory;
  struct {
    double start, ramp, tile, element;  // of a call, of memory's start at most, of a tile and of an element of it
    double chunk, tail;                 // of a chunk that a tile adds to its total; of tiles that are halved at the end
    // Nanoseconds of the copy of a row of 128 bytes, and for each block that copies, by the rows' alignment.
    double row_16, row_16_of_block, row_32, row_32_of_block, row_64, row_64_of_block, small_rows;
    double shared, drawn;                  // bytes per us of shared memory; that a block draws from memory
    double cluster, cluster_m, cluster_n;  // of a cluster; for each doubling of it
    double strip_cluster, strip_rows;      // share of that in strips; how memory slows with the rows of a tile there
    double few_128, few;                   // the same of few rows beside a large operand, by its alignment
    double shared_tile, split, split_cluster;  // sums in a cluster, by a second kernel; share that its clusters gain
    double order, overlap;  // more rows of tiles than columns; share of the shorter of tiles and memory
    double repack, repacked_chunks, repacked_k_tile, readers;  // operands that are copied first
    double stored;                                             // each element of C that threads store
  } fixed;
};
inline constexpr CostRow<WgmmaCosts> kWgmmaCosts[] = {
    // NVIDIA H200, mostly within 15 %
    {90,
     {{0.105, 19.8e-6},
      {3.8e6, 3.3e6, 10e6, 3e6, 6e6, 8e6, 0.25e6},
      {5,   2,   0.8, 3.2e-5, 0.4,   0.4,  1.36, 0.0078, 0.95, 0.008, 0.91, 0.0045, 1.07, 250e3, 70e3, 0.6,
       0.8, 0.3, 0.1, 0.06,   0.035, 0.09, 2.3,  2.5,    0.03, 0.01,  0.1,  2.5,    2.5,  0.3,   32,   3e-7}}},
};

// In tf32.
struct Tf32Costs {
  static constexpr double rate(const Chip& chip) { return chip.mma_tflops[int(DType::f32)]; }
  struct {
    double least_k_tile, least_by_registers;  // of a k tile at least, and where an operand comes from registers
    double element, k_tile;                   // of a k tile: for each element of the block tile, and besides
    double transpose, transpose_32;           // of one that is transposed, and for 32 of its columns
  } multiply;
  struct {
    double rate, copied, sums;  // bytes per us: of memory, of the kernel that copies; elements per us of sums
  } memory;
  struct {
    double start, tile, element;   // of a call, of a tile, of an element of it
    double halved;                 // what the last round takes of a whole one where its tiles are halved
    double registers, unaligned;   // how many times longer: from registers; rows not aligned to 32 bytes
    double cached, shared;         // bytes per us of one multiprocessor: of the second-level cache, of shared memory
    double split, chunk;           // of the kernel that adds chunks, and for each of them
    double overlap, copy, stored;  // as above
  } fixed;
};
inline constexpr CostRow<Tf32Costs> kTf32Costs[] = {
    // NVIDIA H200
    {90,
     {{0.16, 0.19, 20e-6, 0.01, 0.22, 0.07},
      {3.3e6, 4e6, 0.2e6},
      {5.5, 0.3, 1e-5, 0.66, 1.06, 3, 120e3, 220e3, 2, 0.02, 0.1, 1.5, 6e-7}}},
};

}  // namespace tiledmm
