"""Derivatives in every mode, against finite differences and against torch's own operators.

Planted bugs that these tests caught: the tangent of the second operand dropped, saved operands exchanged, the bias
gradient summed over one dimension only, the batch of a broadcast operand not reduced, an operand saved that no
gradient needs, a reference held from the graph to its own result, the form of the gradient of b taken from a b that
was not saved, the tangent of the bias given away as that of the result.
"""

import gc
import weakref

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiledmm
from torch_tiledmm import linear, matmul
from torch_tiledmm.testing.reference import assert_close, expect_matmul

# Those that take fp64, the dtype of these tests.
ALGORITHMS = [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available and "fp64" in entry.dtypes]
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
PATTERNS = [
    ((4, 5), (5, 3)),
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((2, 4, 5), (5, 3)),
    ((2, 4, 5), (5,)),
    ((4, 5), (2, 5, 3)),
    ((5,), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)),
    ((2, 4, 0), (0, 3)),
]


def leaf(*sizes, transposed=False):
    tensor = torch.randn(*sizes[:-2], *sizes[-2:][::-1], dtype=torch.float64).mT if transposed else None
    if tensor is None:
        tensor = torch.randn(*sizes, dtype=torch.float64)
    return tensor.detach().requires_grad_()


def check_all(function, inputs):
    gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    gradgradcheck(function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("a_shape, b_shape", PATTERNS, ids=str)
def test_matmul_patterns(a_shape, b_shape):
    check_all(matmul, (leaf(*a_shape), leaf(*b_shape)))


@pytest.mark.parametrize("b_shape", [(1, 5, 3), (2, 5, 3)], ids=str)
@pytest.mark.parametrize("needs", [(True, False), (False, True)], ids=["a", "b"])
def test_one_of_two_batches_needs_a_gradient(needs, b_shape):
    """Where b is not saved, nothing of it tells backward whether the whole batch shares one b."""
    a, b = leaf(b_shape[0], 4, 5).requires_grad_(needs[0]), leaf(*b_shape).requires_grad_(needs[1])
    gradcheck(matmul, (a, b), check_forward_ad=True)
    function, operand = ((lambda a: matmul(a, b)), a) if needs[0] else ((lambda b: matmul(a, b)), b)
    torch.func.vjp(function, operand)[1](torch.ones(b_shape[0], 4, 3, dtype=torch.float64))


def test_the_gradient_of_one_operand_for_a_batch_is_one_product():
    """No gradient for each item of the batch, though the items' rows do not follow each other in memory."""
    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            largest = max([largest, *(tensor.numel() for tensor in torch.utils._pytree.tree_leaves(out))])
            return out

    a, b = leaf(3, 64, 5).detach().transpose(0, 1).requires_grad_(), leaf(5, 7)
    expected = torch.autograd.grad(torch.matmul(a, b).sin().sum(), (a, b))
    with Largest():
        out = matmul(a, b)
        grads = torch.autograd.grad(out.sin().sum(), (a, b))
    assert largest == out.numel() < 64 * b.numel()
    torch.testing.assert_close(grads, expected)
    check_all(matmul, (leaf(3, 2, 5).detach().transpose(0, 1).requires_grad_(), b))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_matmul_algorithms_and_layouts(algorithm, layout):
    a, b = leaf(4, 5, transposed=layout[0] == "T"), leaf(5, 3, transposed=layout[1] == "T")
    check_all(lambda a, b: matmul(a, b, algorithm=algorithm), (a, b))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)], ids=str)
def test_linear(shape, activation):
    def call(x, weight, bias=None):
        return linear(x, weight, bias, activation=activation)

    check_all(call, (leaf(*shape), leaf(3, 5), leaf(3)))
    gradcheck(call, (leaf(*shape), leaf(3, 5)), check_forward_ad=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_linear_algorithms(algorithm):
    check_all(lambda x, w, b: linear(x, w, b, algorithm=algorithm), (leaf(4, 5), leaf(3, 5), leaf(3)))


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)], ids=str)
def test_linear_with_a_vector_as_weight(shape):
    check_all(linear, (leaf(*shape), leaf(5)))
    check_all(lambda *args: linear(*args, activation="silu"), (leaf(*shape), leaf(5), leaf(1)))


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4)], ids=str)
def test_the_tangent_of_the_result_is_memory_of_its_own(shape):
    """Also where it is the bias's tangent, row for row."""
    x, weight, bias, tangent = torch.randn(shape), torch.randn(2, 4), torch.randn(2), torch.zeros(2)
    with fw.dual_level():
        out = linear(x, weight, fw.make_dual(bias, tangent))
        out.add_(fw.make_dual(torch.ones_like(out), torch.ones_like(out)))
        assert fw.unpack_dual(out).tangent.eq(1).all() and tangent.eq(0).all()


# ---- Transforms, each against torch's own operator

FUNCTIONS = {
    "matmul": (matmul, torch.matmul, lambda: (leaf(4, 5).detach(), leaf(5, 3).detach())),
    "batched": (matmul, torch.matmul, lambda: (leaf(2, 4, 5).detach(), leaf(5, 3).detach())),
    "linear": (linear, F.linear, lambda: (leaf(4, 5).detach(), leaf(3, 5).detach(), leaf(3).detach())),
    "silu": (
        lambda *args: linear(*args, activation="silu"),
        lambda *args: F.silu(F.linear(*args)),
        lambda: (leaf(4, 5).detach(), leaf(3, 5).detach(), leaf(3).detach()),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, args: torch.func.grad(lambda *a: f(*a).sin().sum(), argnums=(0, 1))(*args),
        lambda f, args: torch.func.jacrev(f, argnums=(0, 1))(*args),
        lambda f, args: torch.func.jacfwd(f, argnums=(0, 1))(*args),
        lambda f, args: torch.func.hessian(lambda *a: f(*a).sin().sum(), argnums=(0, 1))(*args),
        lambda f, args: torch.func.jvp(f, args, tuple(torch.cos(a) for a in args)),
        lambda f, args: torch.func.jvp(lambda a: f(a, *args[1:]), args[:1], (torch.cos(args[0]),)),
        lambda f, args: torch.func.vjp(f, *args)[1](torch.cos(f(*args))),
        lambda f, args: torch.func.vmap(torch.func.grad(lambda x: f(x, *args[1:]).sin().sum()))(
            torch.stack([args[0], args[0] * 2])
        ),
        lambda f, args: torch.func.jvp(
            torch.func.grad(lambda *a: f(*a).sin().sum()), args, tuple(torch.cos(a) for a in args)
        ),
    ],
    ids=["grad", "jacrev", "jacfwd", "hessian", "jvp", "jvp_of_one", "vjp", "vmap_grad", "forward_over_reverse"],
)
def test_transform(name, transform):
    ours, theirs, make = FUNCTIONS[name]
    args = make()
    torch.testing.assert_close(transform(ours, args), transform(theirs, args))


# ---- What backward does, and only that


class Record(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("needs, products", [((True, True), 2), ((True, False), 1), ((False, True), 1)])
def test_only_needed_products_are_computed_without_a_copy(needs, products):
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4, requires_grad=True)
    x.requires_grad_(needs[0])
    weight.requires_grad_(needs[1])
    out = linear(x, weight, bias)
    with Record() as record:
        out.backward(torch.randn(2, 3, 4))
    names = ("tiledmm.matmul.default", "tiledmm.linear_weight_grads.default")
    assert sum(record.names.count(name) for name in names) == products
    assert record.names.count(names[1]) == needs[1]  # weight and bias in one pass
    assert not [name for name in record.names if "clone" in name or "copy" in name or "contiguous" in name]
    assert [x.grad is not None, weight.grad is not None] == list(needs)


@pytest.mark.parametrize("needs, saved", [((True, True), 2), ((True, False), 1), ((False, True), 1)])
def test_only_what_backward_needs_is_saved(needs, saved):
    operands = [leaf(4, 5).requires_grad_(needs[0]), leaf(3, 5).requires_grad_(needs[1])]
    for call in (lambda: linear(*operands), lambda: matmul(operands[0], operands[1].mT)):
        kept = []

        def keep(tensor, kept=kept):
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            call()
        assert len(kept) == saved


def test_a_graph_is_freed_with_its_result():
    a, b = leaf(4, 5), leaf(5, 3)

    gc.disable()
    try:
        for product in (matmul, lambda a, b: torch.func.vjp(matmul, a, b)[0]):
            left, right = a * 1, b * 1
            out = product(left, right)
            references = [weakref.ref(tensor) for tensor in (left, right, out)]
            del left, right, out
            assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


def test_many_steps_need_no_more_memory_than_few():
    def resident_pages() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    x, weight = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
    bias = torch.randn(64, requires_grad=True)

    def steps(count):
        for _ in range(count):
            linear(x, weight, bias, activation="silu").sum().backward()
            torch.func.grad(lambda weight: linear(x, weight).sum())(weight.detach())

    steps(100)
    before = resident_pages()
    steps(1000)  # a leaked result of 8 KiB a step would be 2000 pages
    assert resident_pages() - before < 1000


def test_an_undefined_gradient_ends_there():
    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return None

    a, weight, bias = leaf(4, 5), leaf(3, 5), leaf(3)
    with Record() as record:
        NoGradient.apply(linear(a, weight, bias)).sum().backward()
        NoGradient.apply(matmul(a, weight.mT)).sum().backward()
    assert record.names.count("tiledmm.matmul.default") == 1  # the forward product
    assert all(tensor.grad is None or not tensor.grad.any() for tensor in (a, weight, bias))


def test_partial_gradient_computes_one_product():
    a, b = leaf(4, 5), leaf(5, 3)
    out = matmul(a, b).sum()
    with Record() as record:
        torch.autograd.grad(out, a)
    assert record.names.count("tiledmm.matmul.default") == 1


@pytest.mark.parametrize("shape", [(7, 5, 3), (0, 5, 3), (7, 0, 3), (7, 5, 0)], ids=str)
def test_weight_and_bias_gradient_in_one_pass(shape):
    rows, out_features, in_features = shape
    grad, input = torch.randn(rows, 2 * out_features)[:, ::2], torch.randn(in_features, rows).mT
    weight_grad, bias_grad = torch.ops.tiledmm.linear_weight_grads(grad, input)
    assert_close(weight_grad, expect_matmul(grad.mT, input))
    torch.testing.assert_close(bias_grad, grad.sum(0))
    with pytest.raises(RuntimeError, match=r"grad has shape \[5\].*rows, out_features"):
        torch.ops.tiledmm.linear_weight_grads(torch.ones(5), torch.ones(5, 2))


def test_what_has_no_derivative_says_so():
    x, weight = leaf(4, 5), leaf(3, 5)
    for name, call in {
        "linear_and_sum": lambda: torch.ops.tiledmm.linear_and_sum(x, weight, activation="silu"),
        "linear_weight_grads": lambda: torch.ops.tiledmm.linear_weight_grads(x, x),
        "gated_linear_and_sums": lambda: torch.ops.tiledmm.gated_linear_and_sums(x, weight, weight),
    }.items():
        with pytest.raises(RuntimeError, match=f"derivative for tiledmm::{name} is not implemented"):
            call()[1].sum().backward()


def test_backward_keeps_the_algorithm():
    a, b = leaf(4, 5), leaf(5, 3)
    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "tiledmm" in str(function):
                seen.append((kwargs or {}).get("algorithm"))
            return function(*args, **(kwargs or {}))

    with Spy():
        matmul(a, b, algorithm="naive").sum().backward()
    assert seen == ["naive"] * 3


@pytest.mark.parametrize("algorithm", ["auto", "naive"])
def test_compiled_autograd_traces_the_backward_of_an_eager_forward(algorithm):
    a, b, x, weight, bias = leaf(4, 5), leaf(5, 3), leaf(2, 4, 3), leaf(6, 3), leaf(6)
    product = x + matmul(a, b, algorithm=algorithm)
    loss = linear(product, weight, bias, activation="gelu", algorithm=algorithm).sin().sum()
    inputs = (a, b, x, weight, bias)
    expected = torch.autograd.grad(loss, inputs, retain_graph=True)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    for tensor, grad in zip(inputs, expected, strict=True):
        torch.testing.assert_close(tensor.grad, grad)


def test_inference_mode_and_no_grad():
    a, b = leaf(4, 5), leaf(5, 3)
    with torch.inference_mode():
        assert matmul(a, b).is_inference()
    with torch.no_grad():
        assert not matmul(a, b).requires_grad
    assert matmul(a, b).requires_grad
