"""Two processes over gloo compute what one process computes: DDP, FSDP2, tensor parallel, DTensor operands.

All cases run in one pair of processes, which writes down what each case said; a test per case reads it.

Planted bugs that these tests caught: a bias kept whole beside a partial sum (added twice), partial sums under
an activation, DTensor's choice not keyed by the activation, m and n of the result swapped, a dimension that is
broadcast sharded like the others, an input that may be sharded along its first dimension alone, partial sums under
`activate`, a summed dimension that stays sharded, a choice not keyed by the summed dimensions, no strided shards.
"""

import functools
import itertools
import json
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.torch_version import TorchVersion

import torch_tiledmm

WORLD_SIZE = 2
SECONDS = 200
close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def make_model(bias: bool) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 20, bias), nn.GELU(), nn.Linear(20, 6, bias)).double()


def train(kind: str, shape: tuple[int, ...], bias: bool, backend: str | None) -> None:
    """Loss and gradients of a tiled model spread over the processes equal those of nn.Linear alone."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    input = torch.randn(*shape, 12, dtype=torch.float64)
    alone = make_model(bias)
    loss_alone = alone(input).square().mean()
    loss_alone.backward()

    model = make_model(bias)
    assert torch_tiledmm.replace_linear(model).replaced == ["0", "2"]
    if kind == "tensor_parallel":
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:  # each process has half of the rows, and the gradients are averaged
        input = input.chunk(WORLD_SIZE)[dist.get_rank()]
        model = {"ddp": nn.parallel.DistributedDataParallel, "fsdp": fully_shard}[kind](model)
    call = torch.compile(model, backend=backend) if backend else model
    loss = call(input).square().mean()
    loss.backward()
    if kind == "tensor_parallel":
        close(loss, loss_alone)

    parameters = [parameter.grad for parameter in model.parameters()]
    assert len(parameters) == len(list(alone.parameters()))
    for grad, parameter in zip(parameters, alone.parameters(), strict=True):
        close(grad.full_tensor() if hasattr(grad, "full_tensor") else grad, parameter.grad)


def spread(tensor: torch.Tensor) -> list:
    """The tensor as a DTensor in all ways: whole, sharded in each dimension of size > 1, a sum over processes."""
    from torch.distributed import tensor as dtensor
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dtensor.init_device_mesh("cpu", (WORLD_SIZE,))
    part = tensor * (0.25, 0.75)[dist.get_rank()]
    return [
        distribute_tensor(tensor, mesh, [Replicate()]),
        *(distribute_tensor(tensor, mesh, [Shard(dim)]) for dim, size in enumerate(tensor.shape) if size > 1),
        dtensor.DTensor.from_local(part, mesh, [Partial()], run_check=False),
    ]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def matmul(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    """Values and gradients for every placement of a and b."""
    operands = randn(*a_shape), randn(*b_shape)
    expected = torch.matmul(*operands)
    weight = randn(*expected.shape)
    grads = torch.func.grad(lambda pair: (torch.matmul(*pair) * weight).sum())(operands)
    for placed in itertools.product(*map(spread, operands)):
        leaves = [tensor.detach().requires_grad_() for tensor in placed]
        result = torch.ops.tiledmm.matmul(*leaves)
        close(result.full_tensor(), expected)
        result.redistribute(placements=spread(weight)[0].placements).backward(spread(weight)[0])
        for leaf, grad in zip(leaves, grads, strict=True):
            close(leaf.grad.full_tensor(), grad)


def linear(input_shape: tuple[int, ...], weight_shape: tuple[int, ...], bias_shape: tuple[int, ...] | None) -> None:
    """Values for every placement of all operands, with and without activation, one after the other."""
    operands = [randn(*shape) for shape in (input_shape, weight_shape, bias_shape) if shape is not None]
    product = F.linear(*operands)
    for placed in itertools.product(*map(spread, operands)):
        for activation, expected in (("none", product), ("relu", F.relu(product))):
            close(torch.ops.tiledmm.linear(*placed, activation=activation).full_tensor(), expected)
            if activation != "none":
                result, sums = torch.ops.tiledmm.linear_and_sum(*placed, activation=activation)
                close(result.full_tensor(), expected)
                close(sums.full_tensor(), product)


def elementwise(*shape: int) -> None:
    """Activations and their slopes for every placement of the operands."""
    x, grad = randn(*shape).requires_grad_(), randn(*shape)
    result = F.gelu(x)
    slope = torch.autograd.grad(result, x, grad)[0]
    for placed, placed_grad in itertools.product(spread(x.detach()), spread(grad)):
        close(torch.ops.tiledmm.activate(placed, "gelu").full_tensor(), result.detach())
        close(torch.ops.tiledmm.activate_backward(placed_grad, placed, "gelu").full_tensor(), slope)


def ordered_sum(*shape: int) -> None:
    """Sums over all sets of dimensions for every placement, one after the other, as DTensor remembers its choices."""
    a = randn(*shape)
    for placed in spread(a):
        for count in range(len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                expected = a.sum(dims, keepdim=True) if dims else a
                close(torch.ops.tiledmm.ordered_sum(placed, dims).full_tensor(), expected)


def placements() -> None:
    """What tensor and sequence parallelism rest on: operands that lie like this need no communication, and the result
    lies as it should. Each leading dimension of each operand may be sharded, and it need not be the first one."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    mesh, whole, partial = init_device_mesh("cpu", (WORLD_SIZE,)), Replicate(), Partial()

    def check(op, expected, *operands, **kwargs) -> None:
        placed = [distribute_tensor(randn(*shape), mesh, [placement]) for shape, placement in operands]
        with CommDebugMode() as communication:
            results = op(*placed, **kwargs)
        given = op, operands, kwargs
        assert communication.get_total_counts() == 0, (given, communication.get_comm_counts())
        found = [result.placements for result in (results if isinstance(results, tuple) else (results,))]
        assert found == [(placement,) for placement in expected], (given, found)

    ops = torch.ops.tiledmm
    linear, matmul, grads = ops.linear, ops.matmul, ops.linear_weight_grads
    w, b = (10, 8), (10,)
    for x, activation in itertools.product(((6, 8), (4, 6, 8), (2, 4, 6, 8)), ("none", "gelu")):
        last = len(x) - 1
        for biases in ([], [(b, whole)]):
            of_columns = [(b, Shard(0))] if biases else []
            for op, results in ((linear, 1), (ops.linear_and_sum, 2))[: 1 if activation == "none" else 2]:
                for dim in range(last):
                    check(op, [Shard(dim)] * results, (x, Shard(dim)), (w, whole), *biases, activation=activation)
                check(op, [Shard(last)] * results, (x, whole), (w, Shard(0)), *of_columns, activation=activation)
        check(linear, [whole], (x, whole), (w, whole), (b, whole), activation=activation)
        check(linear, [Shard(last)], (x, whole), (w, Shard(0)), ((1,), whole), activation=activation)
    for x in ((6, 8), (4, 6, 8)):
        check(linear, [partial], (x, Shard(len(x) - 1)), (w, Shard(1)))
        check(linear, [partial], (x, Shard(len(x) - 1)), (w, Shard(1)), (b, whole))  # counted once: zeros elsewhere
    for dim in range(4):
        for of_b in ((4, 6, 8, 10), (8, 10)):
            if dim == 3:  # the columns of the result
                check(matmul, [Shard(3)], ((4, 6, 2, 8), whole), (of_b, Shard(len(of_b) - 1)))
            else:
                alike = Shard(dim) if dim < 2 and len(of_b) > 2 else whole
                check(matmul, [Shard(dim)], ((4, 6, 2, 8), Shard(dim)), (of_b, alike))
    check(matmul, [partial], ((4, 6, 8), Shard(2)), ((8, 10), Shard(0)))
    check(matmul, [Shard(1)], ((2, 1, 6, 8), whole), ((4, 8, 10), Shard(0)))  # what is broadcast stays whole
    check(matmul, [Shard(0)], ((2, 1, 6, 8), Shard(0)), ((4, 8, 10), whole))
    rows = 12  # of all batches: the sums over them are partial
    check(grads, [partial, partial], ((rows, 10), Shard(0)), ((rows, 8), Shard(0)))
    check(grads, [Shard(0), Shard(0)], ((rows, 10), Shard(1)), ((rows, 8), whole))
    check(grads, [Shard(1), whole], ((rows, 10), whole), ((rows, 8), Shard(1)))
    check(grads, [whole, whole], ((rows, 10), whole), ((rows, 8), whole))
    for x in ((8,), (6, 8), (4, 6, 8)):
        for own in (whole, *(Shard(dim) for dim in range(len(x)))):
            check(functools.partial(ops.activate, activation="gelu"), [own], (x, own))
            check(functools.partial(ops.activate_backward, activation="gelu"), [own], (x, own), (x, own))
            for summed in range(len(x)):
                of_sums = partial if own == Shard(summed) else own
                check(functools.partial(ops.ordered_sum, dims=[summed]), [of_sums], (x, own))
        check(functools.partial(ops.activate_backward, activation="gelu"), [partial], (x, partial), (x, whole))
        check(functools.partial(ops.ordered_sum, dims=[0]), [partial], (x, partial))


def sequence_parallel() -> None:
    """A layer whose input is sharded along the sequence: no process asks for another one's rows, forward or backward,
    and gradients are right."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    functions = {"none": lambda product: product, "relu": F.relu, "gelu": F.gelu}
    for activation, shapes in itertools.product(functions, (((2, 6, 8), (10, 8)), ((2, 6, 8), (10, 8), (10,)))):
        for of_all in (True, False):  # all gradients, or the last operand's alone: other operators
            alone = [randn(*shape) for shape in shapes]
            placed = [
                distribute_tensor(tensor, mesh, [placement])
                for tensor, placement in zip(alone, (Shard(1), Replicate(), Replicate()), strict=False)
            ]
            leaves, own_leaves = (tensors[0 if of_all else -1 :] for tensors in (alone, placed))
            for leaf in (*leaves, *own_leaves):
                leaf.requires_grad_()
            expected = functions[activation](F.linear(*alone))
            weight = randn(*expected.shape)
            placed_weight = distribute_tensor(weight, mesh, [Shard(1)])
            with CommDebugMode() as communication:
                result = torch_tiledmm.linear(*placed, activation=activation)
                found = torch.autograd.grad(result, own_leaves, placed_weight)
            given = activation, shapes, of_all
            assert communication.get_total_counts() == 0, (given, communication.get_comm_counts())
            assert result.placements == (Shard(1),), given
            close(result.full_tensor(), expected)
            for leaf, own, grad in zip(own_leaves, found, torch.autograd.grad(expected, leaves, weight), strict=True):
                assert own.placements == ((Shard(1),) if leaf is placed[0] else (Partial(),)), given
                close(own.full_tensor(), grad)


def matmul_out() -> None:
    """Refused, not computed into a copy of out."""
    a, b, out = (spread(randn(*shape))[0] for shape in ((4, 6), (6, 8), (4, 8)))
    with pytest.raises(NotImplementedError, match="matmul_out"):
        torch.ops.tiledmm.matmul_out(a, b, out)


CASES = {
    "-".join((kind, str(shape), "bias" if bias else "no_bias", backend or "eager")): functools.partial(
        train, kind, shape, bias, backend
    )
    for kind in ("ddp", "fsdp", "tensor_parallel")
    for shape, bias, backend in (
        ((8,), True, None),
        ((8,), False, None),
        ((4, 5), True, None),
        ((4, 5), False, None),
        ((8,), True, "aot_eager"),
        ((4, 5), False, "aot_eager"),
    )
}
CASES["inductor"] = functools.partial(train, "tensor_parallel", (4, 5), True, "inductor")
CASES["placements"] = placements
if TorchVersion(torch.__version__) >= "2.13":  # torch 2.11 refuses to flatten a sharded sequence in backward
    CASES["sequence_parallel"] = sequence_parallel
CASES["matmul_out"] = matmul_out
for a_shape, b_shape in (
    ((6, 4), (4, 8)),
    ((2, 1, 6, 4), (3, 4, 8)),
    ((4,), (3, 4, 8)),
    ((6, 4), (4,)),
    ((3, 5), (5, 7)),  # odd: the processes hold different sizes
):
    CASES[f"matmul-{a_shape}-{b_shape}"] = functools.partial(matmul, a_shape, b_shape)
for shape in ((5,), (5, 7), (2, 1, 3)):
    CASES[f"elementwise-{shape}"] = functools.partial(elementwise, *shape)
    CASES[f"ordered_sum-{shape}"] = functools.partial(ordered_sum, *shape)
for shapes in (((5, 8), (6, 8), (6,)), ((2, 3, 8), (6, 8), None), ((4, 8), (6, 8), (1,)), ((2, 3, 8), (8,), None)):
    CASES[f"linear-{'-'.join(map(str, shapes))}"] = functools.partial(linear, *shapes)


def run_cases(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=30),
    )
    for name, case in CASES.items():
        torch.manual_seed(0)
        torch.compiler.reset()
        try:
            case()
            outcome = "ok"
        except Exception:
            outcome = traceback.format_exc()
        with open(f"{folder}/{rank}.jsonl", "a") as file:
            print(json.dumps([name, outcome]), file=file)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(built_once):
    """Per process a dictionary from the case's name to "ok" or a traceback."""

    def spawn(folder) -> None:
        # Without GPUs: beside one, torch 2.11's own wait for gloo's collectives ends with a segmentation fault.
        with mock.patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}):
            context = torch.multiprocessing.spawn(run_cases, (str(folder),), nprocs=WORLD_SIZE, join=False)
        deadline = time.monotonic() + SECONDS
        for process in context.processes:
            process.join(timeout=max(deadline - time.monotonic(), 0))
            process.kill()

    files = [built_once("gloo", spawn) / f"{rank}.jsonl" for rank in range(WORLD_SIZE)]
    return [dict(map(json.loads, file.read_text().splitlines())) if file.exists() else {} for file in files]


@pytest.mark.takes_long("gloo")
@pytest.mark.parametrize("name", CASES)
def test_two_processes_compute_what_one_computes(outcomes, name):
    for outcome in outcomes:
        assert outcome.get(name, "not reached: a process ended, or was too slow") == "ok", outcome.get(name)


RULES_ARE_THERE = (
    "ops, rules = torch.ops.tiledmm, t.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs\n"
    "assert ops.linear.default in rules and ops.matmul.default in rules\n"
)


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_rules_wait_for_the_import_of_dtensor():
    run_python(
        "import sys, importlib.util, torch, torch_tiledmm\n"
        "importlib.util.find_spec('torch.distributed.tensor')\n"  # a look is no import, and uses nothing up
        "assert 'torch.distributed.tensor' not in sys.modules\n"
        "finders = len(sys.meta_path)\n"
        "import torch.distributed.tensor as t\n"
        "assert len(sys.meta_path) == finders - 1\n" + RULES_ARE_THERE
    )


def test_rules_are_registered_when_dtensor_came_first():
    run_python("import torch, torch.distributed.tensor as t, torch_tiledmm\n" + RULES_ARE_THERE)
