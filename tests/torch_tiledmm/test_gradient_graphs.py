"""The graph behind a result: hooks, what it saves and when, operands that change or are one tensor, checkpoints,
autocast, inference tensors, threads. For both kinds of graph: of a Function, and of a Node of our own.

Planted bugs that these tests caught: an operand saved that no gradient needs, operands kept beside the saved ones
(unseen by hooks and by the check for changes in place), saved operands that outlive backward, an undefined gradient
computed with, or taken as zeros.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from test_gradient_values import FEW, backward, check, compare, expected_gradients, few, leaves
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from torch_tiledmm import linear, matmul


@pytest.fixture(params=["Function", "Node"])
def graph(request):
    """graph(way) -> the way, with results that have a tangent, too, where a Node is asked for."""
    if request.param == "Function":
        yield lambda way: way
    else:

        def with_tangent(function):
            return lambda first, *others: function(fw.make_dual(first, first.detach().clone()), *others)

        with fw.dual_level():
            yield lambda way: lambda function, *args: way(with_tangent(function), *args)


def hooks_that_return_none(function, operands, needs, grad):
    own, seen = leaves(operands, needs), []
    out = function(*own)
    needed = list(itertools.compress(own, needs))
    out.register_hook(lambda grad: seen.append("result"))
    out.grad_fn.register_prehook(lambda grads: seen.append("before"))
    out.grad_fn.register_hook(lambda grads, outer: seen.append("after"))
    torch.autograd.graph.register_multi_grad_hook(needed, lambda grads: seen.append("all"))
    for tensor in needed:
        tensor.register_hook(lambda grad: seen.append("operand"))
    out.backward(grad)
    assert sorted(seen) == sorted(["result", "before", "after", "all"] + ["operand"] * len(needed))
    return [tensor.grad for tensor in needed]


def hooks_that_double(function, operands, needs, grad):
    own = leaves(operands, needs)
    out = function(*own)

    def doubled(grads, outer=None):
        return tuple(None if grad is None else 2 * grad for grad in grads)

    out.register_hook(lambda grad: 2 * grad)
    out.grad_fn.register_prehook(doubled)
    out.grad_fn.register_hook(doubled)
    needed = list(itertools.compress(own, needs))
    for tensor in needed:
        tensor.register_hook(lambda grad: 2 * grad)
    return [grad / 16 for grad in torch.autograd.grad(out, needed, grad)]


def undefined(function, operands, needs, grad):
    """No gradient where the result has none; then one after all."""
    own = leaves(operands, needs)
    out = function(*own)
    needed = list(itertools.compress(own, needs))
    hook = out.grad_fn.register_prehook(lambda grads: (None,))
    none = torch.autograd.grad(out, needed, grad, retain_graph=True, allow_unused=True)
    assert all(own is None for own in none)
    zeros = torch.autograd.grad(out, needed, grad, retain_graph=True, materialize_grads=True)
    assert all(own.shape == zero.shape and not zero.any() for own, zero in zip(needed, zeros, strict=True))
    hook.remove()
    return torch.autograd.grad(out, needed, grad)


def in_inference_mode(*args):
    return backward(*args, around=torch.inference_mode)


def of_an_inference_tensor(function, operands, needs, grad):
    with torch.inference_mode():
        grad = grad.clone()
    return backward(function, operands, needs, grad)


def retained(function, operands, needs, grad):
    """The last gradient that is to be had of one graph."""
    own = leaves(operands, needs)
    out = function(*own)
    needed = list(itertools.compress(own, needs))
    torch.autograd.grad(out, needed, grad, retain_graph=True)
    grads = torch.autograd.grad(out, needed, grad.clone().requires_grad_(), create_graph=True)
    assert all(own.requires_grad for own in grads)
    grads = torch.autograd.grad(out, needed, grad)
    if any(needs[:2]):  # the gradient of a bias needs nothing that could have been freed
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out, needed, grad)
    return grads


def without_gradient(function, operands, needs, grad):
    """A graph made where gradients are on again, beside a result without one."""
    own = leaves(operands, needs)
    with torch.no_grad():
        assert not function(*own).requires_grad
        with torch.enable_grad():
            out = function(*own)
    return torch.autograd.grad(out, list(itertools.compress(own, needs)), grad)


def offloaded(function, *args):
    with torch.autograd.graph.save_on_cpu(pin_memory=False):
        return backward(function, *args)


GRAPH_WAYS = (
    hooks_that_return_none,
    hooks_that_double,
    undefined,
    retained,
    without_gradient,
    offloaded,
    in_inference_mode,
    of_an_inference_tensor,
)


@pytest.mark.parametrize("way", GRAPH_WAYS, ids=lambda way: way.__name__)
@few
def test_values_in_a_graph(way, case, graph):
    for needs in case.subsets():
        check(graph(way), case, needs)


@pytest.mark.parametrize("use_reentrant", [True, False])
@few
def test_checkpoint(use_reentrant, case):
    def way(function, *args):
        return backward(lambda *own: checkpoint(function, *own, use_reentrant=use_reentrant), *args)

    for needs in case.subsets():
        check(way, case, needs)


@pytest.mark.parametrize("case", FEW[:6], ids=str)
def test_saved_in_half_precision(case, graph):
    """What is packed is what the products of backward get; of the operands nothing else is saved."""
    for needs in case.subsets():
        packed = []

        def pack(tensor, packed=packed):
            packed.append(tensor.data_ptr())
            return tensor.half()

        operands = case.operands(torch.float32)
        grad = torch.randn_like(case.call(*operands))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda half: half.float()):
            grads = graph(backward)(case.call, operands, needs, grad)
        compare(grads, expected_gradients(case, [own.half().float() for own in operands], grad), needs, case)
        assert len({own.data_ptr() for own in operands} & set(packed)) == sum(needs[:2])


@pytest.mark.parametrize("case", FEW[:6], ids=str)
def test_a_changed_operand(case, graph):
    """An error where the gradient of another operand needs it, else none."""
    for needs, changed in itertools.product(case.subsets(), range(len(case.shapes))):
        is_saved = changed < 2 and needs[1 - changed]

        def change(function, operands, needs, grad, changed=changed):
            own = [tensor * 1 for tensor in leaves(operands, needs)]
            out = function(*own)
            with torch.no_grad():
                own[changed].add_(1)
            return torch.autograd.grad(out, list(itertools.compress(own, needs)), grad)

        with pytest.raises(RuntimeError, match="modified by an inplace") if is_saved else nullcontext():
            check(graph(change), case, needs)


@few
def test_autocast(case):
    """The gradient of a product of bf16, in the dtype of the operand."""
    for needs in case.subsets():
        own = leaves(case.operands(torch.float32), needs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = case.call(*own)
        grad = torch.randn_like(out)
        out.backward(grad)
        grads = [tensor.grad for tensor in itertools.compress(own, needs)]
        assert all(torch.equal(own, own.bfloat16().float()) for own in grads)
        expected = expected_gradients(case, [tensor.detach().bfloat16() for tensor in own], grad)
        compare([own.bfloat16() for own in grads], expected, needs, case)


@pytest.mark.parametrize(
    "function, shape",
    [
        (lambda a: matmul(a, a), (3, 3)),
        (lambda a: matmul(a, a), (4,)),
        (lambda a: matmul(a, a), (2, 3, 3)),
        (lambda a: matmul(a, a.mT), (3, 4)),
        (lambda a: matmul(a.mT, a), (2, 3, 4)),
        (lambda a: matmul(a, a[0].mT), (2, 3, 4)),
        (lambda a: matmul(a.expand(2, 3, 4), a.mT), (3, 4)),
        (lambda a: matmul(a[:3], a[1:4].mT), (4, 3)),
        (lambda a: matmul(a.view(2, 3, 2), a.view(2, 2, 3)), (3, 4)),
        (lambda a: linear(a, a), (3, 4)),
        (lambda a: linear(a, a, a.diagonal(), activation="gelu"), (3, 3)),
        (lambda a: linear(a[:2], a[1:], a[:, 0][::2]), (3, 4)),
    ],
)
def test_one_tensor_is_several_operands(function, shape):
    a = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    gradcheck(function, (a,), check_forward_ad=True, check_batched_grad=True)
    gradgradcheck(function, (a,), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize(
    "ours, theirs, case", [(matmul, torch.matmul, FEW[0]), (matmul, torch.matmul, FEW[1]), (linear, F.linear, FEW[5])]
)
def test_an_inference_tensor_as_operand_fares_as_with_torch(ours, theirs, case):
    with torch.inference_mode():
        inferred = case.operands()

    def outcome(function, needs, i):
        own = leaves(case.operands(), needs)
        own[i] = inferred[i]
        try:
            function(*own).sum().backward()
        except RuntimeError as error:
            return str(error)
        return "gradients"

    for needs, i in itertools.product(case.subsets(), range(len(case.shapes))):
        if not needs[i]:
            assert outcome(ours, needs, i) == outcome(theirs, needs, i)


def test_threads(graph):
    """Graphs that share their weights, and one graph for all. Of integers: every order of additions gives the same."""
    x, weight, bias = (torch.randint(-4, 5, shape).float() for shape in ((8, 7, 5), (6, 5), (6,)))
    weight.requires_grad_(), bias.requires_grad_()
    one = graph(lambda function, *own: function(*own))(linear, x, weight, bias)
    steps = [lambda own=own: linear(own, weight, bias).sum().backward() for own in x]
    steps.append(lambda: one.backward(torch.ones_like(one), retain_graph=True))
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(step) for step in steps * 25]:
            done.result()
    assert torch.equal(weight.grad, 50 * x.sum((0, 1)).expand(6, 5))
    assert torch.equal(bias.grad, torch.full((6,), 50.0 * 8 * 7))
