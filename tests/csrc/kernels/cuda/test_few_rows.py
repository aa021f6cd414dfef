"""Few rows by multiply-adds (csrc/kernels/cuda/shared/few_rows.h), in fp32 by rung 09 and in fp64 by rung 10, run on
the CPU: its plans give the same bits as tiles do, and they are right.

Planted bugs that it found: the second chunk's sums stored in the third one's place, copies that go on with the next
chunk while a warp goes on with its own next one, a total that begins anew with each round of chunks, rows of a tile of
B an element too close.
"""

import pytest
import torch

from torch_tiledmm import host_gpu
from torch_tiledmm.testing.reference import assert_close, expect_matmul

# m, n, k, layout, margin of the leading dimensions: copies of 16 bytes, and of single elements; k in chunks and in one;
# numbers of plans: of tiles, then of few rows, the last one with a block for each chunk where there are chunks.
CASES = [
    (torch.float32, 1, 45, 1100, "NT", 4, (2, 0, 1)),
    (torch.float32, 1, 45, 1100, "NN", 3, (2, 0, 1)),
    (torch.float32, 3, 9, 777, "TT", 1, (2, 0, 1)),
    (torch.float32, 8, 40, 1030, "NN", 4, (2, 0, 1)),
    (torch.float32, 2, 33, 520, "NT", 1, (2, 0, 1)),
    (torch.float32, 1, 10, 2700, "NT", 4, (2, 0, 1)),
    (torch.float32, 1, 20, 500, "NN", 4, (1, 0)),
    (torch.float64, 1, 40, 1331, "NT", 1, (7, 18, 19)),
    (torch.float64, 1, 40, 1331, "NN", 1, (7, 18, 19)),
    (torch.float64, 1, 40, 2600, "NN", 2, (7, 18, 19)),
    (torch.float64, 1, 70, 333, "TN", 2, (7, 9)),
    (torch.float64, 1, 7, 33, "TT", 1, (7, 9)),
]


def operand(rows, columns, is_transposed, margin, dtype, generator):
    if is_transposed:
        return operand(columns, rows, False, margin, dtype, generator).mT
    stored = torch.rand(rows, columns + margin, dtype=dtype, generator=generator) * 2 - 1
    return stored[:, :columns]


@pytest.mark.parametrize("dtype, m, n, k, layout, margin, plans", CASES)
def test_plans_have_the_bits_of_tiles(dtype, m, n, k, layout, margin, plans):
    generator = torch.Generator().manual_seed(m * n * k)
    a = operand(m, k, layout[0] == "T", margin, dtype, generator)
    b = operand(k, n, layout[1] == "T", margin, dtype, generator)
    algorithm = "simt_pipelined" if dtype == torch.float32 else "mma_async"
    tiles, *few_rows = (host_gpu.matmul(a, b, algorithm=f"{algorithm}:{plan}", seed=plan)[0] for plan in plans)
    assert_close(tiles, expect_matmul(a, b))
    for result in few_rows:
        assert torch.equal(tiles, result)
    if dtype == torch.float64:  # those of few rows come last
        with pytest.raises(NotImplementedError):
            host_gpu.matmul(a, b, algorithm=f"{algorithm}:{plans[-1] + 1}")
