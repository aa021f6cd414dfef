// The order in which a kernel's tiles of C are computed, as plain data.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace tiledmm {

// When the copies of a block's first tile start. All but `late` need every block to begin with a whole tile.
enum class Start : uint8_t {
  late,     // when the block is set up
  by_grid,  // the grid has a block for each tile, and its third dimension is the batch's only one, or that of chunks
  by_index,
};

// So many groups of rows of tiles, all of about the same size, that the tiles in flight, one for each of `num_blocks`,
// form about a square of C: they share operands in the second-level cache. `rows`: of tiles of single blocks.
constexpr int64_t num_square_groups(int64_t rows, int64_t num_blocks, int block_m, int block_n) {
  int64_t square = 1;
  while (square * block_m * square < num_blocks * block_n) ++square;
  return max_of(1, (rows + square / 2) / square);
}

}  // namespace tiledmm
