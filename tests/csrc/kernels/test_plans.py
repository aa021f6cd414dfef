"""The plans of kernels on both sides of each limit that they have: all that a kernel lists, for chips that need not be
here. A plan beyond a limit is a cluster that no chip launches, or a workspace that takes too much memory; one that is
missing below it would have been faster.

Planted bugs that these tests caught: chunks shared out in clusters of up to twice as many blocks; twice the memory for
the sums of chunks, and half of it; one row more than a kernel serves; C^T with sums of chunks that wait in memory, and
none without; stores across rows of C that cost nothing.
"""

import itertools
import random

import pytest

import torch_tiledmm
from torch_tiledmm.testing.timing import matmul_precision

MIB = 1 << 20
# Kernel: chip, dtypes, bytes that the sums of chunks side by side may take.
SPLITTING = {
    "wgmma": ("cuda:sm_90", ("bf16",), 256 * MIB),
    "mma_async": ("cuda:sm_80", ("bf16", "fp64"), 256 * MIB),
    "skinny": ("cuda:sm_90", ("bf16", "fp64"), 64 * MIB),
    "mfma": ("hip:gfx942", ("bf16", "fp32", "fp64"), 256 * MIB),
    "wmma_rdna": ("hip:gfx1100", ("bf16",), 256 * MIB),
}
LEAST_CHUNKS, MOST_CHUNKS = 2, 20


def plans_of(kernel: str, chip: str, dtype: str, m: int, n: int, k: int, batch: int = 0) -> list[dict]:
    answer = torch_tiledmm.explain(m, n, k, dtype, device=chip, batch=batch, plans_of=kernel)
    return [plan.config for plan in answer.candidates]


def num_chunks(kernel: str, chip: str, dtype: str, n: int, k: int) -> int:
    found = {plan["chunks"] for plan in plans_of(kernel, chip, dtype, 1, n, k)}
    assert len(found) == 1, f"plans of one problem have different chunks: {found}"
    return found.pop()


def splits(plan: dict) -> bool:
    """Whether chunks are computed side by side and wait for each other in memory."""
    return plan.get("sums_added_by") == "second kernel"


def problems(kernel: str, chip: str, dtype: str, count: int):
    """n, k of few chunks and of many, at their ends and one more; and their number."""
    rng = random.Random(f"{kernel} {dtype}")
    found = 0
    while found < count:
        n = rng.choice((1, 8, 40, 64, 200, 300, 512, 1000))
        k = rng.choice((256, 512, 1024, 16384)) * rng.randrange(1, 30) + rng.choice((0, 0, 1, -1))
        if LEAST_CHUNKS <= (chunks := num_chunks(kernel, chip, dtype, n, k)) <= MOST_CHUNKS:
            found += 1
            yield n, k, chunks


@pytest.mark.parametrize("kernel, dtype", [(name, dtype) for name in SPLITTING for dtype in SPLITTING[name][1]])
def test_sums_of_chunks_take_no_more_memory_than_they_may(kernel, dtype):
    chip, _, most_bytes = SPLITTING[kernel]
    size, numbers = 8 if dtype == "fp64" else 4, []
    for n, k, chunks in problems(kernel, chip, dtype, 25):
        for batch in (0, 3):
            row = size * chunks * n * max(batch, 1)
            if kernel == "skinny" and n > (8 if dtype == "fp64" else 64):
                continue  # few columns, so that there may be many rows
            for m, fits in ((most_bytes // row, True), (most_bytes // row + 1, False), (5, True)):
                plans = plans_of(kernel, chip, dtype, m, n, k, batch)
                assert plans and all(plan["chunks"] == chunks for plan in plans), (m, n, k, batch)
                splitting = [plan for plan in plans if splits(plan)]
                assert all(plan["split_k"] == chunks for plan in splitting), (m, n, k, batch, plans)
                assert fits or not splitting, f"{m} {n} {k} {batch}: {row * m} bytes"
                assert splitting or not fits, f"{m} {n} {k} {batch}: {row * m} bytes would fit"
                numbers.append(len(splitting))
    assert any(numbers) and not all(numbers)


def test_clusters_have_as_many_blocks_as_every_hopper_launches():
    """Eight. They share operands, or a tile whose chunks they have one each."""
    most = 8
    shapes = [(64, 300, 16384 * chunks + more) for chunks, more in itertools.product(range(7, 19), (-1, 0, 1))]
    shapes += [(m, n, k) for n, k, _ in problems("wgmma", "cuda:sm_90", "bf16", 60) for m in (1, 64, 65, 300, 2000)]
    shared, sides = set(), set()
    for m, n, k in shapes:
        for plan in plans_of("wgmma", "cuda:sm_90", "bf16", m, n, k):
            if plan.get("sums_added_by") == "cluster":
                assert plan["split_k"] == plan["chunks"] <= most, (m, n, k, plan)
                shared.add(plan["chunks"])
            along_m, along_n = map(int, plan.get("cluster", "1x1").split("x"))
            assert along_m * along_n <= most and max(along_m, along_n) <= 4, (m, n, k, plan)
            sides.add((along_m, along_n))
    assert shared == set(range(4, most + 1))  # fewer chunks are none
    assert sides == {(2**i, 2**j) for i in range(3) for j in range(3) if i + j <= 3}


@pytest.mark.parametrize("chip", ["cuda:sm_80", "cuda:sm_90"])
def test_multiply_adds_side_by_side_fit_their_memory(chip):
    """Of simt_pipelined: tiles split in chunks, and rows whose chunks have a block each."""
    found = {"tiles": set(), "rows": set()}
    for n, k, chunks in problems("simt_pipelined", chip, "fp32", 12):
        fitting = 256 * MIB // (4 * chunks * n)  # rows of so many columns
        for m, batch in ((2 * fitting, 0), (200, 0), (8, 3), (9, 3), (8, fitting // 8), (8, fitting // 8 + 1)):
            items = max(batch, 1)
            for plan in plans_of("simt_pipelined", chip, "fp32", m, n, k, batch):
                if plan.get("path") == "few_rows":
                    rows = n if plan.get("computes") == "C^T" else m
                    assert rows <= 8 and 1 <= plan["warps"] <= 8 and plan["split_k"] in (1, chunks), (m, n, k, plan)
                    is_split, num_bytes, kind = plan["split_k"] > 1, 4 * chunks * m * n * items, "rows"
                else:
                    block_m, block_n = map(int, plan["block"].split("x"))
                    rows, cols = (n, m) if plan.get("computes") == "C^T" else (m, n)
                    tiles = -(-rows // block_m) * -(-cols // block_n)
                    assert 0 <= plan["whole_tiles"] <= tiles, (m, n, k, plan)
                    num_sums = (tiles - plan["whole_tiles"]) * block_m * block_n
                    is_split, num_bytes, kind = num_sums > 0, 4 * num_sums * chunks * items, "tiles"
                assert not is_split or num_bytes <= 256 * MIB, (m, n, k, batch, plan)
                found[kind].add(is_split)
    assert found == {"tiles": {False, True}, "rows": {False, True}}


def test_mma_async_exchanges_operands_where_no_sums_wait_in_memory():
    """Of 4 and 8 bytes. Sums of chunks wait where another kernel adds them, or tiles have no registers for them."""
    for dtype, m, n, k, batch in itertools.product(("fp64", "fp32", "bf16"), (30, 300), (20, 200), (64, 3000), (0, 5)):
        with matmul_precision("tf32"):
            plans = plans_of("mma_async", "cuda:sm_90", dtype, m, n, k, batch)
        is_few = min(m, n) <= 64 and n < m
        own = [plan for plan in plans if ("computes" in plan) == is_few]
        exchanged = [plan for plan in plans if ("computes" in plan) != is_few]
        kinds = [(plan["block"], plan["block_k"]) for plan in own if "path" not in plan]
        without_registers = (("128x128", 16), ("64x64", 16)) if dtype == "fp64" else (("128x256", 32), ("128x128", 32))
        is_chunked = plans[0]["chunks"] > 1
        expected = [kind for kind in kinds if dtype != "bf16" and not (is_chunked and kind in without_registers)]
        found = [(plan["block"], plan["block_k"]) for plan in exchanged]
        assert sorted(set(found)) == sorted(set(expected)), (dtype, m, n, k, batch, plans)
        assert not any(splits(plan) for plan in exchanged)


def test_tiles_of_mma_async_are_filled_and_rows_of_c_stored_along():
    """C of 96 columns: three times 32 of them. Of up to 64: rows of C unless there are few columns."""
    for batch, m, n, k in ((512, 115, 96, 224), (64, 904, 96, 1468), (64, 1216, 96, 248)):
        answer = torch_tiledmm.explain(m, n, k, "fp64", layout="NN", device="cuda:sm_90", batch=batch)
        chosen = next(c.config for c in answer.candidates if c.algorithm == answer.choice)
        assert chosen["block"] == ("32x64" if "computes" in chosen else "64x32"), (m, n, k, answer)
    for batch, m, n, k, is_exchanged in (
        (16, 3187, 60, 64, False),
        (512, 176, 56, 128, False),
        (8, 3000, 5, 300, True),
    ):
        answer = torch_tiledmm.explain(m, n, k, "fp64", layout="NT", device="cuda:sm_90", batch=batch)
        chosen = next(c.config for c in answer.candidates if c.algorithm == answer.choice)
        assert ("computes" in chosen) == is_exchanged, (m, n, k, answer)
    with matmul_precision("tf32"):  # in unaligned rows along k; tiles of 64 x 64 take as long for C^T
        answer = torch_tiledmm.explain(200, 64, 1774, "fp32", layout="NN", device="cuda:sm_90", batch=128)
    chosen = next(c.config for c in answer.candidates if c.algorithm == answer.choice)
    assert answer.choice == "mma_async" and chosen["block"] == "64x64" and "computes" not in chosen, answer


@pytest.mark.parametrize(
    "m, n, k, block, is_exchanged",
    [
        (256, 256, 524288, "128x256", False),  # whole rows of B, of a chunk for each block
        (232, 24, 57680, "64x64", False),  # few columns beside a large A: few of its rows for each block
        (832, 1, 374144, "64x64", False),
        (359936, 256, 192, "128x256", False),  # all columns in a tile
        (3072, 768, 768, "192x96", True),  # else fewer rows of tiles than columns
        (13349, 29099, 32, "128x256", False),  # threads store C: in few parts of a tile
    ],
)
def test_how_memory_is_read_decides_between_tiles_of_wgmma(m, n, k, block, is_exchanged):
    answer = torch_tiledmm.explain(m, n, k, "bf16", layout="NN", device="cuda:sm_90")
    chosen = next(c.config for c in answer.candidates if c.algorithm == answer.choice)
    assert (chosen["block"], "computes" in chosen) == (block, is_exchanged), answer


# Kernel, chip, dtype, and the sizes (m, n, k) of what it serves just so and of what it refuses.
LIMITS = [
    ("skinny", "cuda:sm_90", "bf16", (64, 1000, 300), (65, 1000, 300)),
    ("skinny", "cuda:sm_80", "fp16", (1000, 64, 300), (1000, 65, 300)),
    ("skinny", "cuda:sm_90", "fp64", (8, 1000, 300), (9, 1000, 300)),
    ("few_rows", "hip:gfx1100", "bf16", (16, 1000, 300), (17, 1000, 300)),
    ("few_rows.mfma", "hip:gfx942", "bf16", (1000, 16, 300), (1000, 17, 300)),
    ("few_rows.chain", "hip:gfx1201", "fp32", (16, 1000, 300), (17, 1000, 300)),
    ("wgmma", "cuda:sm_90", "bf16", (2**30 - 1, 1, 64), (2**30, 1, 64)),
    ("wgmma", "cuda:sm_90", "bf16", (1, 1, 2**30 - 1), (1, 1, 2**30)),
    ("wgmma_split", "cuda:sm_90", "fp32", (1, 2**30 - 1, 100), (1, 2**30, 100)),
    ("mfma_split", "hip:gfx942", "fp32", (4, 4, 2**21), (4, 4, 2**21 + 1)),
    ("wmma_rdna", "hip:gfx1201", "bf16", (4, 4, 2**31 - 1), (4, 4, 2**31)),
    ("mfma", "hip:gfx950", "bf16", (2_114_445_312, 1, 1), (2_114_445_440, 1, 1)),  # 2^25 tiles
]


@pytest.mark.parametrize("kernel, chip, dtype, served, refused", LIMITS)
def test_a_kernel_serves_what_its_limits_say(kernel, chip, dtype, served, refused):
    for sizes, is_legal in ((served, True), (refused, False)):
        candidates = {c.algorithm: c for c in torch_tiledmm.explain(*sizes, dtype, device=chip).candidates}
        assert candidates[kernel].legal == is_legal, (sizes, candidates[kernel])
        assert bool(plans_of(kernel, chip, dtype, *sizes)) == is_legal
