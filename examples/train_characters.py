"""Trains a small character transformer on the source of Python's standard library, tiled by one call.

    python examples/train_characters.py               # with TiledLinear
    python examples/train_characters.py --linear      # with nn.Linear, for comparison
    python examples/train_characters.py --bf16        # autocast to bfloat16
    python examples/train_characters.py --device cpu  # default: the GPU, where this build has kernels for it
    python examples/train_characters.py --quick       # seconds, for tests

Prints the loss and the speed on the way, and a text that the model wrote at the end.
"""

import argparse
import contextlib
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_tiledmm import replace_linear
from torch_tiledmm.dispatch import PICKS, build_info

NUM_CHARACTERS = 128  # ASCII


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each after a norm and beside a residual connection."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention, self.norm_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, width)
        packed = self.query_key_value(self.norm_attention(x))
        heads = [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in packed.chunk(3, dim=-1)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.network(self.norm_network(x))

    def network(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class CharacterModel(nn.Module):
    """Logits of the next character for each position."""

    def __init__(self, length: int, width: int, num_heads: int, num_blocks: int):
        super().__init__()
        self.length = length
        self.characters = nn.Embedding(NUM_CHARACTERS, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:  # (batch, length) -> (batch, length, NUM_CHARACTERS)
        positions = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.characters(text) + self.positions(positions))))

    @torch.no_grad()
    def write(self, start: str, num_characters: int, temperature: float = 0.7) -> str:
        text = torch.tensor([list(start.encode("ascii"))], device=self.head.weight.device)
        for _ in range(num_characters):
            logits = self(text[:, -self.length :])[:, -1].float() / temperature
            text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return bytes(text[0].tolist()).decode("ascii")


def load_text() -> Tensor:
    """The modules at the top of the standard library, as ASCII codes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    return torch.frombuffer(bytearray(text.encode("ascii", errors="replace")), dtype=torch.uint8).long()


def main() -> None:
    parser = argparse.ArgumentParser(description="a character transformer on tiled matmul")
    parser.add_argument("--linear", action="store_true", help="keep nn.Linear")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--quick", action="store_true", help="few steps of a small model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--device", choices=PICKS, default="auto", help="auto: the GPU, where it can be used")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    num_steps, batch, length, width = (40, 8, 32, 64) if args.quick else (300, 16, 128, 256)

    try:
        machine = build_info().pick(args.device)
    except ValueError as error:
        parser.error(str(error))
    device = torch.device(machine.device)
    print(f"device {device}: {machine.name}")

    torch.manual_seed(args.seed)
    text = load_text().to(device)
    model = CharacterModel(length, width, num_heads=4, num_blocks=2 if args.quick else 4).to(device)
    if not args.linear:
        print(replace_linear(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    precision = torch.autocast(device.type, torch.bfloat16) if args.bf16 else contextlib.nullcontext()

    start, mean_loss = time.perf_counter(), None
    for step in range(1, num_steps + 1):
        begins = torch.randint(len(text) - length, (batch, 1)).to(device)
        pieces = text[begins + torch.arange(length + 1, device=device)]
        optimizer.zero_grad()
        with precision:
            loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1).float(), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        mean_loss = loss.item() if mean_loss is None else 0.95 * mean_loss + 0.05 * loss.item()
        if step % 10 == 0:
            speed = step * batch * length / (time.perf_counter() - start)
            end = "\r" if sys.stdout.isatty() and step < num_steps else "\n"
            print(
                f"step {step:4d}/{num_steps}  loss {mean_loss:.3f}  {speed:7.0f} characters/s",
                end=end,
                flush=True,
            )
    print(f"\n{model.write('def ', 40 if args.quick else 300)}")


if __name__ == "__main__":
    main()
