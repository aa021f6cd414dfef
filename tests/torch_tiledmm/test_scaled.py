"""Scaled products of operands of 8 bits: values of all recipes, bits, what is refused, transforms, the mode.

Planted bugs that these tests caught: blocks of 127 elements of k; b's scales left out; the scale of a's first 128 rows
for all; the bias after the activation; a result rounded before the bias or the activation. With 8 bits on one side:
the first column's scale for all of a vector; NaN of e4m3 taken for 480; the last element of k left out, or one of a
packet taken twice; denormal numbers of e4m3 wrong, or flushed where the processor flushes those of fp32; a lost sign;
one half of a packet for both; a C of sums that are not scaled.
"""

import collections
import itertools
import random

import pytest
import torch
import torch._dynamo.testing

import torch_tiledmm
from torch_tiledmm import host_gpu, matmul, scaled_matmul
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_scaled

OP = torch.ops.tiledmm.scaled_matmul.default
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MIXES = tuple(itertools.product((E4M3, E5M2), repeat=2))
SIZES = ((1, 1, 1), (5, 33, 70), (130, 140, 300), (3, 2, 0), (0, 4, 9), (17, 257, 128), (2, 1, 129), (129, 3, 257))
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def blocks(size):
    return -(-size // 128)


# The shapes of scale_a and scale_b.
RECIPES = {
    "tensor": lambda m, n, k: ((), (1, 1)),
    "rows": lambda m, n, k: ((m, 1), (1, n)),
    "vectors": lambda m, n, k: ((m,), (n,)),
    "tensor and rows": lambda m, n, k: ((1,), (1, n)),
    "rows and tensor": lambda m, n, k: ((m,), (1, 1, 1)),
    "1x128 and 128x128": lambda m, n, k: ((m, blocks(k)), (blocks(k), blocks(n))),
    "1x128 and 1x128": lambda m, n, k: ((m, blocks(k)), (blocks(k), n)),
    "128x128 and 1x128": lambda m, n, k: ((blocks(m), blocks(k)), (blocks(k), n)),
    "128x128 and 128x128": lambda m, n, k: ((blocks(m), blocks(k)), (blocks(k), blocks(n))),
}
LAYOUTS = ("N", "T", "strided")


def laid_out(tensor, layout):
    """The same elements row by row, column by column, or among others that are NaN."""
    if layout == "T" and tensor.dim() >= 2:
        return tensor.mT.contiguous().mT
    if layout == "strided" and tensor.dim() > 0:
        memory = torch.full([2 * size + 1 for size in tensor.shape], torch.nan, device=tensor.device).to(tensor.dtype)
        memory[tuple(slice(1, 1 + 2 * size, 2) for size in tensor.shape)] = tensor
        return memory[tuple(slice(1, 1 + 2 * size, 2) for size in tensor.shape)]
    return tensor.contiguous()


def random_scale(shape, layout="N"):
    return laid_out(torch.exp2(6 * torch.rand(shape) - 3), layout)


def operands(recipe, m, n, k, mix=(E4M3, E4M3), layouts=("N", "T"), layout_of_scales="N"):
    """a, b and their scales. Sums are of mean size 1; scales are far apart."""
    a, b = (
        laid_out(torch.randn(shape).to(dtype), layout)
        for shape, dtype, layout in zip(((m, k), (k, n)), mix, layouts, strict=True)
    )
    scale_a, scale_b = (random_scale(shape, layout_of_scales) for shape in RECIPES[recipe](m, n, k))
    return a, b, scale_a * max(k, 1) ** -0.5, scale_b


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_values(recipe, mix):
    epilogues = itertools.cycle(itertools.product(OUT_DTYPES, ACTIVATIONS, (None, *OUT_DTYPES)))
    number = itertools.count(list(RECIPES).index(recipe) + 17 * MIXES.index(mix))
    for (m, n, k), layouts in itertools.product(SIZES, itertools.product(LAYOUTS, repeat=2)):
        out_dtype, activation, of_bias = next(epilogues)
        given = operands(recipe, m, n, k, mix, layouts, LAYOUTS[next(number) % 3])
        bias = None if of_bias is None else laid_out(torch.randn(n).to(of_bias), layouts[0])
        options = {"bias": bias, "activation": activation, "out_dtype": out_dtype}
        out = scaled_matmul(*given, **options)
        assert out.is_contiguous()
        assert_close(out, expect_scaled(*given, **options))


@pytest.mark.parametrize("recipe", ["rows", "1x128 and 128x128"])
def test_rounded_once(recipe):
    """Whatever the bias's dtype: what is rounded at the end is the result in fp32."""
    given = operands(recipe, 33, 65, 200)
    for of_bias, activation in itertools.product(OUT_DTYPES, ACTIVATIONS):
        bias = torch.randn(65).to(of_bias)
        wide = scaled_matmul(*given, bias=bias, activation=activation, out_dtype=torch.float32)
        for out_dtype in OUT_DTYPES:
            out = scaled_matmul(*given, bias=bias, activation=activation, out_dtype=out_dtype)
            assert_same_bits(out, wide.to(out_dtype))
    assert scaled_matmul(*given, out_dtype=None).dtype == OP(*given).dtype == torch.bfloat16


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_every_value_of_8_bits(mix):
    """Exact products of all finite values with each other, infinities and NaN where torch has them."""
    bytes_ = torch.arange(256, dtype=torch.uint8)
    a, b = bytes_[:, None].view(mix[0]), bytes_[None].view(mix[1])
    one = torch.ones(())
    expected = 0 + a.double() * b.double()  # a sum has no negative zero
    assert_same_bits(scaled_matmul(a, b, one, one, out_dtype=torch.float32), expected.float())
    assert_same_bits(scaled_matmul(a, b, one, one), expected.bfloat16())
    halves = torch.full((1, 1), 0.5), torch.full((1, 256), 2.0)
    assert_same_bits(scaled_matmul(a, b, *halves, out_dtype=torch.float32), expected.float())


@pytest.mark.parametrize("recipe", ["rows", "1x128 and 128x128"])
def test_results_beyond_the_dtype(recipe):
    a, b = torch.full((2, 256), 448.0).to(E4M3), torch.full((256, 3), 448.0).to(E4M3)
    a[1, 3] = torch.nan
    given = a, b, *(torch.ones(shape) for shape in RECIPES[recipe](2, 3, 256))
    for out_dtype in OUT_DTYPES:
        out = scaled_matmul(*given, out_dtype=out_dtype)
        assert out[1].isnan().all() and out[0].isinf().all() == (out_dtype == torch.float16)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("recipe", ["tensor", "vectors", "1x128 and 128x128", "1x128 and 1x128"])
def test_bits_of_a_row(recipe, threads):
    n, k = 77, 391
    a, b, scale_a, scale_b = operands(recipe, 70, n, k, (E5M2, E4M3))
    bias = torch.randn(n)
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for activation, out_dtype in (("silu", torch.bfloat16), ("gelu_tanh", torch.float32)):
            options = {"bias": bias, "activation": activation, "out_dtype": out_dtype}
            whole = scaled_matmul(a, b, scale_a, scale_b, **options)
            for m in range(1, 71):
                rows = slice(m // 3, m // 3 + m) if m // 3 + m <= 70 else slice(0, m)
                own = scale_a[rows] if scale_a.numel() > 1 else scale_a
                assert_same_bits(scaled_matmul(a[rows], b, own, scale_b, **options), whole[rows])
    finally:
        torch.set_num_threads(former)


def test_layouts_and_zero_strides_change_no_bits():
    for recipe in RECIPES:
        given = operands(recipe, 33, 140, 300)
        expected = scaled_matmul(*given)
        for layouts in itertools.product(LAYOUTS, repeat=4):
            laid = [laid_out(tensor, layout) for tensor, layout in zip(given, layouts, strict=True)]
            assert_same_bits(scaled_matmul(*laid), expected)
    a, b = torch.randn(1, 300).to(E4M3).expand(5, 300), torch.randn(300, 1).to(E4M3).expand(300, 7)
    for scales in ((random_scale(()), random_scale(())), (random_scale((1, 3)).expand(5, 3), random_scale((3, 1)))):
        assert_same_bits(scaled_matmul(a, b, *scales), scaled_matmul(a.contiguous(), b.contiguous(), *scales))


def test_shapes_of_two_meanings():
    """k of one block: beside scales of rows these are of rows, beside those of blocks of blocks, to like values."""
    a, b, scale_a, scale_b = operands("rows", 33, 140, 100)
    of_blocks = random_scale((1, 2))
    for own in (scale_a, scale_a[:, 0], random_scale(()), random_scale((1, 1))):
        for other in (scale_b, scale_b[0], random_scale((1,)), of_blocks):
            assert_close(scaled_matmul(a, b, own, other), expect_scaled(a, b, own, other))


@pytest.mark.parametrize("recipe", RECIPES)
def test_algorithms(recipe):
    given = operands(recipe, 33, 140, 300)
    expected = expect_scaled(*given, out_dtype=torch.float32)
    for algorithm in ("naive", "block_tiled", "register_tiled", "native"):
        assert_close(scaled_matmul(*given, out_dtype=torch.float32, algorithm=algorithm), expected)
    with torch_tiledmm.use_algorithm("naive"):
        named = scaled_matmul(*given)
    assert_same_bits(named, scaled_matmul(*given, algorithm="naive"))
    with pytest.raises(NotImplementedError, match="only GPUs"):
        scaled_matmul(*given, algorithm="wgmma")


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_sums_by_rows_are_those_of_bf16(mix):
    """So that a promise for bf16 holds for 8 bits, too, whether a kernel widens b or reads it widened."""
    for m, n, k in ((33, 140, 300), (1, 1, 1), (2, 3, 0), (40, 1100, 1030)):
        a, b, scale_a, scale_b = operands("rows", m, n, k, mix)
        sums = matmul(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
        for own in (b, b.mT.contiguous().mT):
            assert_same_bits(
                scaled_matmul(a, own, scale_a, scale_b, out_dtype=torch.float32), sums * (scale_a * scale_b)
            )


A, B, S = torch.zeros(6, 300).to(E4M3), torch.zeros(300, 200).to(E5M2), torch.ones(())
REFUSED = {
    "a in 16 bits": (TypeError, "a has dtype Half; accepted are torch.float8_e4m3fn", (A.half(), B, S, S), {}),
    "b in 32 bits": (TypeError, "b has dtype Float; accepted", (A, B.float(), S, S), {}),
    "another kind of 8 bits": (TypeError, "a has dtype Float8_e4m3fnuz", (A.to(torch.float8_e4m3fnuz), B, S, S), {}),
    "a scale in 16 bits": (TypeError, "scale_a has dtype BFloat16; accepted is torch", (A, B, S.bfloat16(), S), {}),
    "a result of 8 bits": (TypeError, "cannot have dtype Float8_e4m3fn; acc", (A, B, S, S), {"out_dtype": E4M3}),
    "a result of 64 bits": (TypeError, "cannot have dtype Double", (A, B, S, S), {"out_dtype": torch.float64}),
    "a bias of 64 bits": (TypeError, "bias has dtype Double", (A, B, S, S), {"bias": torch.zeros(200).double()}),
    "a batch": (RuntimeError, "a has 3 dimensions", (A[None], B, S, S), {}),
    "a vector": (RuntimeError, "b has 1; accepted are 2", (A, B[:, 0], S, S), {}),
    "k that differ": (RuntimeError, "do not fit", (A, B[:9], S, S), {}),
    "a bias of another size": (RuntimeError, r"bias has shape \[6\]; .* \(200,\)", (A, B, S, S), {"bias": S.expand(6)}),
    "a bias of two dimensions": (RuntimeError, "bias has shape", (A, B, S, S), {"bias": torch.zeros(1, 200)}),
    "scales elsewhere": (RuntimeError, "scale_b is on meta and a on cpu", (A, B, S, S.to("meta")), {}),
    "an activation": (ValueError, "activation 'selu'", (A, B, S, S), {"activation": "selu"}),
    "an algorithm": (ValueError, "algorithm 'fast'", (A, B, S, S), {"algorithm": "fast"}),
    "a kernel of GPUs, for no rows": (NotImplementedError, "only GPUs", (A[:0], B, S, S), {"algorithm": "mma"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    error, message, given, options = REFUSED[name]
    with pytest.raises(error, match=message):
        scaled_matmul(*given, **options)
    if (
        error is not NotImplementedError and "elsewhere" not in name
    ):  # meta tensors have the same checks, but no kernels
        given, options = ([value.to("meta") if isinstance(value, torch.Tensor) else value for value in own]
                          for own in (given, options.values()))  # fmt: skip
        with pytest.raises(error, match=message):
            scaled_matmul(*given, **dict(zip(REFUSED[name][3], options, strict=True)))


@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), ()),
        ((6, 2), (3, 200)),
        ((6, 1), (3, 2)),  # rows beside blocks
        ((), (3, 2)),
        ((6, 3), (1, 200)),
        ((1, 6), (1, 200)),
        ((6, 1), (200, 1)),
        ((3, 6), (3, 200)),
        ((2, 3), (3, 200)),
        ((6, 3), (3, 3)),
        ((1, 6, 3), (3, 200)),
        ((0,), ()),
    ],
)
def test_scales_of_other_shapes(shapes):
    given = A, B, torch.ones(shapes[0]), torch.ones(shapes[1])
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError) as error:
            scaled_matmul(*(tensor.to(device) for tensor in given))
        for word in (list(shapes[0]), list(shapes[1]), "accepted are one element, (6,) or (6, 1)", "(1, 3)", "(3, 2)"):
            assert str(word) in str(error.value)


def test_derivatives_are_refused():
    given = operands("rows", 3, 5, 7)
    bias = torch.randn(5)
    for place, name in enumerate(("a", "b", "scale_a", "scale_b", "bias")):
        tensors = [tensor.clone() for tensor in (*given, bias)]
        tensors[place].requires_grad_()
        with pytest.raises(NotImplementedError, match=f"no gradients, and {name} requires grad; accepted"):
            scaled_matmul(*tensors[:4], bias=tensors[4])
        with torch.no_grad():
            assert not scaled_matmul(*tensors[:4], bias=tensors[4]).requires_grad
    with pytest.raises(NotImplementedError, match="bias has a tangent"):
        torch.func.jvp(lambda bias: scaled_matmul(*given, bias=bias), (bias,), (bias,))
    with pytest.raises(NotImplementedError, match=r"torch\.vmap"):
        torch.vmap(lambda scale: scaled_matmul(given[0], given[1], scale, given[3]))(given[2].expand(2, 3, 1))


@pytest.mark.parametrize("recipe", RECIPES)
def test_opcheck(recipe):
    """Without torch's test of the schema, which multiplies operands of 8 bits: that they stay is tested below."""
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for m, n, k in ((6, 200, 300), (1, 5, 60)):
        given = operands(recipe, m, n, k, layouts=("T", "strided"))
        options = {"activation": "silu", "out_dtype": torch.float16}
        torch.library.opcheck(OP, (*given, torch.randn(n)), options, test_utils=tests)


@pytest.mark.parametrize("recipe", ["rows", "tensor and rows", "1x128 and 128x128", "1x128 and 1x128"])
def test_compiled_and_exported(recipe):
    """One graph for other numbers of rows."""

    def function(a, b, scale_a, scale_b, bias):
        return scaled_matmul(a, b, scale_a, scale_b, bias=bias, activation="gelu") * 2

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for m in (6, 9, 300):
        given = *operands(recipe, m, 200, 300), torch.randn(200)
        assert_same_bits(compiled(*given), function(*given))
    assert counter.frame_count == 1
    rows = {0: torch.export.Dim("rows")}
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, *given: function(*given)})()
    dims = (rows, None, rows if given[2].numel() > 1 else None, None, None)
    program = torch.export.export(module, given, dynamic_shapes={"given": dims})
    other = *operands(recipe, 5, 200, 300), torch.randn(200)
    assert_same_bits(program.module()(*other), function(*other))


def test_autocast_flops_and_operands():
    given = operands("rows", 6, 200, 300)
    bias = torch.randn(200)
    before = [tensor.clone() for tensor in (*given, bias)]
    expected = scaled_matmul(*given, out_dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_bits(scaled_matmul(*given, out_dtype=torch.float32), expected)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
        out = scaled_matmul(*given, bias=bias)
    assert flops.get_total_flops() == 2 * 6 * 200 * 300
    for tensor, own in zip((*given, bias), before, strict=True):
        assert torch.equal(tensor.float(), own.float()) and not out.is_set_to(tensor)


def of_hopper(*problem, **options):
    answer = torch_tiledmm.explain(*problem, device="cuda:sm_90", **options)
    return answer, next(own for own in answer.candidates if own.algorithm == "wgmma_fp8")


@pytest.mark.parametrize(
    ("k", "layout", "copies"),
    [(2048, "NT", None), (2048, "NN", "B"), (2048, "TT", "A"), (2048, "TN", "A B"), (2040, "NT", "A B")],
)
def test_explain_says_what_hopper_copies_first(k, layout, copies):
    """What does not lie along k, or has rows that are not 16 bytes apart or a multiple of them."""
    for a_dtype, b_dtype in itertools.product(("e4m3", "e5m2"), repeat=2):
        answer, own = of_hopper(512, 1024, k, a_dtype, b_dtype=b_dtype, layout=layout)
        assert answer.choice == "wgmma_fp8" and own.config.get("copies") == copies
        assert copies is None or f"copies={copies.split()[0]}" in str(answer)


def test_hopper_s_order_of_summation_does_not_depend_on_m():
    for n, k, layout in ((7168, 2048, "NT"), (77, 391, "NN"), (64, 100000, "TT"), (1, 1, "NT")):
        for m in (1, 2, 8, 64, 65, 128, 300, 4096, 70000):
            answer, own = of_hopper(m, n, k, "e4m3", layout=layout)
            assert answer.choice == "wgmma_fp8" and own.order == "fp8_sums", (m, n, k)
            assert {own.config[name] for name in ("split_k", "chunks")} == {1} and own.config["block_k"] == 128


def test_explain_and_info():
    for dtype, b_dtype in (("e4m3", None), (E5M2, "e4m3")):
        explained = torch_tiledmm.explain(64, 4096, 4096, dtype, b_dtype=b_dtype, device="cpu")
        assert explained.problem["out_dtype"] == "bf16" and explained.choice == ""
        assert "converts a to bf16, and a b of e5m2" in str(explained)
        assert all(not candidate.legal and candidate.reason for candidate in explained.candidates)
    explained = torch_tiledmm.explain(64, 4096, 4096, "fp16", b_dtype="e5m2", out_dtype="bf16")
    assert explained.choice == "" and "converted to A's dtype first" in str(explained)
    assert torch_tiledmm.explain(6, 9, 9, E4M3, out_dtype="fp32").problem["out_dtype"] == "fp32"
    for options in ({"dtype": "e4m3", "b_dtype": "bf16"}, {"dtype": "fp64", "b_dtype": "e4m3"},
                    {"dtype": "e4m3", "out_dtype": "fp64"}):  # fmt: skip
        with pytest.raises(TypeError, match="accepted are"):
            torch_tiledmm.explain(6, 9, 9, **options)
    with pytest.raises(ValueError, match="out_dtype|expected one of"):
        torch_tiledmm.explain(6, 9, 9, "e4m3", out_dtype="e4m3")
    for entry in torch_tiledmm.algorithms("cpu"):
        assert not {"e4m3", "e5m2"} & set(entry.dtypes)


@pytest.fixture
def mode():
    torch_tiledmm.enable()
    yield
    torch_tiledmm.disable()


def counts():
    report = torch_tiledmm.report()
    served = collections.Counter()
    for c in report.served:  # by several kernels
        served[c.operator] += c.count
    return served, {c.by for c in report.left}


def test_the_mode(mode):
    for (recipe, mix), out_dtype in itertools.product((("tensor", MIXES[0]), ("rows", MIXES[1])), OUT_DTYPES):
        given = operands(recipe, 33, 141, 300, mix)
        for bias in (None, torch.randn(141).to(out_dtype)):
            expected = scaled_matmul(*given, bias=bias, out_dtype=out_dtype)
            options = {"bias": bias, "out_dtype": out_dtype, "use_fast_accum": bias is None}
            assert_same_bits(torch._scaled_mm(*given, **options), expected)
            for out in (torch.empty(33, 141), torch.full((141, 33), torch.nan).mT):
                out = out.to(out_dtype)
                assert torch._scaled_mm(*given, **options, out=out) is out
                assert_same_bits(out, expected)
    served, left = counts()
    assert (served["_scaled_mm"], served["_scaled_mm.out"], left) == (12, 24, set())


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="this torch has no scaled_mm")
def test_the_mode_serves_recipes(mode):
    """torch's own shapes of scales: those of 1 x 128 of b lie like b's columns, those of 128 x 128 with k first."""
    m, n, k = 33, 140, 300
    names = torch.nn.functional.ScalingType
    of_k, padded = blocks(k), torch.nn.functional.pad
    kinds = {
        "tensor": (names.TensorWise, names.TensorWise),
        "rows": (names.RowWise, names.RowWise),
        "1x128 and 128x128": (names.BlockWise1x128, names.BlockWise128x128),
        "1x128 and 1x128": (names.BlockWise1x128, names.BlockWise1x128),
        "128x128 and 1x128": (names.BlockWise128x128, names.BlockWise1x128),
    }
    for (recipe, (kind_a, kind_b)), out_dtype in itertools.product(kinds.items(), OUT_DTYPES):
        a, b, scale_a, scale_b = operands(recipe, m, n, k, (E4M3, E5M2))
        bias = torch.randn(n).to(out_dtype)
        expected = scaled_matmul(a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype)
        if "128" in recipe:
            assert_same_bits(torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=out_dtype), expected)
        own_a = padded(scale_a.T, (0, 0, 0, -of_k % 4)) if kind_a == names.BlockWise128x128 else scale_a
        own_b = scale_b.T if kind_b == names.BlockWise1x128 else scale_b
        own_b = padded(scale_b, (0, 0, 0, -of_k % 4)) if kind_b == names.BlockWise128x128 else own_b
        given = a, b, own_a, kind_a, own_b, kind_b
        out = torch.nn.functional.scaled_mm(*given, bias=bias, output_dtype=out_dtype)
        assert_same_bits(out, expected)
    rows = operands("rows", m, n, k)
    for unfit in (
        (*given[:4], own_b.T.contiguous(), names.BlockWise1x128),
        (*rows[:3], names.TensorWise, rows[3], names.TensorWise),
    ):
        with pytest.raises((RuntimeError, ValueError)) as error:
            torch.nn.functional.scaled_mm(*unfit)
        assert "tiledmm" not in str(error.value)
    served, left = counts()
    assert (served["_scaled_mm_v2"], served["_scaled_mm"], left) == (15, 9, {"operands that do not fit"})


def test_what_the_mode_leaves_to_torch(mode):
    a, b, scale_a, scale_b = operands("tensor", 32, 48, 64)
    scale_b = scale_b.reshape(())
    given = a, b, scale_a, scale_b
    torch_tiledmm.disable()
    expected = torch._scaled_mm(*given), torch._scaled_mm(*given, scale_result=torch.tensor(0.5), out_dtype=E4M3)
    torch_tiledmm.enable()
    assert_same_bits(torch._scaled_mm(*given).float(), expected[0].float())
    scaled = torch._scaled_mm(*given, scale_result=torch.tensor(0.5), out_dtype=E4M3)
    assert_same_bits(scaled.float(), expected[1].float())
    for own, other in ((torch.ones(32), torch.ones(48)), (torch.ones(32, 1), torch.ones(()))):
        with pytest.raises((RuntimeError, ValueError)) as error:
            torch._scaled_mm(a, b, own, other, out_dtype=torch.bfloat16)
        assert "tiledmm" not in str(error.value)
    served, left = counts()
    assert "_scaled_mm" not in served and left == {
        "a result of another dtype",
        "scales other than by tensor, row and block",
    }


def test_host_gpu_has_no_kernel_that_would_take_8_bits():
    with pytest.raises(TypeError, match="expected one of fp32"):
        host_gpu.matmul(A, B, algorithm="naive")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("of", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_widened_elements_are_exact(of, dtype):
    numbers = torch.arange(256, dtype=torch.uint8)
    for bits in (numbers, numbers.reshape(16, 16).T, numbers.repeat(3).reshape(32, 24)[1:, 2:21], numbers[:0]):
        x = bits.contiguous().view(of) if bits.is_contiguous() else torch.empty_like(bits).copy_(bits).view(of)
        wide = torch.ops.tiledmm._widen_float8(x, dtype)
        assert wide.dtype == dtype and wide.shape == x.shape
        torch.testing.assert_close(wide, x.to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.library.opcheck(torch.ops.tiledmm._widen_float8.default, (x, dtype), test_utils="test_faketensor")


# ---- 8 bits on one side: _weight_only

WEIGHT_ONLY = torch.ops.tiledmm._weight_only.default
WIDE = (torch.float32, torch.float16, torch.bfloat16)


def widened_product(x, q, scale, bias=None, *, out_dtype=torch.float32, activation="none", algorithm="auto"):
    """By the weight in the dtype of x, which holds it exactly; then scales, bias, activation and one rounding."""
    wide = torch.ops.tiledmm._widen_float8(q, x.dtype)
    sums = matmul(x, wide.mT, algorithm=algorithm, out_dtype=torch.float32) * scale.mT
    if bias is not None:
        sums += bias.to(out_dtype)
    if activation != "none":
        sums = torch.ops.tiledmm.activate(sums, activation)
    return sums.to(out_dtype)


def assert_same_product(out, *given, **options):
    """Denormal numbers of bf16 count as zeros, as does the least normal one, to which a denormal sum may be rounded:
    AVX-512's conversion makes denormals zeros.
    """
    expected = widened_product(*given, **options)
    if out.dtype == torch.bfloat16:
        out, expected = (torch.where(own.abs() <= 2.0**-126, own * 0, own) for own in (out, expected))
    assert_same_bits(out, expected, tuple(out.shape), options)


def weight_operands(m, n, k, dtype, layout="N"):
    """x, a weight among others in memory, and its scales, whose sums are of mean size 1."""
    memory = torch.randn(n + 2, k + 5) if layout == "N" else torch.randn(k + 5, n + 2).mT
    q = memory.to(E4M3)[1 : 1 + n, 3 : 3 + k]
    return torch.randn(m, k).to(dtype), q, random_scale((n, 1)) * max(k, 1) ** -0.5


def algorithms_beside(dtype):
    """Where AMX multiplies fp16, a B of 8 bits beside it is multiplied by vector instructions."""
    names = [own.name for own in torch_tiledmm.algorithms("cpu") if own.available]
    names = [name for name in names if name.startswith("register_tiled")]
    return names if dtype == torch.float16 else ["auto", *names]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("k", [0, 1, 15, 127, 128, 131, 1000])
def test_weight_only_bits(k, dtype):
    epilogues = itertools.cycle(itertools.product(OUT_DTYPES, ACTIVATIONS, (False, True)))
    for m, (n, layout) in itertools.product((0, 1, 2, 3, 7, 16, 17, 33), ((1, "N"), (77, "N"), (45, "T"))):
        given = weight_operands(m, n, k, dtype, layout)
        for algorithm, (out_dtype, activation, has_bias) in zip(algorithms_beside(dtype), epilogues, strict=False):
            if algorithm.endswith("portable"):
                activation = "relu"  # others round otherwise without fused multiply-adds
            bias = torch.randn(2 * n)[::2].to(out_dtype) if has_bias else None
            options = {"out_dtype": out_dtype, "activation": activation, "algorithm": algorithm}
            out = WEIGHT_ONLY(*given, bias, **options)
            assert out.is_contiguous() and out.dtype == out_dtype
            assert_same_product(out, *given, bias, **options)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_weight_only_bits_of_a_row(dtype):
    """Whatever the number of rows, and of threads: chunks of k side by side, columns of one set of a cache."""
    for n, k in ((77, 391), (24, 5001), (40, 4096)):
        x, q, scale = weight_operands(70, n, k, dtype)
        given = q, scale, torch.randn(n).bfloat16()
        options = {"out_dtype": torch.bfloat16, "activation": "silu"}
        whole = WEIGHT_ONLY(x, *given, **options)
        for algorithm in algorithms_beside(dtype):
            own = {"out_dtype": torch.bfloat16, "algorithm": algorithm}
            assert_same_product(WEIGHT_ONLY(x, *given, **own), x, *given, **own)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 64, 69):
                assert_same_bits(WEIGHT_ONLY(x[m // 3 : m // 3 + m], *given, **options), whole[m // 3 : m // 3 + m])


@pytest.mark.parametrize("flushes", [False, True], ids=["", "flush denormal"])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_weight_only_has_every_number(dtype, flushes):
    """One of each in a row of zeros, at every place of a packet; NaN stays NaN, in its column alone."""
    k = 300
    numbers = torch.arange(256, dtype=torch.uint8)
    places = torch.arange(256) * 7 % k
    expected, of_e5m2 = numbers.view(E4M3).float(), numbers.view(E5M2).float()
    torch.set_num_threads(1)
    torch.set_flush_denormal(flushes)
    try:
        for place in (0, 1, 150):
            bits = torch.zeros(256, k, dtype=torch.uint8)
            bits[torch.arange(256), (places + place) % k] = numbers
            for q in (bits.view(E4M3), bits.mT.contiguous().view(E4M3).mT):
                for m in (1, 2, 5, 17, 40):
                    out = WEIGHT_ONLY(
                        torch.ones(m, k, dtype=dtype), q, torch.ones(256, 1), None, out_dtype=torch.float32
                    )
                    assert_same_bits(out, (0 + expected).expand(m, 256).contiguous(), m)  # a sum has no negative zero
        for of, values in ((E4M3, expected), (E5M2, of_e5m2)):
            assert_same_bits(torch.ops.tiledmm._widen_float8(numbers.view(of), dtype), values.to(dtype))
    finally:
        torch.set_flush_denormal(False)


def test_weight_only_with_scales_of_any_strides_and_values():
    x, q, _ = weight_operands(5, 77, 200, torch.bfloat16)
    scales = torch.randn(77, 3)
    scales[3, 1], scales[9, 1], scales[70, 1] = torch.inf, torch.nan, 0
    for scale in (scales[:, 1:2], scales[:, :1].contiguous(), scales[:1, :1].expand(77, 1)):
        out = WEIGHT_ONLY(x, q, scale, None, out_dtype=torch.float32)
        assert_same_bits(out, widened_product(x, q, scale))
    x[2, 0] = torch.inf
    x[3, 5] = torch.nan
    assert_same_bits(WEIGHT_ONLY(x, q, scale, None, out_dtype=torch.float32), widened_product(x, q, scale))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("isa", ["portable", "neon", "avx2", "avx512", "avx512_bf16", "amx", "amx_fp16"])
def test_weight_only_takes_one_order_for_any_number_of_rows(isa, dtype):
    for n, k in ((4096, 4096), (11008, 4096), (1, 1), (77, 391)):
        answers = [
            torch_tiledmm.explain(m, n, k, dtype, b_dtype="e4m3", device=f"cpu:{isa}")
            for m in (1, 2, 8, 9, 16, 64, 300, 4096)
        ]
        assert len({answer.order for answer in answers}) == 1
        expected = "amx" if isa.startswith("amx") and dtype == "bf16" else "register_tiled"
        assert answers[0].choice.split(".")[0] == expected


CHUNKED = ((128, 128), (128, 160))  # tiles of wgmma_fp8_b that are wide and sum chunks


def test_weight_only_plans_on_hopper():
    """Of any sizes: tiles hold what a plan gives them, blocks have all of k, and the cheapest plan is taken."""
    rng, kernel = random.Random(54), {"b_dtype": "e4m3", "device": "cuda:sm_90"}
    for _ in range(150):
        m, n, k = (rng.choice((1, 2, 7, 16, 100, 256, 1000, 4096, 7168, 16400, 65536)) for _ in range(3))
        explained = torch_tiledmm.explain(m, n, k, "bf16", **kernel)
        own = next(own for own in explained.candidates if own.algorithm == "wgmma_fp8_b")
        assert own.legal == ((m == 1 or k % 8 == 0) and (n == 1 or k % 16 == 0)), (m, n, k)
        if not own.legal:
            continue
        plans = torch_tiledmm.explain(m, n, k, "bf16", plans_of="wgmma_fp8_b", **kernel).candidates
        assert own.cost_us == min(plan.cost_us for plan in plans) and explained.choice in ("wgmma_fp8_b", "skinny")
        for plan in plans:
            block, rows = (tuple(map(int, plan.config[name].split("x"))) for name in ("block", "rows"))
            assert 0 < rows[0] <= block[0] and 0 < rows[1] <= block[1], (m, n, k, plan)
            assert -(-m // rows[1]) == -(-m // block[1])  # as few tiles of A's rows as can be
            assert plan.config["split_k"] in (1, plan.config["chunks"])
            # What sums one chunk after the other has the registers for a total.
            assert plan.config["split_k"] == plan.config["chunks"] or block in CHUNKED or block[1] <= 64
        splits = {(plan.config["split_k"] > 1, plan.config.get("sums_added_by")) for plan in plans}
        assert (own.config["chunks"] == 1) == (splits == {(False, None)}), (m, n, k, splits)
    refused = torch_tiledmm.explain(64, 64, 64, "fp16", **kernel, layout="NN")
    assert any("lie along k" in own.reason for own in refused.candidates if own.algorithm == "wgmma_fp8_b")
