"""Which functions of torch give a row other bits when the batch has another size: a table for docs/whole_programs.md.

    python benchmarks/what_varies.py [--device cuda] [--mode] [--lengths 257 4096]

Each function is called with the first rows of one random tensor, with 1, 2, 3, 5, 8, 13 and 16 of them, and with all of
them but the first; a row varies where its bits differ from those of the whole batch. --mode asks the same question
while `torch_tiledmm.enable()` is on.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

BATCH = 301
COUNTS = (1, 2, 3, 5, 8, 13, 16, 64, 300)
LENGTHS = (96, 257, 1000, 4096, 32003)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def with_grad(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The gradient of a function of each element."""

    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, x.detach())[0]

    return gradient


def products(device: str, dtype: torch.dtype) -> dict[str, Callable[[Tensor], Tensor]]:
    def weights(k: int) -> Tensor:
        return torch.randn(k, 96, device=device, generator=torch.Generator(device).manual_seed(k)).to(dtype)

    return {
        "mm": lambda x: x @ weights(x.shape[-1]),
        "linear with bias": lambda x: F.linear(x, weights(x.shape[-1]).mT, weights(96)[0]),
        "bmm": lambda x: x[:, None] @ weights(x.shape[-1]).expand(len(x), -1, -1),
        "mv": lambda x: torch.mv(x, weights(x.shape[-1])[:, 0].contiguous()),
    }


ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu (tanh)": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "log1p": lambda x: x.abs().log1p(),
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "pow": lambda x: x.abs().pow(0.7),
    "pow of tensors": lambda x: torch.pow(x.abs(), x),
    "exp2": torch.exp2,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "atan2": lambda x: torch.atan2(x, x + 1),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "mish": F.mish,
    "elu": F.elu,
    "logsigmoid": F.logsigmoid,
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "mean of squares": lambda x: x.pow(2).mean(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "cumsum": lambda x: x.cumsum(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
}


def varies(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    def bits(y: Tensor) -> Tensor:
        return y.contiguous().view(torch.int32 if y.element_size() == 4 else torch.int16)

    whole = bits(function(x))
    return any(not torch.equal(bits(function(x[:rows])), whole[:rows]) for rows in COUNTS) or not torch.equal(
        bits(function(x[1:])), whole[1:]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", action="store_true", help="under torch_tiledmm.enable()")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    args = parser.parse_args()
    if args.mode:
        import torch_tiledmm

        torch_tiledmm.enable()
    threads = (1, 2, 3) if args.device == "cpu" else (1,)
    for name, dtype in DTYPES.items():
        gradients = {f"gradient of {key}": with_grad(ELEMENTWISE[key]) for key in ELEMENTWISE}
        functions = {**products(args.device, dtype), **ELEMENTWISE, **gradients, **REDUCTIONS}
        found = []
        for key, function in functions.items():
            lengths = []
            for length in args.lengths:
                x = torch.randn(BATCH, length, generator=torch.Generator().manual_seed(length)).to(args.device, dtype)
                for count in threads:
                    torch.set_num_threads(count)
                    if varies(function, x):
                        lengths.append(length)
                        break
            if lengths:
                found.append(f"{key} ({', '.join(map(str, lengths))})")
        print(f"{name}: {'; '.join(found) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
