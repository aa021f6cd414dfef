"""Trains a small mixture of experts on the source of Python's standard library, twice from the same weights: with the
experts as a loop over nn.functional.linear, and by grouped products.

    python examples/train_experts.py               # both, and a plot of the losses over time: out/experts.png
    python examples/train_experts.py --device cpu  # default: the GPU, where this build has kernels for it
    python examples/train_experts.py --quick       # seconds, for tests

Prints both losses and speeds.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_characters import Block, CharacterModel, load_text

from torch_tiledmm import ExpertRouting, gated_grouped_matmul, grouped_matmul
from torch_tiledmm.dispatch import PICKS, build_info


def by_loop(experts: "Experts", x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """One expert after the other, as many models compute them."""
    y = torch.zeros_like(x)
    for expert in range(len(experts.down)):
        token, choice = torch.where(index == expert)
        gate, up = F.linear(x[token], experts.gate_up[expert]).chunk(2, -1)
        rows = F.linear(F.silu(gate) * up, experts.down[expert])
        y = y.index_add(0, token, rows * weights[token, choice, None])
    return y


def by_groups(experts: "Experts", x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    routing = ExpertRouting(index, len(experts.down))
    inner = gated_grouped_matmul(routing.gather(x), experts.gate_up.mT, offs=routing.offs)
    return routing.combine(grouped_matmul(inner, experts.down.mT, offs=routing.offs), weights)


class Experts(nn.Module):
    """Gated feed-forwards of which each token takes two."""

    def __init__(self, width: int, inner: int, num_experts: int, compute: Callable[..., Tensor]):
        super().__init__()
        self.compute = compute
        self.router = nn.Linear(width, num_experts)
        self.gate_up = nn.Parameter(torch.randn(num_experts, 2 * inner, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, width, inner) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # (..., width)
        rows = x.flatten(0, -2)
        scores, index = self.router(rows).topk(2)
        return self.compute(self, rows, index, scores.softmax(-1)).view_as(x)


class ExpertBlock(Block):
    """Its network is a mixture of experts."""

    def __init__(self, width: int, num_heads: int, num_experts: int, compute: Callable[..., Tensor]):
        super().__init__(width, num_heads)
        del self.up, self.down
        self.experts = Experts(width, 2 * width, num_experts, compute)

    def network(self, x: Tensor) -> Tensor:
        return self.experts(x)


def train(compute: Callable[..., Tensor], text: Tensor, sizes: tuple[int, ...]) -> list[tuple[float, float]]:
    """(seconds, loss) of each step."""
    num_steps, batch, length, width, num_experts, num_blocks = sizes
    torch.manual_seed(0)
    model = CharacterModel(length, width, num_heads=4, num_blocks=0)
    model.blocks = nn.Sequential(*(ExpertBlock(width, 4, num_experts, compute) for _ in range(num_blocks)))
    model = model.to(text.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start, curve = time.perf_counter(), []
    for _ in range(num_steps):
        begins = torch.randint(len(text) - length, (batch, 1)).to(text.device)
        pieces = text[begins + torch.arange(length + 1, device=text.device)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        curve.append((time.perf_counter() - start, loss.item()))
    return curve


def plot(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name, linewidth=1)
    axes.set(xlabel="seconds", ylabel="loss", title="a mixture of experts on text")
    axes.legend()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="a mixture of experts by grouped products")
    parser.add_argument("--quick", action="store_true", help="few steps of a small model, no plot")
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--device", choices=PICKS, default="auto", help="auto: the GPU, where it can be used")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        machine = build_info().pick(args.device)
    except ValueError as error:
        parser.error(str(error))
    print(f"device {machine.device}: {machine.name}")
    # steps, batch, characters, width, experts, blocks
    sizes = (20, 4, 32, 32, 8, 2) if args.quick else (150, 8, 128, 256, 32, 2)
    text = load_text().to(machine.device)
    curves = {}
    for name, compute in (("loop", by_loop), ("grouped products", by_groups)):
        curve = curves[name] = train(compute, text, sizes)
        last = [loss for _, loss in curve[-10:]]
        speed = len(curve) * sizes[1] * sizes[2] / curve[-1][0]
        print(f"{name:16}  loss {sum(last) / len(last):.3f}  {speed:7.0f} characters/s", flush=True)
    if not args.quick:
        plot(curves, Path("out/experts.png"))


if __name__ == "__main__":
    main()
