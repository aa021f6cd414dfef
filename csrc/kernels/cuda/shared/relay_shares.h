// How blocks share out tiles that do not fill a last wave: those of the last two waves evenly, along k. A block's k
// tiles begin and end within tiles of C: it has the end of one, whole ones, the beginning of another. Pure and plain.
#pragma once

#include "core/math.h"

namespace tiledmm {

struct RelayShares {
  int num_waves;    // of whole tiles before
  int first_tile;   // behind them
  int k_tiles;      // of a tile
  int share, rest;  // k tiles of a block, or of a cluster; one more for the first `rest` of them
};

// `at_once`: blocks or clusters. num_tiles is more than that, and no multiple of it.
constexpr RelayShares relay_shares(int num_tiles, int k_tiles, int at_once) {
  const int num_waves = num_tiles / at_once - 1, first_tile = num_waves * at_once;
  const int64_t shared = int64_t(num_tiles - first_tile) * k_tiles;
  return {num_waves, first_tile, k_tiles, int(shared / at_once), int(shared % at_once)};
}

// Some k tiles of a tile of C.
struct RelayPart {
  int tile;  // -1: there is no more
  int begin, end;
};

// What block or cluster `unit` of `num_units` does in its turn number `turn`: first the beginning of a tile that the
// next unit ends, so that it need not wait; last the end of a tile that the one before it began. quotient(number):
// divided by k_tiles.
template <class Quotient>
constexpr RelayPart relay_part(const RelayShares& shares, int unit, int num_units, int turn, const Quotient& quotient) {
  const int k_tiles = shares.k_tiles;
  // Few k tiles that would be cut off a tile are left with its rest.
  const auto begin_of = [&](int of) {
    constexpr int kLeast = 6;
    const int begin = of * shares.share + int(min_of(of, shares.rest)), within = begin - quotient(begin) * k_tiles;
    return within < kLeast ? begin - within : k_tiles - within < kLeast ? begin - within + k_tiles : begin;
  };
  const int begin = begin_of(unit), end = begin_of(unit + 1);
  const int first_whole = quotient(begin + k_tiles - 1), behind_whole = quotient(end);
  const int head = end - behind_whole * k_tiles, tail = first_whole * k_tiles - begin;
  if (head > 0 && turn-- == 0) return {shares.first_tile + behind_whole, 0, head};
  if (turn < shares.num_waves) return {unit + turn * num_units, 0, k_tiles};
  const int tile = first_whole + turn - shares.num_waves;
  if (tile < behind_whole) return {shares.first_tile + tile, 0, k_tiles};
  if (tile > behind_whole || tail == 0) return {-1, 0, 0};
  return {shares.first_tile + first_whole - 1, k_tiles - tail, k_tiles};
}

}  // namespace tiledmm
