"""Generates text in a batch and alone, and counts the steps whose logits differ: by torch, and under the mode.

    python examples/generate.py                 # on the GPU, where this build has kernels for it
    python examples/generate.py --device cpu
    python examples/generate.py --quick         # seconds, for tests

The model is a recurrent one with random weights: what it writes makes no sense, its bits do.
"""

import argparse
import time

import torch
from torch import Tensor, nn

import torch_tiledmm
from torch_tiledmm.dispatch import PICKS, build_info

NUM_CHARACTERS = 128  # ASCII


class Writer(nn.Module):
    """Logits of the next character, (batch, NUM_CHARACTERS), and what is remembered."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.width = width
        self.characters = nn.Embedding(NUM_CHARACTERS, width)
        self.cells = nn.ModuleList(nn.GRUCell(width, width) for _ in range(depth))
        self.head = nn.Linear(width, NUM_CHARACTERS)

    def forward(self, character: Tensor, memory: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, remembered = self.characters(character), []
        for cell, own in zip(self.cells, memory, strict=True):
            x = cell(x, own)
            remembered.append(x)
        return self.head(x), remembered


@torch.no_grad()
def generate(model: Writer, prompts: Tensor, count: int) -> tuple[Tensor, float]:
    """The logits of each new character, (count, batch, NUM_CHARACTERS), and seconds for each."""
    memory = [torch.zeros(len(prompts), model.width, device=prompts.device) for _ in model.cells]
    for character in prompts.unbind(1):
        scores, memory = model(character, memory)
    logits = []
    start = time.perf_counter()
    for _ in range(count):
        logits.append(scores)
        scores, memory = model(scores.argmax(-1), memory)
    stacked = torch.stack(logits).cpu()
    return stacked, (time.perf_counter() - start) / count


def compare(model: Writer, prompts: Tensor, count: int) -> tuple[int, float, float]:
    """Steps in which the first prompt alone has other logits than in the batch, and seconds of a step of both."""
    generate(model, prompts, 1)
    together, seconds_together = generate(model, prompts, count)
    alone, seconds_alone = generate(model, prompts[:1], count)
    differ = sum(not torch.equal(own[0], step[0]) for own, step in zip(alone, together, strict=True))
    return differ, seconds_together, seconds_alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=PICKS, default="auto")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="a small model and few characters")
    args = parser.parse_args()
    device = torch.device(build_info().pick(args.device).device)
    torch.manual_seed(0)
    width, depth, count = (64, 2, 8) if args.quick else (1024, 4, 64)
    model = Writer(width, depth).to(device).eval()
    prompts = torch.randint(NUM_CHARACTERS, (args.batch, 16), device=device)
    print(f"{'':14s}steps that differ   ms for {args.batch:2d}    ms for 1")
    for name in ("torch", "torch_tiledmm"):
        if name == "torch_tiledmm":
            torch_tiledmm.enable()
        differ, together, alone = compare(model, prompts, count)
        print(f"{name:14s}{differ:10d} of {count:2d} {together * 1e3:13.2f} {alone * 1e3:11.2f}")
    print(torch_tiledmm.report())
    torch_tiledmm.disable()


if __name__ == "__main__":
    main()
