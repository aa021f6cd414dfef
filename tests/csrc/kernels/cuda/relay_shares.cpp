// Prints what each block does of the tiles that relay_shares shares out: unit tile begin end, in the order of its
// turns. Arguments: number of tiles, k tiles of each, blocks.
#include "kernels/cuda/shared/relay_shares.h"

#include <cstdio>
#include <cstdlib>

int main(int, char** arguments) {
  using namespace tiledmm;
  const int num_tiles = std::atoi(arguments[1]), k_tiles = std::atoi(arguments[2]), units = std::atoi(arguments[3]);
  const RelayShares shares = relay_shares(num_tiles, k_tiles, units);
  for (int unit = 0; unit < units; ++unit) {
    for (int turn = 0;; ++turn) {
      const RelayPart part = relay_part(shares, unit, units, turn, [&](int number) { return number / k_tiles; });
      if (part.tile < 0) break;
      std::printf("%d %d %d %d\n", unit, part.tile, part.begin, part.end);
    }
  }
}
