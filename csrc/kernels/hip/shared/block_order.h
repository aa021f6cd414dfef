// The order in which the blocks of the mfma kernel take the tiles of C, so that those that run at the same time share
// operands in cache. Plain arithmetic, on the host, too.
//
// The hardware deals blocks out to the chip's dies in turn, and each die has a second-level cache of its own. So a die
// gets runs of tiles that follow each other, a square of them. Sources: the remap in chunks of AITER (PR 533) and
// rocMLIR (PR 2161); HipKittens' groups of rows.
#pragma once

#include "platform/divisor.h"

namespace tiledmm::gpu {
namespace {

struct TileIndex {
  int m, n;
};

class BlockOrder {
 public:
  static constexpr int kGroupRows = 4;  // rows of tiles that are gone through column by column
  static constexpr int kRun = kGroupRows * kGroupRows;

  BlockOrder() = default;
  BlockOrder(int64_t tiles_m, int64_t tiles_n, int num_dies) : tiles_m_(int(tiles_m)), dies_(num_dies) {
    const int64_t num_tiles = tiles_m * tiles_n;
    const int64_t run = max_of(1, min_of(kRun, num_tiles / num_dies));
    tiles_of_round_ = Divisor(run * num_dies);
    num_whole_ = int(num_tiles / (run * num_dies) * run * num_dies);
    run_ = int(run), last_run_ = int((num_tiles - num_whole_) / num_dies);
    tiles_of_group_ = Divisor(kGroupRows * tiles_n);
    last_rows_ = Divisor(tiles_m % kGroupRows ? tiles_m % kGroupRows : kGroupRows);
  }

  // The number of the tile that block `idx` takes: each tile is one block's. The runs of the last round are shorter,
  // and what remains of them stays in its place.
  TILEDMM_DEVICE int number_of(int idx) const {
    const int round = tiles_of_round_.quotient(idx), first = round * int(tiles_of_round_.value);
    const int run = first < num_whole_ ? run_ : last_run_, within = idx - first;
    const int place = dies_.quotient(within), die = within - place * int(dies_.value);
    return place < run ? first + die * run + place : idx;
  }
  TILEDMM_DEVICE TileIndex tile_of(int idx) const {
    const int number = number_of(idx), group = tiles_of_group_.quotient(number);
    const int within = number - group * int(tiles_of_group_.value), first = group * kGroupRows;
    const bool is_last = first + kGroupRows > tiles_m_;
    const int rows = is_last ? int(last_rows_.value) : kGroupRows;
    const int col = is_last ? last_rows_.quotient(within) : within / kGroupRows;
    return {first + within - col * rows, col};
  }

 private:
  int tiles_m_, num_whole_, run_, last_run_;
  Divisor dies_, tiles_of_round_, tiles_of_group_, last_rows_;
};

}  // namespace
}  // namespace tiledmm::gpu
