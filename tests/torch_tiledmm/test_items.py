"""Batches of small items on the CPU, which register_tiled and amx compute one in each lane of vectors, and larger ones,
which register_tiled multiplies where they lie: the bits of each item are those that it has alone, and those of the same
rows of a product with many.

Planted bugs that these tests caught: k from its end, products that are rounded, the last packet of an item after the
one before it and not at its end, a dimension of the batch in the place of another, runs with gaps taken for one, the
bias of columns for that of items.
"""

import itertools

import pytest
import torch

import torch_tiledmm
from torch_tiledmm import addmm, matmul
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.cases import assert_only_view_changed, assert_same_bits, nans
from torch_tiledmm.testing.reference import assert_close, expect_addmm, expect_matmul

# Kernels of this machine and the dtypes that they serve. Not by pairs of elements.
CASES = [
    pytest.param(entry.name, dtype_name, id=f"{entry.name}-{dtype_name}")
    for entry in torch_tiledmm.algorithms("cpu")
    for dtype_name in DTYPES
    if entry.name == "amx" or entry.name.startswith("register_tiled.")
    if entry.available and dtype_name in entry.dtypes and entry.name != "register_tiled.avx512_bf16"
]
# Items shorter than a packet, of whole packets, and of some and a part; whole tiles of lanes and edges.
SHAPES = [(1, 1, 1), (2, 1, 1), (1, 5, 2), (1, 1, 64), (3, 1, 27), (4, 4, 4), (5, 3, 1), (3, 5, 7), (2, 3, 100)]
# Tiles of every width and height, with and without edges.
IN_PLACE = [(1, 100, 9), (2, 80, 13), (5, 37, 20), (13, 70, 6), (27, 33, 7), (3, 64, 40), (25, 16, 5), (3, 32, 1030)]
BATCHES = [(3,), (16,), (37,), (3, 9), (9, 2), (2, 2, 6)]


def batched(batch: tuple[int, ...], rows: int, cols: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Values over a wide range, so that another order shows. Layouts: how the matrix of an item lies, T transposed, G
    with gaps between its elements, I with the items as neighbours, B one matrix for all items of the last dimension."""
    scale = torch.logspace(-2, 2, cols, dtype=torch.float64)
    stored = (*batch[:-1], 1) if layout == "B" else batch
    values = (torch.randn(*stored, rows, cols, dtype=torch.float64) * scale).to(dtype).expand(*batch, rows, cols)
    if layout == "I":
        return values.movedim((-2, -1), (0, 1)).contiguous().movedim((0, 1), (-2, -1))
    if layout == "G":
        return values.repeat_interleave(3, -1).repeat_interleave(2, -2)[..., ::2, ::3]
    return values.mT.contiguous().mT if layout == "T" else values


def output(batch: tuple[int, ...], m: int, n: int, layout: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Memory full of NaN, and where the result goes."""
    step = 3 if layout == "G" else 1
    sizes = (*batch, n, m) if layout == "T" else (m, n, *batch) if layout == "I" else (*batch, m, n * step)
    count = torch.Size(sizes).numel()
    memory = nans(count + 40, dtype)
    view = memory[20 : 20 + count].view(sizes)
    view = view.mT if layout == "T" else view.movedim((0, 1), (-2, -1)) if layout == "I" else view
    return [memory, view[..., ::step] if layout == "G" else view]


def by_items(a: torch.Tensor, b: torch.Tensor, name: str) -> torch.Tensor:
    """Each item alone, and as the first rows of a product with many."""
    alone = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    for place in itertools.product(*map(range, a.shape[:-2])):
        alone[place] = matmul(a[place], b[place], algorithm=name)
    first = (0,) * (a.dim() - 2)
    many = matmul(
        torch.cat([a[first], torch.randn(50, a.shape[-1], dtype=torch.float64).to(a.dtype)]), b[first], algorithm=name
    )
    assert_same_bits(many[: a.shape[-2]], alone[first], "with many rows")
    return alone


@pytest.mark.parametrize("name, dtype_name", CASES)
def test_bits_are_those_of_each_item_alone(name, dtype_name):
    layouts = itertools.cycle(itertools.product("NTGIB", "NTGIB", "NTGI"))
    for (m, n, k), batch in itertools.product(SHAPES + IN_PLACE, BATCHES):
        for of_a, of_b, of_c in itertools.islice(layouts, 7):
            a, b = (batched(batch, *size, of, DTYPES[dtype_name]) for size, of in (((m, k), of_a), ((k, n), of_b)))
            memory, out = output(batch, m, n, of_c, DTYPES[dtype_name])
            matmul(a, b, algorithm=name, out=out)
            assert_only_view_changed(memory, out)
            assert_same_bits(out, by_items(a, b, name), name, (m, n, k), batch, of_a, of_b, of_c)
            assert_close(out, expect_matmul(a, b))


@pytest.mark.parametrize("name, dtype_name", CASES)
@pytest.mark.parametrize("beta, alpha", [(1, 1), (0.3, 1), (-2, 1.75)])
def test_what_is_added_is_that_of_its_item(beta, alpha, name, dtype_name):
    dtype = DTYPES[dtype_name]
    for m, n, k in SHAPES:
        a, b = batched((19,), m, k, "N", dtype), batched((19,), k, n, "T", dtype)
        matrix = torch.randn(19, m, n, dtype=torch.float64).to(dtype)
        for added in (matrix, matrix[:1], matrix[:, :1], matrix[:, :, :1], matrix[0, :1]):
            items, how = added.expand(19, m, n), {"beta": beta, "alpha": alpha, "algorithm": name}
            out = addmm(added, a, b, **how)
            assert_same_bits(out, torch.stack([addmm(items[i], a[i], b[i], **how) for i in range(19)]), name, (m, n, k))
            assert_close(out, expect_addmm(added, a, b, beta, alpha))


@pytest.mark.parametrize("isa, dtype_name", [*itertools.product(("avx2", "avx512"), DTYPES), ("amx", "bf16")])
def test_small_items_of_large_batches_take_this_path(isa, dtype_name):
    kernel = isa if isa == "amx" else f"register_tiled.{isa}"

    def path(m: int, n: int, k: int, batch: int) -> object:
        candidates = torch_tiledmm.explain(m, n, k, dtype_name, device=f"cpu:{isa}", batch=batch).candidates
        return next(one.config["path"] for one in candidates if one.algorithm == kernel)

    for shape in SHAPES:
        assert path(*shape, batch=1000) == "items" != path(*shape, batch=1), shape
    assert path(64, 64, 64, batch=1000) != "items"
    assert path(5, 5, 600, batch=1000) != "items" or isa == "amx"  # k of two chunks
