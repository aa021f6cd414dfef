// Tiles of C in groups of rows of tiles, so that those in flight share operands in a cache.
#pragma once

#include "platform/divisor.h"

namespace tiledmm::gpu {
namespace {

struct TileGroups {
  Divisor tiles, rows, last_rows;  // of a group, of the last one
  int first_of_last;               // row of tiles

  struct Tile {
    int row, col;
  };

  TileGroups() = default;
  TileGroups(int64_t tiles_m, int64_t tiles_n, int64_t group_m)
      : tiles(group_m * tiles_n), rows(group_m), first_of_last(int((tiles_m - 1) / group_m * group_m)) {
    last_rows = Divisor(tiles_m - first_of_last);
  }

  // Number `idx`: group by group, column by column of a group.
  TILEDMM_DEVICE Tile tile(int idx) const {
    const int group = tiles.quotient(idx), first = group * rows.value, within = idx - group * tiles.value;
    const Divisor own_rows = first == first_of_last ? last_rows : rows;
    const int col = own_rows.quotient(within);
    return {first + within - col * own_rows.value, col};
  }
};

}  // namespace
}  // namespace tiledmm::gpu
