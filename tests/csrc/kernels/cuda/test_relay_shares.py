"""How wgmma's blocks share out the tiles of the last two waves along k (csrc/kernels/cuda/shared/relay_shares.h).

Planted bugs that it found: the rest of the division lost (`of * shares.share` alone), a beginning that is cut off by
one unit and not by the next (`end` as it was divided), no head, a tail of its tile's first k tiles (`0, tail`).
"""

import os
import subprocess
from itertools import pairwise, product
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"
MOST_UNEVEN = 6  # k tiles by which a cut may move


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory):
    program = tmp_path_factory.mktemp("relay") / "relay"
    cxx = os.environ.get("CXX", "g++").split()
    command = [*cxx, "-std=c++17", f"-I{CSRC}", HERE / "relay_shares.cpp", "-o", program]
    subprocess.run(command, check=True, timeout=60)

    def run(num_tiles, k_tiles, units):
        arguments = [str(number) for number in (num_tiles, k_tiles, units)]
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60)
        parts = [[] for _ in range(units)]
        for line in done.stdout.splitlines():
            unit, tile, begin, end = map(int, line.split())
            parts[unit].append((tile, begin, end))
        return parts

    return run


CASES = [
    (units + more, k_tiles, units)
    for units, more, k_tiles in product((132, 66, 30), (1, 7, 29, 131, 140, 500), (16, 17, 64, 1001))
    if (units + more) % units
]


@pytest.mark.parametrize("num_tiles, k_tiles, units", CASES)
def test_each_k_tile_is_computed_once_and_nobody_waits_for_long(num_tiles, k_tiles, units, parts_of):
    parts = parts_of(num_tiles, k_tiles, units)
    of_tile = [[] for _ in range(num_tiles)]
    for unit, own in enumerate(parts):
        length = sum(end - begin for _, begin, end in own)
        assert abs(length - num_tiles * k_tiles / units) < 2 * MOST_UNEVEN
        for turn, (tile, begin, end) in enumerate(own):
            assert 0 <= begin < end <= k_tiles
            of_tile[tile].append((begin, end))
            if begin > 0:  # the unit before has begun it, in its first turn
                assert turn == len(own) - 1 and parts[unit - 1][0] == (tile, 0, begin)
            if end < k_tiles:
                assert turn == 0 and (tile, end, k_tiles) == parts[unit + 1][-1]
    for cuts in of_tile:
        cuts.sort()
        assert cuts[0][0] == 0 and cuts[-1][1] == k_tiles and len(cuts) <= 2
        assert all(first[1] == second[0] for first, second in pairwise(cuts))
