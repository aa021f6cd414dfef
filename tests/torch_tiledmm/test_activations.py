"""The operators activate, activate_backward and ordered_sum: values in every dtype; bits depend on values alone.

Planted bugs that these tests caught: the last element of a task left out, the slope of relu times an infinite gradient,
a NaN lost by a slope, the sum stored after the activation instead of before it.
"""

import itertools

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch.func import grad, jvp

import torch_tiledmm
from torch_tiledmm import TiledLinear, linear
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.reference import EXACT_ACTIVATIONS

OPS = torch.ops.tiledmm
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
OTHERS = {
    "logistic": torch.sigmoid,
    "normal_density": lambda x: torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5,
}
# The largest errors, in units of the accumulator's roundoff: of a slope, and of what a slope's own derivatives are made
# of. In fp64 the errors of torch's slopes, which are the reference, count as well: 1 - s is multiplied by the argument.
SLOPE_UNITS, OTHER_UNITS = 4, 4
SHORT_UNITS = 2**8  # a GPU's formulas for 16 bits
REFERENCE_UNITS = {torch.float64: 124}
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


@pytest.fixture(autouse=True, params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    """Where tensors are made unless a test says so; the number of threads is as before at the end."""
    count = torch.get_num_threads()
    torch.manual_seed(0)
    with torch.device(request.param):
        yield request.param
    torch.set_num_threads(count)


def slope_of(activation, x):
    x = x.double().requires_grad_()
    (slope,) = torch.autograd.grad(EXACT_ACTIVATIONS[activation](x).sum(), x)
    return slope


def arguments(dtype):
    """Dense where the functions bend, and of every size; a number that no vector's length divides."""
    fine = torch.linspace(-16, 16, 20011, dtype=torch.float64)
    coarse = torch.logspace(-38, 4, 301, dtype=torch.float64)
    return torch.cat([fine, coarse, -coarse]).to(dtype)


def unit(dtype):
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2


def rounding(exact, dtype):
    """Of the result, and what a processor may flush of it."""
    return torch.finfo(dtype).eps / 2 * exact.abs() + torch.finfo(dtype).tiny


@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_slopes(activation, dtype):
    x = arguments(dtype)
    grad = torch.randn_like(x)
    exact = grad.double() * slope_of(activation, x)
    error = (OPS.activate_backward(grad, x, activation).double() - exact).abs()
    units = 1 if activation == "relu" else SLOPE_UNITS + REFERENCE_UNITS.get(dtype, 0)
    if x.is_cuda and dtype.itemsize == 2:
        units = SHORT_UNITS
    assert (error <= units * unit(dtype) * grad.double().abs() + rounding(exact, dtype)).all()


@dtypes
@pytest.mark.parametrize("name", OTHERS)
def test_what_second_derivatives_are_made_of(name, dtype):
    x = arguments(dtype)
    exact = OTHERS[name](x.double())
    error = (OPS.activate(x, name).double() - exact).abs()
    assert (error <= OTHER_UNITS * unit(dtype) * exact.abs().clamp(max=1) + rounding(exact, dtype)).all()


@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_limits(activation, dtype):
    """An infinite argument has the limit, where torch's gelu and silu have NaN; a NaN goes on."""
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0], dtype=dtype)
    slopes = OPS.activate_backward(torch.full_like(x, 3), x, activation)
    assert slopes[:2].tolist() == [3, 0]
    assert slopes[3] == (0 if activation == "relu" else 1.5)
    assert slopes[2] == 3 if activation == "relu" else slopes[2].isnan()
    infinite = OPS.activate_backward(torch.full_like(x, float("inf")), x, "relu")
    assert infinite.tolist() == [float("inf"), 0, float("inf"), 0]  # as in torch


@dtypes
@pytest.mark.parametrize("name", [*ACTIVATIONS, *OTHERS])
def test_an_element_has_the_same_bits_in_any_place(name, dtype):
    """Of a tensor of several tasks, in pieces of every length up to two vectors, on 1 to 3 threads."""
    x = torch.randn(3 * 2**14 + 77, dtype=dtype)
    functions = [lambda x: OPS.activate(x, name)]
    if name in ACTIVATIONS:
        functions.append(lambda x: OPS.activate_backward(x + 1, x, name))
    for function in functions:
        torch.set_num_threads(1)
        whole = function(x)
        assert not whole.isnan().any()
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(function(x), whole)
        for length, start in itertools.product(range(1, 34), (0, 5, 2**14 - 3)):
            assert torch.equal(function(x[start : start + length]), whole[start : start + length])


def test_strided_operands():
    x, grad = torch.randn(40, 30).mT[::2], torch.randn(1, 40).expand(15, 40)
    for activation in ACTIVATIONS:
        own = OPS.activate_backward(grad, x, activation)
        assert torch.equal(own, OPS.activate_backward(grad.contiguous(), x.contiguous(), activation))
        assert torch.equal(OPS.activate(x, activation), OPS.activate(x.contiguous(), activation))


def test_bad_arguments():
    x = torch.randn(3, 4)
    for call, error, words in (
        (lambda: OPS.activate(x, "tanh"), ValueError, "'tanh' is not known; accepted are relu"),
        (lambda: OPS.activate(x.int(), "relu"), TypeError, "dtype Int"),
        (lambda: OPS.activate_backward(x, x, "logistic"), ValueError, "'logistic' has no backward"),
        (lambda: OPS.activate_backward(x, x.double(), "relu"), TypeError, "both must have one dtype"),
        (lambda: OPS.activate_backward(x, x[:2], "relu"), RuntimeError, "both must have one shape"),
        (lambda: OPS.linear_and_sum(x, x, activation="none"), ValueError, "'none'; accepted are relu"),
        (lambda: OPS.ordered_sum(x, [2]), IndexError, "accepted are different ones from 0 on"),
        (lambda: OPS.ordered_sum(x, [0, 0]), IndexError, "accepted are different ones from 0 on"),
    ):
        for requires_grad in (False, x.is_floating_point()):
            x.requires_grad_(requires_grad)
            with pytest.raises(error, match=words):
                call()
        x.requires_grad_(False)


@dtypes
@pytest.mark.parametrize(
    "shape, dims", [((301, 5), [0]), ((4, 3, 70), [0, 2]), ((7, 6), [1]), ((0, 3), [0]), ((5,), [0])]
)
def test_ordered_sum(shape, dims, dtype):
    a = torch.randn(*shape, dtype=dtype)
    exact = a.double().sum(dims, keepdim=True)
    length = a.numel() // max(exact.numel(), 1)
    bound = (length + 2) * unit(dtype) * a.double().abs().sum(dims, keepdim=True) + rounding(exact, dtype)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        own = OPS.ordered_sum(a, dims)
        assert own.shape == exact.shape and ((own.double() - exact).abs() <= bound).all()
        assert torch.equal(own, OPS.ordered_sum(a, dims))


# ---- What surrounds a product, as users have it


def call_with_gradients(layer, x, grad):
    """The result, the input's gradient, and those of the parameters."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], grad)


def make_layer(dtype, bias, activation, n=51, k=37):
    return TiledLinear(k, n, bias=bias, dtype=dtype, activation=activation)


@dtypes
@pytest.mark.parametrize("bias", (True, False), ids=("bias", "no_bias"))
@pytest.mark.parametrize("activation", ("none", *ACTIVATIONS))
def test_a_row_has_the_same_bits_in_any_batch(activation, bias, dtype):
    """Result and input's gradient for every m up to 70, places, 1 to 5 threads; those of training are inference's."""
    layer = make_layer(dtype, bias, activation)
    x, grad = torch.randn(1301, 37, dtype=dtype), torch.randn(1301, 51, dtype=dtype)
    torch.set_num_threads(1)
    y, x_grad, *of_parameters = call_with_gradients(layer, x, grad)
    is_rounded_first = x.is_cuda and dtype.itemsize == 2 and activation not in ("none", "relu")
    with torch.no_grad():
        inference = layer(x)
    # The sum is rounded to 8 or 11 bits before an activation whose slope is at most 1.13.
    close = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(inference, y, **(close if is_rounded_first else {"rtol": 0, "atol": 0}))
    alone = call_with_gradients(layer, x[7:8], grad[7:8])
    for threads in range(1, 6):
        torch.set_num_threads(threads)
        again = call_with_gradients(layer, x, grad)
        for own, before in zip(again, (y, x_grad, *of_parameters), strict=True):
            assert torch.equal(own, before), f"{threads} threads"
        for own, before in zip(call_with_gradients(layer, x[7:8], grad[7:8]), alone, strict=True):
            assert torch.equal(own, before), f"{threads} threads, one row"
        for m in range(threads, 71, 5):  # each m with one number of threads
            start = (m * 17) % (1301 - m)
            part = slice(start, start + m)
            own_y, own_x_grad, *_ = call_with_gradients(layer, x[part], grad[part])
            assert torch.equal(own_y, y[part]) and torch.equal(own_x_grad, x_grad[part]), f"{m} rows from {start}"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_compiled_and_vmapped_rows_have_the_same_bits(activation):
    layer = make_layer(torch.float32, True, activation)
    x, grad = torch.randn(2003, 37), torch.randn(2003, 51)
    y, x_grad, *_ = call_with_gradients(layer, x, grad)
    compiled = torch.compile(layer, dynamic=True, fullgraph=True)
    for rows in (slice(0, 2003), slice(5, 75), slice(7, 9)):
        x_part = x[rows].clone().requires_grad_()
        own = compiled(x_part)
        own.backward(grad[rows])
        assert torch.equal(own, y[rows]) and torch.equal(x_part.grad, x_grad[rows])

    def of_a_row(x, grad):
        result, pull = torch.func.vjp(layer, x)
        return result, *pull(grad)

    own, own_grad = torch.vmap(of_a_row)(x[:301], grad[:301])
    assert torch.equal(own, y[:301]) and torch.equal(own_grad, x_grad[:301])
    weights = torch.stack([layer.weight.detach(), -layer.weight.detach()])
    mapped = torch.vmap(lambda w: linear(x, w, layer.bias.detach(), activation=activation))(weights)
    # There the bias is added to the rounded product: the same in fp32.
    assert torch.equal(mapped[0], y)


def test_threads_do_not_change_the_gradient_of_what_is_broadcast():
    """A bias of one element, a batch of one, an operand of one element; beside a tangent, and of a tangent."""
    x, w, one = torch.randn(120000, 8), torch.randn(3, 8), torch.randn(1)
    a, b = torch.randn(120000, 1, 3), torch.randn(3, 1)
    cases = [
        (lambda bias: linear(x, w, bias, activation="gelu"), one),
        (lambda bias: linear(x, w[0], bias), one),
        (lambda bias: linear(x[:, :1], w[:1, :1], bias), torch.randn(1)),
        (lambda right: torch_tiledmm.matmul(a, right[None]), b),
        (lambda left: torch_tiledmm.matmul(left, a.mT), torch.randn(1, 1, 3)),
    ]
    for function, operand in cases:
        grads = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            own = operand.clone().requires_grad_()
            function(own).square().sum().backward()
            with fw.dual_level():
                beside = fw.unpack_dual(function(fw.make_dual(own, own.detach()))).primal
                beside = torch.autograd.grad(beside.square().sum(), own)[0]
            of_tangent = grad(lambda t: jvp(function, (operand,), (t,))[1].square().sum())(operand)  # noqa: B023
            grads.append([own.grad, beside, of_tangent])
        for of_two, of_three, of_one in zip(grads[1], grads[2], grads[0], strict=True):
            assert torch.equal(of_one, of_two) and torch.equal(of_one, of_three)


@pytest.mark.parametrize("algorithm", [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available])
def test_result_and_sum_in_one_pass_are_those_of_two(algorithm):
    """Of every kernel of the CPU, with tiles cut off, roles exchanged, k in several chunks; `split` needs a large n."""
    dtypes_of = {entry.name: entry.dtypes for entry in torch_tiledmm.algorithms("cpu")}[algorithm]
    shapes = [(70, 51, 37), (300, 3, 40), (3, 300, 41), (1, 1, 5), (5, 40, 2100), (9, 7, 0)]
    with torch.device("cpu"):
        for (m, n, k), dtype, activation in itertools.product(shapes, dtypes_of, ACTIVATIONS):
            x, weight, bias = (torch.randn(*size, dtype=DTYPES[dtype]) for size in ((m, k), (n, k), (n,)))
            own, own_sum = OPS.linear_and_sum(x, weight, bias, activation=activation, algorithm=algorithm)
            assert torch.equal(own, linear(x, weight, bias, activation=activation, algorithm=algorithm))
            assert torch.equal(own_sum, linear(x, weight, bias, algorithm=algorithm))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_third_derivatives_are_those_of_torch(activation):
    """Of a function of squared gradients; relu's second derivative is zeros, as torch's, and not missing."""
    with torch.device("cpu"):
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(2, 3, dtype=torch.float64)

    def derivatives(function):
        y, found = function(x).sum(), []
        for _ in range(2 if activation == "relu" else 3):
            (grad,) = torch.autograd.grad(y, x, create_graph=True)
            found.append(grad.detach())
            y = (grad**2).sum()
        return found

    own = derivatives(lambda x: linear(x, weight, activation=activation))
    exact = derivatives(lambda x: EXACT_ACTIVATIONS[activation](x @ weight.mT))
    for found, expected in zip(own, exact, strict=True):
        torch.testing.assert_close(found, expected)


@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_second_derivatives_of_large_arguments_are_zero(activation, dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([1e3, -1e3, largest, -largest, float("inf"), -float("inf")], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(OPS.activate(x, activation).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert (curvature == 0).all()
