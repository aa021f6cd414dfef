"""Few rows of simt_pipelined (csrc/kernels/cuda/simt_pipelined/few_rows.h), run on the CPU: its plans give the same
bits as tiles do, and they are right.

Planted bugs that it found: the second chunk's sums stored in the third one's place, copies that go on with the next
chunk while a warp goes on with its own next one, a total that begins anew with each round of chunks, rows of a tile of
B an element too close, sums of columns that are the next block's.
"""

from math import ceil

import pytest
import torch

from torch_tiledmm import host_gpu
from torch_tiledmm.testing.reference import assert_close, expect_matmul

# m, n, k, layout, margin of the leading dimensions: copies of 16 bytes, and of single elements; k in chunks and in one;
# numbers of plans: of tiles, then of few rows, the last one with a block for each chunk where there are chunks.
CASES = [
    (1, 45, 1100, "NT", 4, (2, 0, 1)),
    (1, 45, 1100, "NN", 3, (2, 0, 1)),
    (3, 9, 777, "TT", 1, (2, 0, 1)),
    (8, 40, 1030, "NN", 4, (2, 0, 1)),
    (2, 33, 520, "NT", 1, (2, 0, 1)),
    (1, 10, 2700, "NT", 4, (2, 0, 1)),
    (1, 20, 500, "NN", 4, (1, 0)),
]


def operand(rows, columns, is_transposed, margin, generator):
    if is_transposed:
        return operand(columns, rows, False, margin, generator).mT
    stored = torch.rand(rows, columns + margin, generator=generator) * 2 - 1
    return stored[:, :columns]


@pytest.mark.parametrize("m, n, k, layout, margin, plans", CASES)
def test_plans_have_the_bits_of_tiles(m, n, k, layout, margin, plans):
    generator = torch.Generator().manual_seed(m * n * k)
    a = operand(m, k, layout[0] == "T", margin, generator)
    b = operand(k, n, layout[1] == "T", margin, generator)
    tiles, *few_rows = (host_gpu.matmul(a, b, algorithm=f"simt_pipelined:{plan}", seed=plan)[0] for plan in plans)
    assert_close(tiles, expect_matmul(a, b))
    for result in few_rows:
        assert torch.equal(tiles, result)


def test_blocks_store_their_own_columns_alone():
    """What a block stored beyond them the next one would overwrite here, where blocks follow each other."""
    generator = torch.Generator().manual_seed(0)
    a, b = operand(1, 1100, False, 4, generator), operand(1100, 300, True, 4, generator)
    num_blocks = 16  # of 19 columns
    result, counts = host_gpu.matmul(a, b, algorithm="simt_pipelined:0")
    assert_close(result, expect_matmul(a, b))
    assert counts.global_store_sectors <= ceil(300 / 8) + num_blocks - 1
