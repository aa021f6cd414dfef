"""Scaled products of groups of rows in 8 bits: values of all recipes, bits of a row, what belongs to no group, what is
refused, transforms, the mode.

Planted bugs that these tests caught: the scales of the group before; the first group's bias for all; rows of no group
multiplied by an infinite scale; the last group's activation of them; b's scales along k for those along n; groups of a
b in 8 bits at twice their distance; a b of e4m3 widened in memory; one of e5m2 read as e4m3.
"""

import itertools
import random

import pytest
import torch
import torch._dynamo.testing
from test_grouped import SIZES, behind, ends_of, products
from test_ops import allocated_bytes
from test_scaled import E4M3, E5M2, LAYOUTS, MIXES, OUT_DTYPES, blocks, laid_out, random_scale

import torch_tiledmm
from torch_tiledmm import grouped_matmul, scaled_grouped_matmul, scaled_matmul
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_scaled

OP = torch.ops.tiledmm.scaled_grouped_matmul.default

# The shapes of scale_a and scale_b.
RECIPES = {
    "tensor": lambda m, groups, n, k: ((), (1, 1, 1)),
    "tensors": lambda m, groups, n, k: ((1, 1), (groups, 1, 1)),
    "rows": lambda m, groups, n, k: ((m, 1), (groups, 1, n)),
    "vectors": lambda m, groups, n, k: ((m,), (groups, n)),
    "tensor and rows": lambda m, groups, n, k: ((1,), (groups, n)),
    "blocks": lambda m, groups, n, k: ((m, blocks(k)), (groups, blocks(k), blocks(n))),
}


def operands(recipe, sizes, n, k, mix=(E4M3, E4M3), layouts=("N", "T"), layout_of_scales="N"):
    """a, b, their scales and offs; the last size is of rows in no group. Sums are of mean size 1."""
    m, groups = sum(sizes), len(sizes) - 1
    a, b = (
        laid_out(torch.randn(shape).to(dtype), layout)
        for shape, dtype, layout in zip(((m, k), (groups, k, n)), mix, layouts, strict=True)
    )
    scale_a, scale_b = (random_scale(shape, layout_of_scales) for shape in RECIPES[recipe](m, groups, n, k))
    return a, b, scale_a * max(k, 1) ** -0.5, scale_b, ends_of(sizes)


def multiply(a, b, scale_a, scale_b, offs, **options):
    return scaled_grouped_matmul(a, b, scale_a, scale_b, offs=offs, **options)


def of_groups(given, out, bias=None):
    """The operands of scaled_matmul for each group, its part of out, and its bias."""
    a, b, scale_a, scale_b, offs = given
    ends = [0, *offs.tolist()]
    for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
        own_scale_a = scale_a if scale_a.numel() == 1 else scale_a[slice(*ends[group : group + 2])]
        own_scale_b = scale_b if scale_b.numel() == 1 else scale_b[group]
        yield (own_a, own_b, own_scale_a, own_scale_b), own_out, None if bias is None else bias[group]


def check(given, bias=None, expect=expect_scaled, **options):
    out = multiply(*given, bias=bias, **options)
    assert out.is_contiguous()
    for own, own_out, own_bias in of_groups(given, out, bias):
        if len(own_out):
            assert_close(own_out, expect(*own, bias=own_bias, **options))
    assert not behind(given[0], given[1], given[4], out).any()


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_values(recipe, mix):
    epilogues = itertools.cycle(itertools.product(OUT_DTYPES, ACTIVATIONS, (None, *OUT_DTYPES)))
    number = itertools.count(list(RECIPES).index(recipe) + 17 * MIXES.index(mix))
    layouts = itertools.cycle(itertools.product(LAYOUTS, repeat=2))
    for sizes, (n, k) in itertools.product(SIZES, ((33, 70), (1, 1), (3, 0), (140, 300), (257, 128))):
        out_dtype, activation, of_bias = next(epilogues)
        given = operands(recipe, sizes, n, k, mix, next(layouts), LAYOUTS[next(number) % 3])
        bias = None if of_bias is None else laid_out(torch.randn(len(sizes) - 1, n).to(of_bias), LAYOUTS[n % 3])
        check(given, bias, activation=activation, out_dtype=out_dtype)


@pytest.mark.parametrize("seed", range(20))
def test_random_groups(seed):
    draw = random.Random(seed)
    sizes = [draw.choice((0, 0, 1, 2, draw.randint(0, 100))) for _ in range(draw.randint(1, 40))] + [draw.randint(0, 3)]
    recipe, mix = draw.choice(list(RECIPES)), draw.choice(MIXES)
    given = operands(recipe, sizes, draw.randint(1, 200), draw.randint(1, 300), mix, draw.choices(LAYOUTS, k=2))
    check(given, out_dtype=draw.choice(OUT_DTYPES), activation=draw.choice(ACTIVATIONS))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_of_a_row_are_those_of_a_product(recipe, threads):
    """Whatever the group's size, the order of groups and the others."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for sizes in ((5, 0, 140, 1, 63, 2), (1, 1, 0, 1, 0)):
            given = operands(recipe, sizes, 141, 390, (E5M2, E4M3))
            bias = torch.randn(len(sizes) - 1, 141).bfloat16()
            out = multiply(*given, bias=bias, activation="silu")
            for own, own_out, own_bias in of_groups(given, out, bias):
                if len(own_out):
                    whole = scaled_matmul(*own, bias=own_bias, activation="silu")
                    assert_same_bits(own_out, whole)
                    last = own[0][-1:], own[1], own[2] if own[2].numel() == 1 else own[2][-1:], own[3]
                    assert_same_bits(own_out[-1:], scaled_matmul(*last, bias=own_bias, activation="silu"))
    finally:
        torch.set_num_threads(former)


@pytest.mark.parametrize("recipe", ["tensors", "rows", "blocks"])
def test_what_no_row_of_a_group_has_changes_nothing(recipe):
    """NaN in rows of no group, in the b of empty groups, and in the scales of both."""
    given = operands(recipe, (5, 0, 40, 0, 7), 141, 300)
    bias = torch.randn(4, 141)
    options = {"activation": "gelu", "out_dtype": torch.float32}
    expected = multiply(*given, bias=bias, **options)
    assert not expected[45:].any()
    a, b, scale_a, scale_b, offs = (tensor.clone() for tensor in given)
    bias = bias.clone()
    a.view(torch.uint8)[45:] = 0x7F
    if scale_a.numel() > 1:
        scale_a[45:] = torch.inf
    for group in (1, 3):
        b.view(torch.uint8)[group] = 0x7F
        scale_b[group] = torch.inf if group == 1 else torch.nan
        bias[group] = torch.nan
    assert_same_bits(multiply(a, b, scale_a, scale_b, offs, bias=bias, **options), expected)


@pytest.mark.parametrize("recipe", RECIPES)
def test_algorithms(recipe):
    given = operands(recipe, (5, 0, 30, 2), 140, 300)
    for algorithm in ("naive", "block_tiled", "register_tiled", "native"):
        check(given, out_dtype=torch.float32, algorithm=algorithm, expect=lambda *own, algorithm, **options: (
            expect_scaled(*own, **options)
        ))  # fmt: skip
    with torch_tiledmm.use_algorithm("naive"):
        named = multiply(*given)
    assert_same_bits(named, multiply(*given, algorithm="naive"))
    with pytest.raises(NotImplementedError, match="only GPUs"):
        multiply(*given, algorithm="wgmma")


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_sums_by_rows_are_those_of_bf16(mix):
    """Of a b of e4m3, which is read as it lies, by blocks of one thread and by all threads, and of a copied one."""
    for sizes, n, k, layouts in (
        ((5, 0, 30, 0), 140, 300, "NT"),
        ((1, 1, 2, 3), 1100, 1030, "TN"),
        ((600, 3, 0), 515, 1100, "NT"),
        ((2, 9, 1), 300, 2100, ("T", "strided")),
    ):
        a, b, *_, offs = given = operands("rows", sizes, n, k, mix, layouts)
        out = multiply(*given, out_dtype=torch.float32)
        sums = grouped_matmul(a.bfloat16(), b.bfloat16(), offs=offs, out_dtype=torch.float32)
        for (own, own_out, _), (*_, own_sums) in zip(of_groups(given, out), products(a, b, offs, sums), strict=True):
            assert_same_bits(own_out, own_sums * (own[2] * own[3]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_of_e4m3_are_not_copied(layout):
    sizes = (1, 0, 3, *(1,) * 13, 2)
    given = operands("rows", sizes, 256, 512, layouts=("N", layout))
    of_elements = given[1].numel()
    assert allocated_bytes(lambda: multiply(*given)) < of_elements
    copied = given[0], given[1].view(torch.uint8).view(E5M2), *given[2:]
    assert allocated_bytes(lambda: multiply(*copied)) > 2 * of_elements


A, B, S = torch.zeros(6, 300).to(E4M3), torch.zeros(2, 300, 200).to(E5M2), torch.ones(())
OFFS = torch.tensor([2, 5], dtype=torch.int32)
GIVEN = A, B, S, S, OFFS
REFUSED = {
    "a in 16 bits": (TypeError, "a has dtype Half; accepted are torch.float8_e4m3fn", (A.half(), B, S, S, OFFS), {}),
    "b in 32 bits": (TypeError, "b has dtype Float; accepted are", (A, B.float(), S, S, OFFS), {}),
    "a scale in 16 bits": (TypeError, "scale_b has dtype Half; accepted is torch", (A, B, S, S.half(), OFFS), {}),
    "offs of 64 bits": (TypeError, "offs has dtype Long; accepted is torch.int32", (A, B, S, S, OFFS.long()), {}),
    "a result of 64 bits": (TypeError, "cannot have dtype Double", GIVEN, {"out_dtype": torch.float64}),
    "a bias of 64 bits": (TypeError, "bias has dtype Double", GIVEN, {"bias": S.double().expand(2, 200)}),
    "one b": (RuntimeError, "a has 2 dimensions and b has 2; accepted are 2 and 3", (A, B[0], S, S, OFFS), {}),
    "a batch": (RuntimeError, "a has 3 dimensions and b has 3; accepted are 2 and 3", (A[None], B, S, S, OFFS), {}),
    "k that differ": (RuntimeError, "do not fit", (A, B[:, :9], S, S, OFFS), {}),
    "offs of another number": (RuntimeError, "offs has 1 elements for 2 groups", (A, B, S, S, OFFS[:1]), {}),
    "a bias of one group": (RuntimeError, r"bias has shape \[200\]; .* \(2, 200\)", GIVEN, {"bias": S.expand(200)}),
    "scales elsewhere": (RuntimeError, "scale_b is on meta and a on cpu", (A, B, S, S.to("meta"), OFFS), {}),
    "offs elsewhere": (RuntimeError, "offs is on meta and a on cpu", (A, B, S, S, OFFS.to("meta")), {}),
    "offs that decrease": (ValueError, "ends group 1 at 2; accepted are .* from 5", (A, B, S, S, OFFS.flip(0)), {}),
    "offs beyond a": (ValueError, "offs ends group 1 at 7; accepted are ends from 4", (A, B, S, S, OFFS + 2), {}),
    "an activation": (ValueError, "activation 'selu'", GIVEN, {"activation": "selu"}),
    "an algorithm": (ValueError, "algorithm 'fast'", GIVEN, {"algorithm": "fast"}),
    "a kernel of GPUs": (NotImplementedError, "only GPUs", GIVEN, {"algorithm": "wgmma_fp8_grouped"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    error, message, given, options = REFUSED[name]
    with pytest.raises(error, match=message):
        multiply(*given, **options)
    # Meta tensors have the same checks, but no kernels and no values.
    if (
        error is not NotImplementedError
        and "elsewhere" not in name
        and not name.startswith(("offs that", "offs beyond"))
    ):
        given = [tensor.to("meta") for tensor in given]
        options = {
            key: value.to("meta") if isinstance(value, torch.Tensor) else value for key, value in options.items()
        }
        with pytest.raises(error, match=message):
            multiply(*given, **options)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), ()),
        ((6, 1), (200,)),  # one B's
        ((6, 1), (1, 200)),
        ((6, 1), (3, 1, 200)),
        ((6, 1), (2, 3, 2)),  # rows beside blocks
        ((6, 3), (2, 1, 200)),
        ((6, 3), (3, 2)),
        ((6, 3), (2, 2, 3)),
        ((6, 3), (2, 3, 200)),  # blocks of one column
        ((1, 3), (2, 3, 2)),  # blocks of 128 rows
        ((6, 2), (2, 3, 2)),
        ((0,), ()),
    ],
)
def test_scales_of_other_shapes(shapes):
    given = A, B, torch.ones(shapes[0]), torch.ones(shapes[1]), OFFS
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError) as error:
            multiply(*(tensor.to(device) for tensor in given))
        for word in (list(shapes[0]), list(shapes[1]), "(6,) or (6, 1)", "(2, 1, 200)", "(6, 3)", "(2, 3, 2)"):
            assert str(word) in str(error.value)


def test_derivatives_are_refused():
    given = operands("rows", (2, 1, 0), 5, 7)
    bias = torch.randn(2, 5)
    for place, name in enumerate(("a", "b", "scale_a", "scale_b", "bias")):
        tensors = [tensor.clone() for tensor in (*given[:4], bias)]
        tensors[place].requires_grad_()
        with pytest.raises(
            NotImplementedError, match=f"scaled_grouped_matmul has no gradients, and {name} requires grad"
        ):
            multiply(*tensors[:4], given[4], bias=tensors[4])
        with torch.no_grad():
            assert not multiply(*tensors[:4], given[4], bias=tensors[4]).requires_grad
    with pytest.raises(NotImplementedError, match="bias has a tangent"):
        torch.func.jvp(lambda bias: multiply(*given, bias=bias), (bias,), (bias,))
    with pytest.raises(NotImplementedError, match=r"torch\.vmap"):
        torch.vmap(lambda scale: multiply(given[0], given[1], scale, *given[3:]))(given[2].expand(2, 3, 1))


@pytest.mark.parametrize("recipe", RECIPES)
def test_opcheck(recipe):
    """Without torch's test of the schema, which multiplies operands of 8 bits: that they stay is tested below."""
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    given = operands(recipe, (4, 0, 2, 1), 200, 300, layouts=("T", "strided"))
    torch.library.opcheck(OP, (*given, torch.randn(3, 200)), {"out_dtype": torch.float16}, test_utils=tests)


@pytest.mark.parametrize("recipe", ["rows", "vectors", "blocks"])
def test_compiled_and_exported(recipe):
    """One graph for other numbers of rows."""

    def function(a, b, scale_a, scale_b, offs, bias):
        return multiply(a, b, scale_a, scale_b, offs, bias=bias, activation="gelu") * 2

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for sizes in ((4, 2, 0, 1), (9, 0, 3, 0), (200, 100, 2, 5)):
        given = *operands(recipe, sizes, 200, 300), torch.randn(3, 200)
        assert_same_bits(compiled(*given), function(*given))
    assert counter.frame_count == 1
    rows = {0: torch.export.Dim("rows")}
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, *given: function(*given)})()
    program = torch.export.export(module, given, dynamic_shapes={"given": (rows, None, rows, None, None, None)})
    other = *operands(recipe, (1, 0, 4, 0), 200, 300), torch.randn(3, 200)
    assert_same_bits(program.module()(*other), function(*other))


def test_autocast_flops_and_operands():
    given = operands("rows", (4, 0, 2, 1), 200, 300)
    bias = torch.randn(3, 200)
    before = [tensor.clone() for tensor in (*given, bias)]
    expected = multiply(*given, out_dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_bits(multiply(*given, out_dtype=torch.float32), expected)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
        out = multiply(*given, bias=bias)
    assert flops.get_total_flops() == 2 * 7 * 200 * 300
    for tensor, own in zip((*given, bias), before, strict=True):
        assert torch.equal(tensor.float(), own.float()) and not out.is_set_to(tensor)
    assert multiply(*given, out_dtype=None).dtype == OP(*given).dtype == torch.bfloat16


def test_explain():
    for layout, copies in (("NT", None), ("NN", "B"), ("TT", "A")):
        answer = torch_tiledmm.explain(8192, 1408, 2048, "e4m3", layout=layout, groups=64, device="cuda:sm_90")
        own = next(own for own in answer.candidates if own.algorithm == "wgmma_fp8_grouped")
        assert answer.choice == "wgmma_fp8_grouped" and own.order == "fp8_sums" and own.config.get("copies") == copies
    for a_dtype, b_dtype in MIXES:
        answer = torch_tiledmm.explain(100, 77, 65, a_dtype, b_dtype=b_dtype, groups=3, device="cuda:sm_90")
        assert answer.choice == "wgmma_fp8_grouped"
    answer = torch_tiledmm.explain(8192, 1408, 2048, "e4m3", groups=64, device="cpu")
    assert answer.choice == "" and "scaled_grouped_matmul converts a to bf16" in str(answer)
    with pytest.raises(ValueError, match="batch: got 3 with operands of 8 bits, expected 0"):
        torch_tiledmm.explain(6, 9, 9, "e4m3", batch=3)


def test_few_rows_take_small_tiles_on_hopper():
    for rows, block_m in ((1, 64), (1024, 128)):
        answer = torch_tiledmm.explain(64 * rows, 2048, 2048, "e4m3", groups=64, device="cuda:sm_90")
        own = next(own for own in answer.candidates if own.algorithm == "wgmma_fp8_grouped")
        assert int(own.config["block"].split("x")[0]) == block_m


@pytest.fixture
def mode():
    torch_tiledmm.enable()
    yield
    torch_tiledmm.disable()


def test_the_mode(mode):
    """torch's operator has one recipe, and on a CPU no kernel that would be replaced in every version."""
    given = operands("vectors", (5, 0, 20, 7), 48, 64)
    a, b, scale_a, scale_b, offs = given
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_grouped_mm", "CPU"):
        pytest.skip("torch has no _scaled_grouped_mm for a CPU")
    assert_same_bits(torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs=offs), multiply(*given))
    report = torch_tiledmm.report()
    assert {c.operator: c.count for c in report.served} == {"_scaled_grouped_mm": 1}
