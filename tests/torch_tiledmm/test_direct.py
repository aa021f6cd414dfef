"""Calls past torch.ops: the same operators in every state of torch, and torch.ops wherever it has to look.

Planted bugs that these tests caught: subclasses taken for tensors, the mode of torch.overrides not asked about, a
bias that is no tensor taken for none, the result with a reference too many, Python's lock held during a product,
operands that the call does not own.
"""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tiledmm import direct, linear, matmul, ops

pytestmark = pytest.mark.skipif(not direct.is_here, reason="built without Python's headers")
OPS = torch.ops.tiledmm


class Subclass(torch.Tensor):
    pass


def operands():
    return torch.randn(5, 7), torch.randn(7, 3), torch.randn(3, 7), torch.randn(3)


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, nn.Parameter], ids=["tensor", "parameter"])
def test_plain_tensors_do_not_pass_torch_ops(wrap, monkeypatch):
    a, b, weight, bias = map(wrap, operands())
    expected = OPS.matmul(a, b), OPS.linear(a, weight, bias), OPS.linear(a, weight, None, activation="gelu")
    for name in ("_matmul", "_linear"):
        monkeypatch.setattr(ops, name, None)
    results = matmul(a, b), linear(a, weight, bias), linear(a, weight, activation="gelu")
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other) and type(result) is torch.Tensor
        assert result.requires_grad == other.requires_grad


def test_the_algorithm_is_handed_on(monkeypatch):
    a, b, weight, bias = (tensor.double() for tensor in operands())
    monkeypatch.setattr(ops, "_matmul", None)
    assert torch.equal(matmul(a, b, algorithm="naive"), OPS.matmul(a, b, algorithm="naive"))
    with pytest.raises(ValueError, match="'nothing'"):
        matmul(a, b, algorithm="nothing")
    with pytest.raises(ValueError, match="'nothing'"):
        linear(a, weight, bias, activation="nothing")


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("odd", [torch.ones(3).as_subclass(Subclass), 1, "text", [1.0]], ids=lambda odd: str(type(odd)))
def test_torch_ops_is_asked_about_everything_else(odd, place):
    a, b, weight, bias = operands()
    plain = [a, weight, bias]
    plain[place] = odd
    assert direct.linear(*plain, "none", "auto") is NotImplemented
    if place < 2:
        assert direct.matmul(*plain[:2], "auto") is NotImplemented
    assert direct.matmul(a, b, 1) is direct.matmul(a, b, "\ud800") is direct.matmul(a, b) is NotImplemented
    assert direct.linear(a, weight, bias, None, "auto") is direct.linear() is NotImplemented


def test_a_subclass_stays_one():
    a, b, *_ = operands()
    assert type(matmul(a.as_subclass(Subclass), b)) is Subclass


class Counting(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen += function is OPS.matmul.default
        return function(*args, **kwargs or {})


class CountingBelow(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen += function is OPS.matmul.default
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("mode", [Counting, CountingBelow])
def test_modes_see_the_call(mode):
    a, b, *_ = operands()
    with mode() as counting:
        result = matmul(a, b)
    assert counting.seen == 1 and torch.equal(result, matmul(a, b))


def test_what_is_below_the_dispatcher_is_the_same():
    a, b, weight, bias = operands()
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul(a, b).dtype == linear(a, weight, bias).dtype == torch.bfloat16
    with torch.inference_mode():
        assert matmul(a, b).is_inference()
    assert torch.equal(torch.func.vmap(matmul, (None, 0))(a, torch.stack([b, b]))[1], matmul(a, b))
    assert matmul(a.to("meta"), b.to("meta")).is_meta


def test_errors_are_those_of_torch_ops():
    a, b, weight, bias = operands()
    bad = [(a, a), (a, b.double()), (a, b.int()), (a.to("meta"), b), (a.to_sparse(), b)]
    for pair in bad:
        caught = []
        for function in (matmul, OPS.matmul):
            with pytest.raises(Exception) as error:  # noqa: PT011
                function(*pair)
            caught.append((error.type, str(error.value)))
        assert caught[0] == caught[1]


def test_nothing_is_kept():
    a, b, weight, bias = operands()
    gone = []
    for result in (matmul(a, b), linear(a, weight, bias)):
        gone.append(weakref.ref(result))
        assert result._use_count() == 1
    gone += [weakref.ref(tensor) for tensor in (a, b, weight, bias)]
    del a, b, weight, bias, result
    gc.collect()
    assert not any(reference() is not None for reference in gone)


@pytest.mark.parametrize("call", [matmul, linear, OPS.matmul, OPS.linear], ids=["matmul", "linear", "op", "linear op"])
def test_other_threads_run_meanwhile_and_a_call_owns_its_operands(call):
    """What another thread gives an operand's object in the meantime, the product does not see."""
    a, b, weight, bias = torch.randn(300, 500), torch.randn(500, 400), torch.randn(400, 500), torch.randn(400)
    operands = (a, weight, bias) if call in (linear, OPS.linear) else (a, b)
    expected = call(*operands, algorithm="naive")
    before, results = [operand._use_count() for operand in operands], []

    def is_owned() -> bool:
        return all(operand._use_count() > count for operand, count in zip(operands, before, strict=True))

    for _ in range(20):  # a busy machine may let a product pass by before this thread has a look
        thread = threading.Thread(target=lambda: results.append(call(*operands, algorithm="naive")), daemon=True)
        thread.start()
        while thread.is_alive() and not is_owned():  # at once, but where the product keeps Python's lock
            pass
        if was_owned := is_owned():
            for operand in operands:
                torch._C._swap_tensor_impl(operand, torch.full_like(operand, torch.nan))
        thread.join()
        if was_owned:
            break
    assert was_owned, "no operand had another owner during a product"
    assert torch.equal(results[-1], expected)
    assert all(operand.isnan().all() for operand in operands)


def test_without_the_library_torch_ops_is_called(monkeypatch):
    a, b, weight, bias = operands()
    expected = matmul(a, b), linear(a, weight, bias)
    monkeypatch.setattr(direct, "is_here", False)
    monkeypatch.delattr(direct, "matmul")
    monkeypatch.delattr(direct, "linear")
    assert torch.equal(matmul(a, b), expected[0]) and torch.equal(linear(a, weight, bias), expected[1])
