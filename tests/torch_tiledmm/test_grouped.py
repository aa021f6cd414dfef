"""Grouped products: values of all forms, bits, what lies beside the groups, derivatives, transforms, refusals.

Planted bugs that these tests caught: a group that begins one row late; the last row of a large group left out; the bias
of the group before; rows behind the last group left as they were; the rows or the columns of a block of C, or its bias,
counted from 0; gradients in the other operand's dtype; a group of k in one chain where a product of its k has chunks,
and a group of rows in one where a product of its rows has them; a group of k in the chunks of all k.
"""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import torch_tiledmm
from torch_tiledmm import gated_grouped_matmul, gated_linear, grouped_matmul, host_gpu, linear, matmul
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import assert_close, expect_linear

OP = torch.ops.tiledmm.grouped_matmul.default
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FORMS = ("rows", "batch", "k", "columns")
# Of each group; the last number is what lies behind the last group.
SIZES = (
    (3, 0, 5, 2),
    (0, 0, 0, 4),
    (0, 1, 0),
    (130, 1, 64, 65, 0),
    (1, 1, 1, 1, 1, 0),
    (0,),
    (5,),
    (7, 0, 0, 33, 0),
)


def ends_of(sizes):
    return torch.tensor(list(itertools.accumulate(sizes[:-1])), dtype=torch.int32)


def random(*shape, dtype, is_strided=False):
    """Of mean size 1, between other elements that are NaN if they are strided."""
    if not is_strided:
        return torch.randn(shape).to(dtype)
    memory = torch.full([2 * size + 1 for size in shape], torch.nan, dtype=dtype)
    view = memory[tuple(slice(1, 1 + 2 * size, 2) for size in shape)]
    return view.copy_(torch.randn(shape))


def operands(form, sizes, m, n, k, dtype, is_strided=False):
    """a, b and offs, and the sizes of what is grouped."""
    groups, total = len(sizes) - 1, sum(sizes)
    shape_a = {"rows": (total, k), "batch": (groups, m, k), "k": (m, total), "columns": (groups, m, k)}[form]
    shape_b = {"rows": (groups, k, n), "batch": (groups, k, n), "k": (total, n), "columns": (k, total)}[form]
    a, b = (random(*shape, dtype=dtype, is_strided=is_strided) for shape in (shape_a, shape_b))
    return a, b, None if form == "batch" else ends_of(sizes)


def products(a, b, offs, out):
    """The operands of each group and its part of out."""
    groups = len(offs) if offs is not None else a.shape[0]
    ends = [0, *offs.tolist()] if offs is not None else [0] * (groups + 1)
    for group in range(groups):
        own = slice(*ends[group : group + 2])
        if offs is None:
            yield a[group], b[group], out[group]
        elif b.dim() == 3:
            yield a[own], b[group], out[own]
        elif a.dim() == 3:
            yield a[group], b[:, own], out[:, own]
        else:
            yield a[:, own], b[own], out[group]


def behind(a, b, offs, out):
    """What of out belongs to no group."""
    end = int(offs[-1]) if offs is not None and len(offs) else 0
    return out[end:] if b.dim() == 3 and a.dim() == 2 else out[:, end:] if a.dim() == 3 and b.dim() == 2 else out[:0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype, form):
    for sizes, (m, n, k), is_strided in itertools.product(SIZES, ((5, 33, 70), (1, 1, 1), (4, 3, 0)), (False, True)):
        a, b, offs = operands(form, sizes, m, n, k, dtype, is_strided)
        bias = None if form == "columns" else random(len(sizes) - 1, n, dtype=dtype, is_strided=is_strided)
        for added, activation in ((None, "none"), (bias, "silu")):
            out = grouped_matmul(a, b, offs=offs, bias=added, activation=activation)
            assert out.is_contiguous()
            for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
                own_bias = None if added is None else added[group]
                assert_close(own_out, expect_linear(own_a, own_b.mT, own_bias, activation))
            assert not behind(a, b, offs, out).any()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_a_row_are_those_of_a_product(dtype, threads):
    """Whatever the group's size and the other groups: large groups are computed by all threads, blocks of others by
    one."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for sizes, n, k in (
            ((600, 1, 0, 210, 40, 9), 515, 1100),
            ((1, 2, 1, 0), 2100, 1601),
            ((2100, 3, 0), 700, 520),
            ((500, 30, 3, 0), 70, 90),  # blocks of rows
        ):
            a, b, offs = operands("rows", sizes, 0, n, k, dtype)
            bias = torch.randn(len(sizes) - 1, n).to(dtype)
            out = grouped_matmul(a, b, offs=offs, bias=bias, activation="gelu")
            for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
                rows = slice(0, 1) if len(own_a) == 1 else slice(len(own_a) - 2, len(own_a))
                expected = linear(own_a[rows], own_b.mT, bias[group], activation="gelu")
                assert_same_bits(own_out[rows], expected)
    finally:
        torch.set_num_threads(former)


def test_bits_of_a_sum_do_not_depend_on_other_groups():
    a, b, offs = operands("k", (700, 3, 0, 1500, 12), 150, 90, 0, torch.float32)
    out = grouped_matmul(a, b, offs=offs)
    for own_a, own_b, own_out in products(a, b, offs, out):
        assert_same_bits(own_out, matmul(own_a, own_b))


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float16)], ids=str)
def test_other_dtypes(dtypes):
    for form in FORMS:
        a, b, offs = operands(form, (9, 0, 30, 3), 6, 40, 50, torch.float64)
        a, b = a.to(dtypes[0]), b.to(dtypes[1])
        for left, right in ((a, b), (a, b.to(dtypes[0]))):
            out = grouped_matmul(left, right, offs=offs, out_dtype=torch.float32)
            for own_a, own_b, own_out in products(left, right, offs, out):
                assert_close(own_out, expect_linear(own_a, own_b.mT, out_dtype=torch.float32))


GPU_KERNELS = {
    "naive": (torch.float32, torch.bfloat16),
    "register_tiled": (torch.float32, torch.bfloat16),
    "register_tiled.4x4": (torch.float32, torch.bfloat16),
    "mma_output_cached": (torch.float16,),
    "mma_async": (torch.float32, torch.float64, torch.bfloat16),
    "simt_pipelined": (torch.float32,),
}


@pytest.mark.parametrize("warp_size", [32, 64])
@pytest.mark.parametrize("algorithm", GPU_KERNELS)
def test_gpu_kernels(algorithm, warp_size):
    """On the host executor: rows and k grouped by each kernel that takes groups."""
    if algorithm in ("mma_async", "simt_pipelined") and warp_size == 64:
        pytest.skip("it is for NVIDIA's chips")
    for form, sizes in itertools.product(("rows", "k"), SIZES[:4] + SIZES[5:]):
        for dtype in GPU_KERNELS[algorithm]:
            a, b, offs = operands(form, sizes, 9, 37, 21, dtype, is_strided=dtype == torch.float32)
            bias = random(len(sizes) - 1, 37, dtype=dtype)
            options = {"bias": bias, "algorithm": algorithm, "warp_size": warp_size, "seed": 3}
            out = host_gpu.grouped_matmul(a, b, offs, **options)
            for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
                assert_close(own_out, expect_linear(own_a, own_b.mT, bias[group]))
            assert not behind(a, b, offs, out).any()


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_bits_of_mma_async(dtype, is_transposed):
    """A row has those of a product of it, in chunks of k, and a sum over a group of k those of a product of that k."""
    k = 1208 if dtype == torch.float64 else 4104
    for form, sizes in (("rows", (70, 0, 1, 64, 5)), ("k", (3, k, 0, 205, 7))):
        a, b, offs = operands(form, sizes, 16, 40, k, dtype)
        if is_transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        bias = random(len(sizes) - 1, 40, dtype=dtype)
        out = host_gpu.grouped_matmul(a, b, offs, algorithm="mma_async", bias=bias, activation="silu")
        for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
            if own_a.shape[0]:
                options = {"algorithm": "mma_async", "bias": bias[group], "activation": "silu"}
                assert_same_bits(own_out, host_gpu.matmul(own_a, own_b, **options)[0])
        if dtype == torch.float16:
            wide = host_gpu.grouped_matmul(a, b, offs, algorithm="mma_async", out_dtype=torch.float32)
            assert_same_bits(wide.half(), host_gpu.grouped_matmul(a, b, offs, algorithm="mma_async"))


@pytest.mark.parametrize("plan", range(2))
def test_every_tile_of_simt_pipelined(plan):
    """Groups of more rows than a tile, and chunks of k. A row has the bits of a product of it, whose tile is another,
    and a sum over a group of k those of a product of that k."""
    options = {"algorithm": f"simt_pipelined:{plan}", "seed": plan}
    for sizes, n, k, is_transposed in (
        ((3, 0, 130, 1, 40, 2), 66, 70, False),
        ((70, 0, 0, 1, 0), 36, 530, True),
        ((1, 0, 65, 0), 9, 1030, True),
        ((20, 16, 2), 40, 1024, False),
    ):
        a, b, offs = operands("rows", sizes, 0, n, k, torch.float32)
        if is_transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        bias = random(len(sizes) - 1, n, dtype=torch.float32)
        out = host_gpu.grouped_matmul(a, b, offs, bias=bias, activation="gelu", **options)
        for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
            assert_close(own_out, expect_linear(own_a, own_b.mT, bias[group], "gelu"))
            own = {"algorithm": "simt_pipelined", "bias": bias[group], "activation": "gelu"}
            for row in {0, len(own_a) - 1} if len(own_a) else ():
                assert_same_bits(own_out[row : row + 1], host_gpu.matmul(own_a[row : row + 1], own_b, **own)[0])
        assert not behind(a, b, offs, out).any()
    for sizes, m, n, is_transposed in (((3, 600, 0, 1, 1030, 9), 66, 21, False), ((515, 511, 0), 9, 66, True)):
        a, b, offs = operands("k", sizes, m, n, 0, torch.float32)
        a = a if is_transposed else a.mT.contiguous().mT
        out = host_gpu.grouped_matmul(a, b, offs, **options)
        for own_a, own_b, own_out in products(a, b, offs, out):
            assert_close(own_out, expect_linear(own_a, own_b.mT))
            assert_same_bits(own_out, host_gpu.matmul(own_a, own_b, algorithm="simt_pipelined")[0])


@pytest.mark.parametrize("algorithm", ["register_tiled", "mma_async:0", "mma_async:1", "simt_pipelined:0"])
def test_many_groups_on_a_gpu(algorithm):
    sizes = torch.randint(0, 3, (1032,), generator=torch.Generator().manual_seed(3)).tolist()
    sizes[517:519] = 130, 70
    a, b, offs = operands("rows", sizes, 0, 9, 8, torch.float32)
    out = host_gpu.grouped_matmul(a, b, offs, algorithm=algorithm)
    for own_a, own_b, own_out in products(a, b, offs, out):
        assert_close(own_out, expect_linear(own_a, own_b.mT))
    assert not behind(a, b, offs, out).any()


@pytest.mark.parametrize("ends", [(5, 2, 7), (-3, 4, 9), (2, 100, 7), (2**31 - 1, -(2**31), 0)])
def test_gpu_kernels_stay_inside_with_bad_offsets(ends):
    """Kernels on a GPU cannot raise. What lies around the operands is NaN, and does not reach the result."""
    offs = torch.tensor(ends, dtype=torch.int32)
    for form, algorithm in itertools.product(("rows", "k"), ("naive", "register_tiled", "mma_async", "simt_pipelined")):
        a, b, _ = operands(form, (3, 3, 3, 0), 4, 6, 5, torch.float32, is_strided=True)
        out = host_gpu.grouped_matmul(a, b, offs, algorithm=algorithm)
        assert torch.isfinite(out[~out.isnan()]).all() and (form == "rows" or out.isfinite().all())


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_derivatives(form, has_bias):
    has_bias = has_bias and form != "columns"
    a, b, offs = operands(form, (2, 0, 3, 1), 2, 3, 4, torch.float64)
    tensors = [a, b] + ([random(3, 3, dtype=torch.float64)] if has_bias else [])
    for tensor in tensors:
        tensor.requires_grad_()

    def function(a, b, bias=None, activation="none"):
        return grouped_matmul(a, b, offs=offs, bias=bias, activation=activation)

    assert gradcheck(function, tensors, check_forward_ad=True)
    assert gradgradcheck(function, tensors)
    assert gradcheck(lambda *given: function(*given, activation="gelu_tanh"), tensors)


def test_gradients_of_16_bits_are_of_their_operands_dtypes():
    a, b, offs = operands("rows", (20, 0, 31, 2), 0, 17, 40, torch.bfloat16)
    a.requires_grad_(), b.requires_grad_()
    out = grouped_matmul(a, b, offs=offs, out_dtype=torch.float32)
    grad = torch.randn(out.shape)
    out.backward(grad)
    assert a.grad.dtype == b.grad.dtype == torch.bfloat16
    assert not a.grad[51:].any()
    mixed = a.detach().requires_grad_(), b.detach().float().requires_grad_()
    of_mixed = torch.autograd.grad(grouped_matmul(*mixed, offs=offs), mixed, grad)
    # Autograd would cast a gradient of another dtype; its elements tell.
    expected = grouped_matmul(mixed[0].detach().mT, grad, offs=offs, out_dtype=torch.float32)
    assert_same_bits(of_mixed[1].contiguous(), expected)
    weights = torch.randn(3, 17, 40, requires_grad=True)  # as nn.Linear stores them: so does their gradient
    (of_weights,) = torch.autograd.grad(grouped_matmul(a.detach(), weights.mT, offs=offs), weights, grad)
    assert of_weights.is_contiguous()
    for group, (own_a, own_grad, _) in enumerate(products(a.detach().mT, grad, offs, torch.empty(3, 1, 1))):
        assert_close(b.grad[group], expect_linear(own_a, own_grad.mT, out_dtype=torch.bfloat16))


def test_gated():
    for dtype, has_bias in itertools.product(DTYPES, (True, False)):
        x, weights, offs = operands("rows", (9, 0, 20, 2), 0, 34, 50, dtype)
        bias = random(3, 34, dtype=dtype) if has_bias else None
        out = gated_grouped_matmul(x, weights, offs=offs, gate_bias=bias, activation="gelu")
        gate, up = weights.chunk(2, -1)
        biases = (None, None) if bias is None else bias.chunk(2, -1)
        again = gated_grouped_matmul(x, gate, up, offs=offs, gate_bias=biases[0], up_bias=biases[1], activation="gelu")
        assert_same_bits(again, out)
        for group, (own_x, own_w, own_out) in enumerate(products(x, weights, offs, out)):
            own_bias = None if bias is None else bias[group]
            assert_same_bits(own_out, gated_linear(own_x, own_w.mT, None, own_bias, activation="gelu"))
        assert not out[29:].any()
    x, weights, offs = operands("rows", (9, 0, 20, 2), 0, 34, 50, torch.float32)
    bias = random(3, 34, dtype=torch.float16)  # of the result's dtype alone
    wide = gated_grouped_matmul(x, weights, offs=offs, gate_bias=bias.float())
    narrow = gated_grouped_matmul(x, weights, offs=offs, gate_bias=bias, out_dtype=torch.float16)
    assert_same_bits(narrow, wide.half())
    x, weights, offs = operands("rows", (2, 0, 3, 1), 0, 4, 3, torch.float64)
    given = [x.requires_grad_(), weights.requires_grad_()]
    assert gradcheck(lambda x, w: gated_grouped_matmul(x, w, offs=offs), given)


def test_gated_refuses_what_gated_linear_refuses():
    x, weights, offs = operands("rows", (9, 0, 20, 2), 0, 34, 50, torch.bfloat16)
    gate, up = weights.chunk(2, -1)
    for needs_grad in (False, True):
        given = x.clone().requires_grad_(needs_grad)
        for options in ({"gate_bias": torch.zeros(3, 34)}, {"out_dtype": torch.float16}):
            with pytest.raises(TypeError, match="dtype"):
                gated_grouped_matmul(given, weights, offs=offs, **options)
        for options in ({"up_bias": torch.zeros(3, 17).bfloat16()}, {"gate_bias": torch.zeros(3, 1).bfloat16()}):
            with pytest.raises(RuntimeError, match=r"accepted is one gate_bias of shape \[3, 34\]"):
                gated_grouped_matmul(given, weights, offs=offs, **options)
        with pytest.raises(RuntimeError, match="gate has shape"):
            gated_grouped_matmul(given.mT[:, :30], gate[0, :30], up[0, :30], offs=offs)
    with pytest.raises(ValueError, match="offs ends group 1 at 1"):
        gated_grouped_matmul(x, weights, offs=torch.tensor([9, 1, 29], dtype=torch.int32))


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form):
    for dtype in (torch.float32, torch.bfloat16):
        a, b, offs = operands(form, (9, 0, 20, 2), 5, 34, 50, dtype)
        bias = None if form == "columns" else random(3, 34, dtype=dtype).requires_grad_()
        torch.library.opcheck(OP, (a.requires_grad_(), b.requires_grad_(), offs, bias), {"activation": "silu"})
        if form in ("rows", "batch"):
            gated = torch.ops.tiledmm.gated_grouped_matmul.default
            torch.library.opcheck(gated, (a, b, b.detach().clone(), offs, bias, bias))


def test_compiled():
    """One graph for other offsets and other numbers of rows."""

    def experts(x, weights, offs):
        return gated_grouped_matmul(x, weights, offs=offs).sum()

    torch._dynamo.reset()
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True, dynamic=True)
    counter = torch._dynamo.testing.CompileCounter()
    counted = torch.compile(experts, backend=counter, fullgraph=True, dynamic=True)
    for sizes in ((9, 0, 20, 2), (1, 40, 3, 0), (0, 7, 9, 5)):
        x, weights, offs = operands("rows", sizes, 0, 34, 50, torch.float32)
        given = [x.requires_grad_(), weights.requires_grad_()]
        expected, actual = experts(*given, offs), compiled(*given, offs)
        for own, other in zip(torch.autograd.grad(actual, given), torch.autograd.grad(expected, given), strict=True):
            assert_same_bits(own, other)
        counted(x.detach(), weights.detach(), offs)
    assert counter.frame_count == 1


def test_autocast_and_flops():
    a, b, offs = operands("rows", (9, 0, 20, 2), 0, 34, 50, torch.float32)
    for function, needs_grad in itertools.product((grouped_matmul, gated_grouped_matmul), (False, True)):
        weights = b.clone().requires_grad_(needs_grad)
        expected = function(a.bfloat16(), weights.bfloat16(), offs=offs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_same_bits(function(a, weights, offs=offs), expected)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
        grouped_matmul(a, b, offs=offs)
    assert flops.get_total_flops() == 2 * 31 * 34 * 50


def test_operands_are_left_alone():
    a, b, offs = operands("rows", (9, 0, 20, 2), 0, 34, 50, torch.float32)
    before = copy.deepcopy((a, b, offs))
    grouped_matmul(a, b, offs=torch.stack([offs, offs], 1)[:, 0])
    assert all(torch.equal(own, other) for own, other in zip((a, b, offs), before, strict=True))


X, W, OFFS = torch.zeros(6, 4), torch.zeros(2, 4, 5), torch.tensor([2, 6], dtype=torch.int32)
REFUSED = {
    "a of one dimension": (RuntimeError, "a has 1 dimensions", (X[0], W), {"offs": OFFS}),
    "k that differ": (RuntimeError, "do not fit", (X[:, :3], W), {"offs": OFFS}),
    "no offs": (RuntimeError, "offs is None", (X, W), {}),
    "offs of a batch": (RuntimeError, "offs is given", (X.expand(2, 6, 4), W), {"offs": OFFS}),
    "offs in int64": (TypeError, "offs has dtype Long", (X, W), {"offs": OFFS.long()}),
    "offs of two dimensions": (RuntimeError, "offs has 2 dimensions", (X, W), {"offs": OFFS[None]}),
    "offs for another number": (RuntimeError, "offs has 1 elements for 2 groups", (X, W), {"offs": OFFS[:1]}),
    "batches that differ": (RuntimeError, "first dimensions", (X.expand(3, 6, 4), W), {}),
    "offs elsewhere": (RuntimeError, "offs is on meta", (X, W), {"offs": OFFS.to("meta")}),
    "ends that decrease": (ValueError, "ends group 1 at 1", (X, W), {"offs": OFFS.flip(0) - 1}),
    "an end outside": (ValueError, "to 6", (X, W), {"offs": OFFS + 1}),
    "an end below 0": (ValueError, "ends group 0 at -1", (X, W), {"offs": OFFS - 3}),
    "dtypes": (TypeError, "both must have one dtype", (X.half(), W.bfloat16()), {"offs": OFFS}),
    "bias": (RuntimeError, "bias has shape", (X, W), {"offs": OFFS, "bias": torch.zeros(5)}),
    "bias of columns": (
        RuntimeError,
        "none where the columns",
        (W.mT, torch.zeros(4, 6)),
        {"offs": OFFS, "bias": torch.zeros(2, 6)},
    ),
    "activation": (ValueError, "activation 'selu'", (X, W), {"offs": OFFS, "activation": "selu"}),
    "algorithm": (ValueError, "algorithm 'fast'", (X, W), {"offs": OFFS, "algorithm": "fast"}),
    "a kernel of GPUs": (NotImplementedError, "only GPUs", (X, W), {"offs": OFFS, "algorithm": "mma"}),
    "it, for no rows": (NotImplementedError, "only GPUs", (X[:0], W), {"offs": OFFS * 0, "algorithm": "mma"}),
    "a sparse a": (NotImplementedError, "a has layout", (X.to_sparse(), W), {"offs": OFFS}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    error, message, given, options = REFUSED[name]
    with pytest.raises(error, match=message):
        grouped_matmul(*given, **options)


def test_vmap_is_refused():
    with pytest.raises(NotImplementedError, match="torch.vmap"):
        torch.vmap(lambda x: grouped_matmul(x, W, offs=OFFS))(X.expand(3, 6, 4))


@pytest.mark.parametrize("algorithm", ["naive", "block_tiled", "register_tiled", "native"])
def test_algorithms(algorithm):
    a, b, offs = operands("rows", (9, 0, 20, 2), 0, 34, 50, torch.float32)
    out = grouped_matmul(a, b, offs=offs, algorithm=algorithm, checks_offs=True)
    for own_a, own_b, own_out in products(a, b, offs, out):
        assert_same_bits(own_out, matmul(own_a, own_b, algorithm=algorithm))


def test_as_torch_has_it():
    a, b, offs = operands("rows", (16, 0, 24, 0), 0, 32, 48, torch.bfloat16)
    expected = F.grouped_mm(a, b, offs=offs)
    torch.testing.assert_close(grouped_matmul(a, b, offs=offs), expected, rtol=2**-7, atol=2**-7)
    assert torch_tiledmm.grouped_matmul is grouped_matmul
