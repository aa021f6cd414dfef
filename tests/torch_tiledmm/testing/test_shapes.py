import itertools

import pytest
import torch

from torch_tiledmm.testing import LAYOUTS, SHAPES, make_operands, parse_shape, select_shapes
from torch_tiledmm.testing.families import FAMILIES, family_products
from torch_tiledmm.testing.shapes import KINDS, random_shapes


def test_names_are_unique_and_every_row_says_why():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert all(shape.why for shape in SHAPES)
    assert {shape.layout for shape in SHAPES} == set(LAYOUTS)


@pytest.mark.parametrize("text", ["4096x64x64:NN", "128x3072x768:NT", "1024x1024x1024:TN", "8x50257x768:NT"])
def test_table_has_the_rows_that_the_goals_name(text):
    assert text in {str(shape) for shape in SHAPES}


def test_some_rows_of_most_kinds_are_cheap():
    assert {shape.kind for shape in SHAPES if shape.is_cheap} >= {"tiny", "square", "odd", "linear", "long_k"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_operands_have_the_shape_and_layout_of_the_row(layout, batch):
    shape = parse_shape("x".join(map(str, (*batch, 5, 7, 11))) + ":" + layout)
    a, b = make_operands(shape, torch.float16)
    assert (a.shape, b.shape) == ((*batch, 5, 11), (*batch, 11, 7))
    assert a.stride()[-2:] == ((11, 1) if layout[0] == "N" else (1, 5))
    assert b.stride()[-2:] == ((7, 1) if layout[1] == "N" else (1, 11))
    assert a.dtype == b.dtype == torch.float16
    assert a.min() < -0.5 and 0.5 < a.max() <= 1
    again, _ = make_operands(shape, torch.float16)
    assert torch.equal(a, again)


def test_random_rows_are_those_of_their_seed_and_small_enough():
    rows = list(itertools.islice(random_shapes(1, 1e9), 300))
    assert rows == list(itertools.islice(random_shapes(1, 1e9), 300))
    assert rows != list(itertools.islice(random_shapes(2, 1e9), 300))
    assert all(row.flops <= 1e9 and min(row.m, row.n, row.k) > 0 for row in rows)
    assert {row.layout for row in rows} == set(LAYOUTS) and len({row.kind for row in rows}) == 9
    assert all(row.batch == 0 or row.kind == "batch" for row in rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_that_of_its_seed(name):
    rows = list(itertools.islice(family_products(name, 1), 300))
    assert rows == list(itertools.islice(family_products(name, 1), 300))
    assert rows != list(itertools.islice(family_products(name, 2), 300))
    assert {precision for precision, _ in rows} == set(FAMILIES[name].precisions)
    assert all(shape.batch == 0 and min(shape.m, shape.n, shape.k) > 0 for _, shape in rows)
    layouts = {"forward": {"NT"}, "dX": {"NN"}, "dW": {"TN"}, "mid": {"NT", "NN", "TN"}}
    for kind in {shape.kind for _, shape in rows}:
        assert {shape.layout for _, shape in rows if shape.kind == kind} == layouts.get(kind, set(LAYOUTS))


def test_families_are_what_their_bars_are_for():
    def shapes(name):
        return [shape for _, shape in itertools.islice(family_products(name, 1), 300)]

    for shape in shapes("layers_base"):
        rows = shape.k if shape.kind == "dW" else shape.m
        assert 1000 <= rows <= 10000
    assert all(512 <= side <= 2500 and side % 8 == 0 for s in shapes("mid") for side in (s.m, s.n, s.k))
    assert {shape.m for shape in shapes("one_row")} == {1}
    assert {shape.m for shape in shapes("rows_2_to_16")} == set(range(2, 17))
    assert all(max(s.m, s.n) <= 512 and s.k >= 4096 for s in shapes("long_k"))
    assert all(1000 <= (s.k if s.kind == "dW" else s.m) <= 2000 for s in shapes("bert_rows"))
    for s in shapes("lm_heads"):
        assert 32000 <= {"forward": s.n, "dX": s.k, "dW": s.m}[s.kind] <= 152064
    assert all(min(s.m, s.n, s.k) <= 256 for s in shapes("routers"))
    assert {(8205, 5921, 2949), (256, 256, 524288)} <= {(s.m, s.n, s.k) for s in shapes("kernelbench")}
    assert {(7168, 2112), (512, 32768)} <= {(s.k, s.n) for s in shapes("deepseek_v3") if s.kind == "forward"}


def test_flops_and_bytes_count_the_batch():
    shape = parse_shape("3x5x7x11:NT")
    assert shape.flops == 3 * 2 * 5 * 7 * 11
    assert shape.num_bytes(torch.bfloat16) == 3 * 2 * (5 * 11 + 11 * 7 + 5 * 7)


def test_select_takes_names_kinds_and_sizes_in_table_order():
    chosen = select_shapes(["2x3x4", "odd", "square_64_nn"])
    assert chosen[0].name == "square_64_nn"
    assert [str(shape) for shape in chosen[-1:]] == ["2x3x4:NN"]
    assert {shape.kind for shape in chosen[1:-1]} == {"odd"}
    assert select_shapes(list(KINDS)) == list(SHAPES)
    assert all(shape.is_cheap for shape in select_shapes(["cheap"]))


@pytest.mark.parametrize("word", ["", "square_65", "3x4", "3x4x5:NX", "3x4x5:NTT", "1x2x3x4x5"])
def test_select_refuses_what_it_does_not_know(word):
    with pytest.raises(ValueError, match="expected"):
        select_shapes([word])
