// The constants of the wgmma kernel's cost models. H200: mostly within 15 %.
#pragma once

#include "kernels/cuda/shared/costs.h"

namespace tiledmm {

inline constexpr int kWgmmaBlockK = 64;  // of a k tile of 16 bits

struct WgmmaCosts {                                  // in 16 bits
  Mma16Time least_k_tile = 0.105, k_tile = 19.8e-6;  // of a k tile: at least; for each element of the block tile
  MemoryRate rate = 3.8e6, narrow_rate = 3.3e6;      // where strips of B along n are narrow
  MemoryRate ramp_rate = 10e6;                       // until memory is up to speed,
  Fixed ramp = 2;                                    // which takes so long at most
  MemoryRate repacked = 3e6;                         // operands that are copied first
  MemoryRate strips_16 = 6e6, strips = 8e6;          // rows along k for strips, aligned to 16 bytes; to more
  MemoryRate sums = 0.6e6;                           // elements per us of the chunks' sums
  Fixed start = 5, tile = 0.8, element = 3.2e-5;     // of a call, of a tile, of an element of it
  Fixed chunk = 0.4, tail = 0.4;                     // of adding a chunk to a total; of halved tiles at the end
  // Nanoseconds of the copy of a row of 128 bytes, and for each block that copies, by alignment; more for small tiles.
  Fixed row_16 = 1.36, row_16_of_block = 0.0078, row_32 = 0.95, row_32_of_block = 0.008;
  Fixed row_64 = 0.91, row_64_of_block = 0.0045, small_rows = 1.07;
  Fixed shared = 250e3, drawn = 70e3;                     // bytes per us of shared memory; that a block draws
  Fixed cluster = 0.6, cluster_m = 0.8, cluster_n = 0.3;  // of a cluster, and of each doubling of it
  Fixed strip_cluster = 0.1, strip_rows = 0.06;  // share of that in strips; how a tile's rows slow memory there
  Fixed few_128 = 0.035, few = 0.09;             // how they do with few rows of C, by alignment
  Fixed shared_tile = 2.3, split = 2.5, split_cluster = 0.03;  // sums in a cluster, by a kernel; its clusters' gain
  Fixed order = 0.01, overlap = 0.1;  // more rows of tiles than columns; of the shorter of two times
  Fixed repack = 2.5, repacked_chunks = 2.5, repacked_k_tile = 0.3, readers = 32;  // operands that are copied first
  Fixed stored = 3e-7;             // of each element of C that threads store
  Mma16Time split_k_tile = 23e-6;  // of an element of a k tile at least, where chunks are side by side
  // Where consumers take turns: of a turn, twice if C is stored transposed; of an element that one of them stores.
  Fixed turn = 0.05, turn_element = 1.1e-4;
  // Bytes per us stored of rows that cross sectors; more for each time that a tile is as wide as it is high.
  MemoryRate crossed = 1.6e6, crossed_wide = 0.2e6;
  Fixed by_threads = 0;              // of each element of the narrowest tiles that threads store, by a block alone
  Fixed crowded = 0;                 // of each element of the tiles that a multiprocessor's other blocks have
  Fixed more_code = 0;               // of a call of kernels that do more than store sums
  MemoryRate narrow_chunks = 3.5e6;  // where chunks side by side read narrow strips of B along n
  // Threads take so much longer for each element of tiles of 64 columns or more: one or three consumers; of widths that
  // are no multiple of 64; of a turn; of blocks that share a multiprocessor.
  Fixed by_others = 4e-5, by_parts = 1.5e-5, by_one = 1e-4, by_shared = 4e-5;
  MemoryRate drawn_by_clusters = 7e6;  // what clusters that share a tile draw from the second-level cache together
};
inline constexpr CostRow<WgmmaCosts> kWgmmaCosts[] = {{90, {}}};
// In 8 bits, of half as many pairs of elements along k.
inline constexpr CostRow<WgmmaCosts> kFp8Costs[] = {
    // H200, 865 random products
    {90, {0.1245, 2.049e-5, 4.042e6, 3.3e6, 8.249e6, 2.303,    7e6,     6.589e6,  8.484e6, 2.5e5,  5.561,
          0.6117, 4.504e-5, 0.4,     4.608, 1.244,   0.007617, 0.7884,  0.006988, 0.91,    0.0045, 0.9978,
          2.12e5, 7e4,      0.6,     0.8,   0.3,     0.1,      0.06102, 0.02903,  0.06814, 2.3,    2.5,
          0.03,   0.01003,  0.149,   2.5,   2.5,     0.3,      32,      3e-7}}};
// Of batches, whose tiles begin and end in the midst of each other.
inline constexpr CostRow<WgmmaCosts> kWgmmaBatchCosts[] = {
    // H200, 970 random batches
    {90, {0.07933,  1.614e-5, 5.06e6,   5.302e6, 2.328e6, 2.448,  2.723e6,  6.838e6,  8.179e6,  2.5e5,
          4.921,    0.5407,   2.291e-5, 0.4,     0.4243,  1.116,  0.01141,  0.6602,   0.005627, 1.239,
          0.009974, 0.7373,   4.27e5,   1.341e5, 0.6,     0.8,    0.3,      0.1,      0.06633,  0.03366,
          0.07211,  2.3,      2.5,      0.03,    0.01015, 0.4126, 3.26,     2.5,      0.3,      32,
          4.082e-7, 0,        0.05,     0.00011, 1.6e6,   2e5,    3.224e-5, 1.103e-5, 0.3108}}};

// Beside a B of 8 bits that is widened on its way. H200, 1,536 plans of 64 products: what it picks takes 2 % longer
// than the best plan.
struct Fp8BCosts {
  Mma16Time chain = 0.1749, chain_column = 7.18e-4;  // of 64 of k: a consumer's chain; more for each row of A
  Mma16Time widen = 0.0613, product = 1.557e-5;  // its share of what consumers do in turns; of each product's element
  MemoryRate rate = 3.68e6, cached = 9.7e6;      // bytes per us of memory; that tiles copy from the second-level cache
  MemoryRate sums = 15e6;                        // of chunks' sums, written and read by the second-level cache
  Fixed start = 6.72, tile = 2.02, element = 4.85e-5, chunk = 0.265;
  Fixed split = 2.59, shared_tile = 1.07, shared_element = 8.85e-5;  // sums by a kernel; of a tile, by a cluster
  Fixed held = 30e6;   // bytes of them, beyond which they come from memory
  Fixed idle = 0.988;  // share of the memory's rate that few multiprocessors draw
};
inline constexpr CostRow<Fp8BCosts> kFp8BCosts[] = {{90, {}}};

struct Tf32Costs {
  Mma16Time least_k_tile = 0.16, least_by_registers = 0.19;  // of a k tile at least; where registers bring an operand
  Mma16Time k_tile = 0.01, k_tile_element = 20e-6;           // of a k tile; and for each element of the block tile
  Mma16Time transpose = 0.22, transpose_32 = 0.07;           // of one that is transposed; for each 32 of its columns
  MemoryRate rate = 3.3e6, copied = 4e6, sums = 0.2e6;       // of the kernel that copies; elements per us of sums
  Fixed start = 5.5, tile = 0.3, element = 1e-5;
  Fixed halved = 0.66;                    // what a last round of halved tiles takes of a whole one
  Fixed registers = 1.06, unaligned = 3;  // how many times longer: by registers; not at 32 bytes
  Fixed cached = 120e3, shared = 220e3;   // bytes per us of one multiprocessor, by memory
  Fixed split = 2, chunk = 0.02, overlap = 0.1, copy = 1.5, stored = 6e-7;
  Fixed few = 0;      // how 64 rows of a tile slow memory with few rows of C
  Fixed crowded = 0;  // of each element of the tiles that a multiprocessor's other blocks have
};
inline constexpr CostRow<Tf32Costs> kTf32Costs[] = {{90, {}}};
inline constexpr CostRow<Tf32Costs> kTf32BatchCosts[] = {
    // H200, 340 random batches; `crowded` is near what 400 others say
    {90, {0.08799, 0.1614, 0.01054, 2.034e-5, 0.2084,  0.06874, 4.541e6, 4.102e6, 2.505e5, 5.265,    0.8606,  5.171e-5,
          0.7625,  1.234,  2.143,   1.767e5,  3.297e5, 1.933,   0.01998, 0.4769,  2.359,   1.426e-6, 0.06416, 1e-5}}};

// The constants of groups and gated layers are fitted to the times of 17 shapes, of equal and skewed groups, on an
// H100.
struct GroupedCosts {
  Mma16Time k_tile[5] = {0.65, 0.38, 0.34, 0.22, 0.16};  // of a k tile of each of kGroupedTileShapes
  MemoryRate rate = 3e6, cached = 13e6;                  // of memory, of the second-level cache
  MemoryRate repacked = 3e6;                             // operands that are copied first
  Fixed start = 5, ramp = 12, tile = 0.8, element = 3.2e-5, overlap = 0.08;
  Fixed tail = 0.15;                         // how a last round slows memory
  Fixed read_again = 0.025;                  // how tiles that share a group's weights do
  Fixed many_rows = 100, small_tiles = 1.3;  // from so many rows of a group on, smaller tiles take longer
  Fixed repack = 2.5;
};
inline constexpr CostRow<GroupedCosts> kGroupedCosts[] = {{90, {}}};

}  // namespace tiledmm
