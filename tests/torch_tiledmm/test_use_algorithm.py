"""use_algorithm: what "auto" means inside, for every way to call, to differentiate and to compile.

On the CPU "wgmma" is refused: what raises has been given it. Where more is to be seen, a dispatch mode notes the names
that arrive below autograd; there "auto", a default, does not appear, and a backward pass says "plain_auto".

Planted bugs that these tests caught: explicit names replaced, a context of "auto" that leaves "auto" to the one around
it, packets, matmul_out or linear_weight_grads left out, a name kept at class level instead of in the object, one kept
after an exception, a backward pass that says "auto" from either kind of node, a context that torch.compile does not see
(a thread-local of our own instead of a mode).
"""

import contextlib
import copy
import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch_tiledmm
from torch_tiledmm import TiledLinear, linear, matmul, use_algorithm
from torch_tiledmm.testing import assert_close, expect_matmul

OPS = torch.ops.tiledmm


class Names(TorchDispatchMode):
    """The algorithm of each operator that takes one, None for "auto"."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        takes_one = any(argument.name == "algorithm" for argument in function._schema.arguments)
        if function.namespace == "tiledmm" and takes_one:
            self.seen.append((kwargs or {}).get("algorithm"))
        return function(*args, **(kwargs or {}))


def names_of(function, *args) -> list:
    with Names() as names:
        function(*args)
    return names.seen


def operands(grad: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 7, requires_grad=grad), torch.randn(7, 3, requires_grad=grad)


def is_given_wgmma(function) -> bool:
    try:
        function()
    except NotImplementedError as error:
        assert "algorithm 'wgmma' cannot serve this call" in str(error)
        return True
    return False


def in_thread(function) -> object:
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


a, b = torch.randn(5, 7), torch.randn(7, 3)
weight, bias, out = torch.randn(3, 7), torch.randn(3), torch.empty(5, 3)
CALLS = {
    "matmul": lambda **kwargs: matmul(a, b, **kwargs),
    "matmul out": lambda **kwargs: matmul(a, b, out=out, **kwargs),
    "linear": lambda **kwargs: linear(a, weight, bias, activation="gelu", **kwargs),
    "ops.matmul": lambda **kwargs: OPS.matmul(a, b, **kwargs),
    "ops.matmul.default": lambda **kwargs: OPS.matmul.default(a, b, **kwargs),
    "ops.matmul_out": lambda **kwargs: OPS.matmul_out(a, b, out, **kwargs),
    "ops.linear": lambda **kwargs: OPS.linear(a, weight, **kwargs),
    "ops.linear.default": lambda **kwargs: OPS.linear.default(a, weight, bias, **kwargs),
    "ops.linear_weight_grads": lambda **kwargs: OPS.linear_weight_grads(a, torch.ones(5, 2), **kwargs),
    "TiledLinear": lambda **kwargs: TiledLinear(7, 3, **kwargs)(a),
    "of a parameter": lambda **kwargs: matmul(nn.Parameter(a), b, **kwargs),
    "vmap": lambda **kwargs: torch.vmap(lambda column: matmul(a, column, **kwargs), 1)(b),
    "jvp": lambda **kwargs: torch.func.jvp(lambda x: matmul(x, b, **kwargs), (a,), (a,)),
}
MODES = {
    "": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_auto_means_the_name_and_other_names_stay(call, mode):
    with mode():
        assert not is_given_wgmma(call)
        with use_algorithm("wgmma"):
            assert is_given_wgmma(call)
            assert is_given_wgmma(lambda: call(algorithm="auto"))
            assert not is_given_wgmma(lambda: call(algorithm="naive"))
        assert not is_given_wgmma(call)


def test_computes_what_the_name_computes():
    with use_algorithm("block_tiled"):
        assert_close(matmul(a, b), expect_matmul(a, b))
        assert torch.equal(matmul(a, b), matmul(a, b, algorithm="block_tiled"))


def test_nests_and_ends():
    call = CALLS["matmul"]
    outer = use_algorithm("naive")
    with outer:
        assert names_of(call) == ["naive"]
        with use_algorithm("block_tiled"), outer, use_algorithm("register_tiled"):
            assert names_of(call) == ["register_tiled"]
        with use_algorithm("auto"):
            assert names_of(call) == ["plain_auto"]
            with outer:
                assert names_of(call) == ["naive"]
        with pytest.raises(NotImplementedError), use_algorithm("wgmma"):
            call()
        assert names_of(call) == ["naive"]
    assert names_of(call) == [None]


def test_auto_inside_of_a_context_is_auto():
    with use_algorithm("wgmma"), use_algorithm("auto"):
        assert torch.equal(matmul(a, b), matmul(a, b, algorithm="register_tiled"))
        assert matmul(a.to("meta"), b.to("meta")).shape == (5, 3)


def test_is_of_its_thread():
    call = CALLS["matmul"]
    with use_algorithm("wgmma"):
        assert in_thread(lambda: names_of(call)) == [None]

    def enter():
        with use_algorithm("naive"):
            return names_of(call) + names_of(call)

    with use_algorithm("block_tiled"):
        assert in_thread(enter) == ["naive", "naive"] and names_of(call) == ["block_tiled"]


def test_decorates():
    @use_algorithm("naive")
    def twice(x, depth):
        """Calls itself."""
        return matmul(x, b) if depth == 0 else twice(x, depth - 1)

    assert names_of(twice, a, 2) == ["naive"] and twice.__doc__ == "Calls itself."
    assert names_of(CALLS["matmul"]) == [None]


def test_refuses_unknown_names_at_once():
    with pytest.raises(ValueError, match="^algorithm: got 'fast', expected one of auto, .*wgmma"):
        use_algorithm("fast")
    assert repr(use_algorithm("auto")) == "use_algorithm('auto')"


def test_the_layers_own_name_goes_first():
    model = nn.Sequential(TiledLinear(7, 5), TiledLinear(5, 4, algorithm="naive"), TiledLinear(4, 3))
    with use_algorithm("block_tiled"):
        assert names_of(model, a) == ["block_tiled", "naive", "block_tiled"]


# ---- Derivatives

BACKWARD = {
    "method": lambda y: y.sum().backward(),
    "function": lambda y: torch.autograd.backward(y.sum()),
}


def linear_of(x, w):
    return linear(x, w.mT, activation="relu")


@pytest.mark.parametrize("forward", (matmul, linear_of), ids=("matmul", "linear"))
@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
def test_backward_takes_what_forward_recorded(forward, backward):
    with use_algorithm("naive"):
        inside, another = forward(*operands()), forward(*operands())
        assert names_of(backward, forward(*operands())) == ["naive", "naive"]
    assert names_of(backward, inside) == ["naive", "naive"]
    outside = forward(*operands())
    with use_algorithm("wgmma"):
        assert names_of(backward, another) == ["naive", "naive"]
        assert names_of(backward, outside) == ["plain_auto", "plain_auto"]


def test_backward_on_another_thread():
    with use_algorithm("naive"):
        y = matmul(*operands()).sum()
    assert in_thread(lambda: names_of(y.backward)) == ["naive", "naive"]
    y = matmul(*operands()).sum()

    def backward():
        with use_algorithm("wgmma"):
            return names_of(y.backward)

    assert in_thread(backward) == ["plain_auto", "plain_auto"]


def test_double_backward():
    x, w = operands()
    for context, expected in ((use_algorithm("naive"), "naive"), (contextlib.nullcontext(), "plain_auto")):
        with context:
            y = matmul(x, w).sin().sum()
        with use_algorithm("wgmma"):
            assert names_of(lambda y=y: torch.autograd.grad(y, (x, w), create_graph=True)) == [expected] * 2
            (grad,) = torch.autograd.grad(y, x, create_graph=True)
        assert set(names_of(lambda grad=grad: grad.square().sum().backward())) == {expected}


def test_torch_func():
    """The other kind of node."""
    x, w = operands(grad=False)
    for context, expected in ((use_algorithm("naive"), "naive"), (contextlib.nullcontext(), "plain_auto")):
        with context:
            _, pull = torch.func.vjp(matmul, x, w)
        with use_algorithm("wgmma"):
            assert set(names_of(pull, torch.ones(5, 3))) == {expected}
            assert set(names_of(torch.func.vmap(pull), torch.ones(2, 5, 3))) == {expected}
    with use_algorithm("naive"):
        assert set(names_of(torch.func.grad(lambda x: matmul(x, w).sum()), x)) == {"naive"}
        assert set(names_of(torch.func.jvp, lambda x: matmul(x, w), (x,), (x,))) == {"naive"}
        assert set(names_of(torch.func.hessian(lambda x: matmul(x, w).sin().sum()), x)) == {"naive"}


def test_checkpoint():
    x, w = operands()
    contexts = lambda: (use_algorithm("naive"), use_algorithm("naive"))  # noqa: E731
    with Names() as names:
        y = checkpoint(matmul, x, w, use_reentrant=False, context_fn=contexts).sum()
        y.backward()
        with use_algorithm("wgmma"):
            checkpoint(matmul, x, w, use_reentrant=False, context_fn=contexts).sum().backward()
    assert names.seen == ["naive"] * 8  # forward, forward anew, two gradients; twice
    with Names() as names:
        checkpoint(use_algorithm("naive")(matmul), x, w, use_reentrant=True).sum().backward()
    assert names.seen == ["naive"] * 4


# ---- Ways around eager mode


def noted(function, **options) -> tuple:
    """`function` compiled, and two lists of names: of each graph that is compiled, and of each that runs."""
    graphs, runs = [], []

    def note(graph, inputs):
        nodes = [node for node in graph.graph.nodes if "tiledmm" in str(node.target)]
        names = [node.kwargs.get("algorithm", "auto") for node in nodes]
        graphs.append(names)
        return lambda *args: runs.append(names) or graph(*args)

    torch.compiler.reset()
    return torch.compile(function, backend=note, **options), graphs, runs


@pytest.mark.parametrize("function", (matmul, OPS.matmul, OPS.matmul.default), ids=("function", "packet", "overload"))
def test_compile_guards(function):
    compiled, graphs, runs = noted(lambda x, y: function(x, y) + 1, fullgraph=True)
    compiled(a, b)
    for name in ("naive", "block_tiled", "naive"):
        with use_algorithm(name):
            compiled(a, b)
    with use_algorithm("naive"), use_algorithm("block_tiled"):
        compiled(a, b)
    with use_algorithm("wgmma"):
        assert is_given_wgmma(lambda: compiled(a, b))
    compiled(a, b)
    names = ["auto", "naive", "block_tiled", "naive", "block_tiled", "wgmma", "auto"]
    assert runs == [[name] for name in names]
    assert graphs == [["auto"], ["naive"], ["block_tiled"], ["block_tiled"], ["wgmma"]]


def test_compile_layers():
    model = nn.Sequential(TiledLinear(7, 5), nn.GELU(), TiledLinear(5, 3, algorithm="register_tiled"))
    compiled, graphs, runs = noted(model, fullgraph=True)
    compiled(a)
    with use_algorithm("naive"):
        compiled(a)
    compiled(a)
    model[0].algorithm = "block_tiled"
    compiled(a)
    assert graphs == [["auto", "register_tiled"], ["naive", "register_tiled"], ["block_tiled", "register_tiled"]]
    assert runs == [graphs[0], graphs[1], graphs[0], graphs[2]]


def test_compiled_code_enters():
    def block(x, y):
        with use_algorithm("naive"):
            first = OPS.matmul(x, y)
            with use_algorithm("auto"):
                second = matmul(x, y)
        return first, second, matmul(x, y)

    compiled, _, runs = noted(block, fullgraph=True)
    compiled(a, b)
    assert runs == [["naive", "plain_auto", "auto"]]

    @use_algorithm("naive")
    def broken(x, y):
        first = matmul(x, y)
        torch._dynamo.graph_break()
        return first, matmul(x, y)

    compiled, _, runs = noted(broken)
    compiled(a, b)
    assert runs == [["naive"], ["naive"]]
    assert names_of(CALLS["matmul"]) == [None]


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_compiled_backward(backend):
    torch.compiler.reset()
    compiled = torch.compile(linear_of, backend=backend, fullgraph=True)
    y = compiled(*operands()).sum()
    with use_algorithm("wgmma"):
        torch.autograd.backward(y)
    with use_algorithm("naive"):
        y = compiled(*operands()).sum()
    assert names_of(y.backward) == ["naive", "naive"]


@pytest.mark.parametrize("strict", (False, True))
def test_export_records_the_name(strict):
    model = nn.Sequential(TiledLinear(7, 5), TiledLinear(5, 3, algorithm="block_tiled"))
    with use_algorithm("naive"):
        program = torch.export.export(model, (a,), strict=strict)
    nodes = [node for node in program.graph.nodes if "tiledmm" in str(node.target)]
    assert [node.kwargs["algorithm"] for node in nodes] == ["naive", "block_tiled"]
    assert names_of(program.module(), a) == ["naive", "block_tiled"]
    program = torch.export.export(model, (a,), strict=strict)
    with use_algorithm("naive"):  # its auto is auto
        assert names_of(program.module(), a) == ["naive", "block_tiled"]


def test_trace_records_the_name():
    with use_algorithm("naive"):
        traced = torch.jit.trace(TiledLinear(7, 5), (a,))
    assert names_of(traced, a) == ["naive"]


def test_shapes_without_values():
    """What computes nothing refuses nothing, but for names that are not known."""
    with use_algorithm("wgmma"):
        assert matmul(a.to("meta"), b.to("meta")).shape == (5, 3)
        with FakeTensorMode() as mode:
            assert matmul(mode.from_tensor(a), mode.from_tensor(b)).shape == (5, 3)


def test_copies():
    context = copy.deepcopy(use_algorithm("naive"))
    with context:
        assert names_of(CALLS["matmul"]) == ["naive"]


def test_is_public():
    assert {"use_algorithm", "build_info", "LinearSwap"} <= set(torch_tiledmm.__all__)
