"""DDP, FSDP2 and tensor parallel over gloo with two processes give the gradients of one process, eager and compiled.

Planted bugs that these tests caught: the rule of a row-sharded weight with a replicated bias (added twice); the sharding
rule of matmul's column dimension off by one.
"""

import copy
import subprocess
import sys
import tempfile

import pytest
import torch
from torch import nn

WORLD = 2


class Mlp(nn.Module):
    def __init__(self, bias: bool = True):
        super().__init__()
        self.up = nn.Linear(12, 20, bias=bias)
        self.down = nn.Linear(20, 6, bias=bias)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def make_case(bias: bool, rank_of_input: int):
    """A replaced model in float64, an input whose first dimension splits over the processes, and a loss weight."""
    from torch_tiledmm import replace_linear

    torch.manual_seed(7)
    model = Mlp(bias).double()
    replace_linear(model)
    x = torch.randn(*((8, 12) if rank_of_input == 2 else (4, 5, 12)), dtype=torch.float64)
    return model, x


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check(parallel: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    for name, parameter in parallel.named_parameters():
        name = name.removeprefix("module.").removeprefix("_orig_mod.")
        torch.testing.assert_close(whole(parameter.grad), expected[name], rtol=1e-12, atol=1e-12)


def run_case(kind: str, bias: bool, rank_of_input: int, backend: str | None) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, x = make_case(bias, rank_of_input)
    single = copy.deepcopy(model)
    single(x).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in single.named_parameters()}

    mesh = init_device_mesh("cpu", (WORLD,))
    mine = x.chunk(WORLD)[dist.get_rank()]
    if kind == "ddp":
        model, x = nn.parallel.DistributedDataParallel(model), mine
    elif kind == "fsdp":
        for layer in (model.up, model.down):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = mine
    else:
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    call = torch.compile(model, backend=backend) if backend else model
    call(x).square().mean().backward()
    check(model, expected)


CASES = [
    (kind, bias, rank_of_input, backend)
    for kind in ("ddp", "fsdp", "tensor_parallel")
    for bias, rank_of_input, backend in (
        (True, 2, None),
        (False, 3, None),
        (True, 3, None),
        (True, 2, "aot_eager"),
        (True, 3, "aot_eager"),
    )
] + [("tensor_parallel", True, 2, "inductor")]


def run_process(rank: int, rendezvous: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    for case in CASES:
        torch.compiler.reset()
        try:
            run_case(*case)
            outcome = "ok"
        except Exception as error:  # every case is reported, not only the first that fails
            outcome = f"failed: {type(error).__name__}: {error}"
        print("CASE", case, outcome, flush=True)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes():
    """Runs every case in one pair of processes; {case: outcome of process 0 and 1}."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), f"{folder}/rendezvous"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(WORLD)
        ]
        try:
            texts = [process.communicate(timeout=240)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    found = [{}, {}]
    for rank, text in enumerate(texts):
        for line in text.splitlines():
            if line.startswith("CASE "):
                case, _, outcome = line.removeprefix("CASE ").partition(") ")
                found[rank][case + ")"] = outcome
    return found, texts


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_gradients_are_those_of_one_process(outcomes, case):
    found, texts = outcomes
    for rank in range(WORLD):
        assert found[rank].get(str(case)) == "ok", found[rank].get(str(case), texts[rank][-2000:])


def test_rules_are_registered_late():
    """`import torch_tiledmm` does not import torch.distributed.tensor."""
    code = "import sys, torch_tiledmm; sys.exit('torch.distributed.tensor' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


if __name__ == "__main__":
    run_process(int(sys.argv[1]), sys.argv[2])
