"""THE tables of shapes, of the CPU and of GPUs, used by the benchmarks and by the tests, and the maker of operands for
one of their rows.

A product is ``m x k`` times ``k x n``. The layout is two letters, for A and for B: N is stored row by row
as written, T is stored transposed (the operand is a transposed view). ``F.linear(x, w)`` is NT, its
backward is NN for the input and TN for the weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

_CHEAP_FLOPS = 2**23


@dataclass(frozen=True)
class Shape:
    """One row: ``batch`` products of ``m x k`` by ``k x n``; ``batch == 0`` is one product without a batch
    dimension.
    """

    name: str
    m: int
    n: int
    k: int
    layout: str
    kind: str
    why: str
    batch: int = 0

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * max(self.batch, 1)

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of A, B and C, each counted once."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return elements * max(self.batch, 1) * dtype.itemsize

    @property
    def is_cheap(self) -> bool:
        """Cheap enough to be checked against the float64 reference in every test run."""
        return self.flops <= _CHEAP_FLOPS

    def __str__(self) -> str:
        prefix = f"{self.batch}x" if self.batch else ""
        return f"{prefix}{self.m}x{self.n}x{self.k}:{self.layout}"


def _square(size: int, layout: str, why: str) -> Shape:
    kind = "tiny" if size <= 32 else "square"
    return Shape(f"{kind}_{size}_{layout.lower()}", size, size, size, layout, kind, why)


def _linear(name: str, m: int, n: int, k: int, why: str) -> Shape:
    return Shape(f"{name}_m{m}", m, n, k, "NT", "linear", why)


def _backward(name: str, m: int, out_features: int, in_features: int, why: str) -> tuple[Shape, Shape]:
    return (
        Shape(f"{name}_m{m}_dx", m, in_features, out_features, "NN", "backward", f"{why}, gradient of the input"),
        Shape(
            f"{name}_m{m}_dw",
            out_features,
            in_features,
            m,
            "TN",
            "backward",
            f"{why}, gradient of the weight",
        ),
    )


SHAPES: tuple[Shape, ...] = (
    # Bounded by the cost of the call, not by arithmetic.
    _square(4, "NN", "host cost of a call"),
    _square(8, "NN", "less than one micro-tile"),
    _square(16, "NT", "one vector wide"),
    _square(32, "NN", "a few micro-tiles"),
    Shape("tiny_1x1x1", 1, 1, 1, "NN", "tiny", "the smallest product"),
    Shape("tiny_4x32x32", 4, 32, 32, "NT", "tiny", "a small linear layer on a small batch"),
    Shape("tiny_32x10x64", 32, 10, 64, "NT", "tiny", "handwritten digits straight to 10 classes"),
    # Squares.
    _square(64, "NN", "smallest with no excuse"),
    _square(96, "NN", "not a power of two"),
    _square(128, "NN", "fits the first-level cache"),
    _square(256, "NN", "fits the second-level cache"),
    _square(384, "NT", "not a power of two"),
    _square(512, "NN", "one block tile per thread"),
    _square(512, "TN", "column-major A"),
    _square(768, "NN", "not a power of two"),
    _square(1024, "NN", "the reference point of the speed goals"),
    _square(1024, "NT", "the reference point of the speed goals"),
    _square(1024, "TN", "the reference point of the speed goals"),
    _square(1024, "TT", "both operands transposed"),
    _square(2048, "NN", "larger than the caches; rows a power of two apart"),
    _square(2048, "NT", "larger than the caches; rows a power of two apart"),
    _square(2048, "TN", "larger than the caches; rows a power of two apart"),
    # Odd and unaligned.
    Shape("odd_63", 63, 63, 63, "NN", "odd", "one less than a power of two"),
    Shape("odd_65", 65, 65, 65, "NN", "odd", "one more than a power of two"),
    Shape("odd_127", 127, 127, 127, "NT", "odd", "one less than a power of two"),
    Shape("odd_255", 255, 255, 255, "TN", "odd", "one less than a power of two"),
    Shape("odd_257", 257, 257, 257, "NN", "odd", "one more than a power of two"),
    Shape("odd_509x521x503", 509, 521, 503, "NN", "odd", "primes: every edge tile is partial"),
    Shape("odd_1000x1001x999", 1000, 1001, 999, "NN", "odd", "no dimension is a multiple of a vector"),
    Shape("odd_1009x1013x1019", 1009, 1013, 1019, "NT", "odd", "primes: every edge tile is partial"),
    # Linear layers of real models, forward: F.linear(x, w).
    _linear("digits_hidden", 128, 256, 64, "MLP on 8x8 images"),
    _linear("digits_classes", 128, 10, 256, "MLP on 8x8 images, 10 classes"),
    _linear("bert_attention", 1, 768, 768, "BERT-base, one token"),
    _linear("bert_attention", 128, 768, 768, "BERT-base, one sentence"),
    _linear("bert_attention", 512, 768, 768, "BERT-base, longest sentence"),
    _linear("bert_ffn_up", 32, 3072, 768, "BERT-base, short sentence"),
    _linear("bert_ffn_up", 128, 3072, 768, "BERT-base, known weak for the vendor in bf16"),
    _linear("bert_ffn_up", 512, 3072, 768, "BERT-base, longest sentence"),
    _linear("bert_ffn_down", 1, 768, 3072, "BERT-base, one token"),
    _linear("bert_ffn_down", 128, 768, 3072, "BERT-base, one sentence"),
    _linear("bert_ffn_down", 512, 768, 3072, "BERT-base, longest sentence"),
    _linear("gpt2_vocab", 1, 50257, 768, "GPT-2, next token; the vocabulary is odd"),
    _linear("gpt2_vocab", 8, 50257, 768, "GPT-2, next token of 8 sequences"),
    _linear("vit_qkv", 197, 2304, 768, "ViT-B/16, 196 patches and the class token"),
    _linear("vit_ffn_up", 197, 3072, 768, "ViT-B/16"),
    _linear("vit_large_ffn_down", 197, 1024, 4096, "ViT-L/16"),
    _linear("llama_attention", 1, 4096, 4096, "Llama-7B, decoding: bound by memory"),
    _linear("llama_attention", 16, 4096, 4096, "Llama-7B, decoding 16 sequences"),
    _linear("llama_attention", 128, 4096, 4096, "Llama-7B, prompt"),
    _linear("llama_ffn_up", 1, 11008, 4096, "Llama-7B, decoding: bound by memory"),
    _linear("llama_ffn_up", 16, 11008, 4096, "Llama-7B, decoding 16 sequences"),
    _linear("llama_ffn_up", 128, 11008, 4096, "Llama-7B, prompt"),
    _linear("llama_ffn_down", 1, 4096, 11008, "Llama-7B, decoding: bound by memory"),
    _linear("llama_ffn_down", 128, 4096, 11008, "Llama-7B, prompt"),
    # Their backward.
    *_backward("digits_hidden", 128, 256, 64, "MLP on 8x8 images"),
    *_backward("bert_attention", 128, 768, 768, "BERT-base"),
    *_backward("bert_ffn_up", 128, 3072, 768, "BERT-base"),
    *_backward("bert_ffn_down", 512, 768, 3072, "BERT-base"),
    *_backward("vit_ffn_up", 197, 3072, 768, "ViT-B/16"),
    *_backward("gpt2_vocab", 8, 50257, 768, "GPT-2"),
    *_backward("llama_ffn_up", 128, 11008, 4096, "Llama-7B"),
    # Few rows or few columns.
    Shape("skinny_m1", 1, 4096, 4096, "NN", "skinny", "vector times matrix, rows of B contiguous"),
    Shape("skinny_m2", 2, 1000, 1000, "NN", "skinny", "two rows, not a power of two"),
    Shape("skinny_m4", 4, 2048, 2048, "NT", "skinny", "four rows"),
    Shape("skinny_m8", 8, 1024, 4096, "NN", "skinny", "eight rows"),
    Shape("skinny_m16", 16, 4096, 1024, "TN", "skinny", "sixteen rows of a column-major A"),
    Shape("skinny_n1", 4096, 1, 4096, "NN", "skinny", "matrix times vector"),
    Shape("skinny_n1_tn", 4096, 1, 4096, "TN", "skinny", "column-major matrix times vector"),
    Shape("skinny_n4", 4096, 4, 1024, "NT", "skinny", "four columns"),
    Shape("skinny_n16", 4096, 16, 256, "NN", "skinny", "sixteen columns"),
    Shape("tall_4096x64x64", 4096, 64, 64, "NN", "skinny", "tall, known weak for the vendor in bf16"),
    Shape("tall_20000x32x32", 20000, 32, 32, "NT", "skinny", "tall and thin: per-point layers"),
    # Long sums, small outputs.
    Shape("long_k_64", 64, 64, 65536, "NN", "long_k", "too few output tiles for the threads"),
    Shape("long_k_64_tn", 64, 64, 65536, "TN", "long_k", "gradient of a small weight over many samples"),
    Shape("long_k_256", 256, 256, 16384, "TN", "long_k", "gradient of a weight over many samples"),
    Shape("long_k_16", 16, 16, 1_000_000, "NT", "long_k", "a million terms per output"),
    Shape("long_k_1", 1, 1, 1_000_000, "NN", "long_k", "a dot product"),
    # Batches.
    Shape("batch_64x64", 64, 64, 64, "NN", "batch", "many small products", batch=64),
    Shape("batch_32x128", 128, 128, 128, "NN", "batch", "medium products", batch=32),
    Shape("batch_8x256", 256, 256, 256, "NT", "batch", "few large products", batch=8),
    Shape("batch_scores", 128, 128, 64, "NT", "batch", "attention scores: 8 sentences, 12 heads", batch=96),
    Shape("batch_values", 128, 64, 128, "NN", "batch", "attention values: 8 sentences, 12 heads", batch=96),
    Shape("batch_100x33", 33, 47, 29, "NN", "batch", "small and odd", batch=100),
)

KINDS = tuple(dict.fromkeys(shape.kind for shape in SHAPES))


def parse_shape(text: str) -> Shape:
    """The shape that ``MxNxK:NT`` or ``BATCHxMxNxK:NT`` describes; without a layout it is NN."""
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)x(\d+)x(\d+)(?::([NT]{2}))?", text)
    if match is None:
        raise ValueError(
            f"shape: got {text!r}, expected MxNxK or BATCHxMxNxK, with an optional layout as in 64x32x16:NT"
        )
    batch, m, n, k = (int(group or 0) for group in match.groups()[:4])
    return Shape(text, m, n, k, match.group(5) or "NN", "given", "given on the command line", batch)


# What a GPU is measured on: larger, the same kinds of use. Layers forward (NT) and their gradients (NN, TN).
_GPU_LAYERS = (
    ("bert_ffn_up", 3072, 768),
    ("bert_ffn_down", 768, 3072),
    ("llama_attention", 4096, 4096),
    ("llama_ffn_up", 11008, 4096),
    ("llama_ffn_down", 4096, 11008),
)


def _gpu(kind: str, why: str, *texts: str) -> tuple[Shape, ...]:
    rows = (parse_shape(text) for text in texts)
    return tuple(Shape(row.name, row.m, row.n, row.k, row.layout, kind, why, row.batch) for row in rows)


def _cubes(*sizes: int, layouts: tuple[str, ...] = ("NT", "NN", "TN")) -> list[str]:
    return [f"{size}x{size}x{size}:{layout}" for size in sizes for layout in layouts]


def gpu_shapes() -> tuple[Shape, ...]:
    """The rows that benchmarks/bench_gpu.py measures."""
    rows = (
        *_gpu("large", "bound by arithmetic", *_cubes(8192, 4096), "8192x1280x8192:NT", "4000x4000x4000:NN"),
        *_gpu("square_2048", "few waves of block tiles", *_cubes(2048)),
        *_gpu("medium", "one wave or less", *_cubes(1024, 512), "768x768x768:NT", "1000x1000x1000:NN"),
        *_gpu("small", "bound by latency", *_cubes(256, 128, layouts=("NN", "NT"))),
    )
    for name, out_features, in_features in _GPU_LAYERS:
        forward = [f"{m}x{out_features}x{in_features}:NT" for m in (128, 512, 2048, 8192)]
        rows += _gpu("linear", f"{name}, forward", *forward)
    for name, out_features, in_features in _GPU_LAYERS[::2]:
        rows += _gpu("linear", f"{name}, gradient of the input", f"2048x{in_features}x{out_features}:NN")
        rows += _gpu("linear", f"{name}, gradient of the weight", f"{out_features}x{in_features}x2048:TN")
    weights = ("4096x4096", "14336x4096", "4096x14336", "1024x1024", "50257x768")
    return rows + (
        *_gpu("m1", "a vector: bound by memory", *(f"1x{weight}:NT" for weight in weights), "1x4096x4096:NN"),
        *_gpu("few_rows", "decoding: bound by memory", *(f"{m}x4096x4096:NT" for m in (2, 4, 8, 16, 32, 64))),
        *_gpu("few_rows", "decoding: bound by memory", "8x4096x14336:NT", "64x4096x14336:NT", "16x11008x4096:NT"),
        *_gpu("few_rows", "decoding: bound by memory", "32x3072x768:NT", "16x4096x4096:NN"),
        *_gpu("few_columns", "bound by memory", "4096x1x4096:NN", "4096x16x4096:NN", "8192x64x8192:NT"),
        *_gpu("unaligned", "no 16-byte rows", *_cubes(4095), "3001x2999x1537:NN", "1001x1003x999:NN"),
        *_gpu("unaligned", "the vocabulary of GPT-2", "4096x50257x768:NT", "4096x768x50257:NN"),
        *_gpu("split_k", "few outputs, long sums", "64x64x65536:NN", "64x64x65536:TN", "16x16x65536:NT"),
        *_gpu("split_k", "few outputs, long sums", "256x256x16384:TN", "256x256x16384:NT"),
        *_gpu("batch", "one launch for all", "8x128x128x128:NN", "64x128x128x128:NN", "96x128x128x64:NT"),
        *_gpu("batch", "one launch for all", "32x256x256x256:NN", "16x512x512x512:NN", "8x1024x1024x1024:NN"),
        *_gpu("batch", "one launch for all", "64x1024x1024x1024:NT"),
    )


def random_shapes(seed: int, max_flops: float) -> Iterator[Shape]:
    """Rows without end that nobody chose: what a table of shapes hides. Sizes are spread evenly over their logarithms.

    A row's kind says what it was drawn as; rows of more than ``max_flops`` are left out.
    """
    random = Random(seed)

    def draw(least: int, most: int, multiple: int = 1) -> int:
        size = int(math.exp(random.uniform(math.log(least), math.log(most + 1))))
        return max(multiple, size // multiple * multiple)

    sizes_of_layers = (512, 768, 1024, 1280, 2048, 3072, 3584, 4096, 5120, 8192)
    draws = {
        "any": lambda: (0, draw(32, 8192), draw(32, 8192), draw(32, 8192)),
        "even": lambda: (0, *(draw(32, 8192, 2) for _ in range(3))),
        "multiple_of_8": lambda: (0, *(draw(32, 8192, 8) for _ in range(3))),
        "multiple_of_64": lambda: (0, *(draw(32, 8192, 64) for _ in range(3))),
        "cube": lambda: (0, *(draw(100, 6000, 4),) * 3),
        "layer": lambda: (0, draw(16, 10000), random.choice(sizes_of_layers), random.choice(sizes_of_layers)),
        "few_rows": lambda: (0, draw(1, 64), draw(256, 30000, 8), draw(256, 16384, 8)),
        "long_k": lambda: (0, draw(8, 512), draw(8, 512), draw(4096, 200000, 8)),
        "batch": lambda: (draw(2, 200), *(draw(24, 600, 8) for _ in range(3))),
    }
    while True:
        kind = random.choice(list(draws))
        batch, m, n, k = draws[kind]()
        layout = random.choice(("NT", "NN", "TN", "NT", "NN", "TN", "TT"))
        shape = Shape(kind, m, n, k, layout, kind, "drawn at random", batch)
        if shape.flops <= max_flops:
            yield shape


def select_shapes(names: list[str]) -> list[Shape]:
    """Rows of the table by name, by kind or by ``cheap``, in table order, then the shapes written as
    MxNxK:NT.

    Raises ValueError for a word that is none of these.
    """
    chosen, given = set(), []
    for name in names:
        rows = [s for s in SHAPES if name in (s.name, s.kind) or (name == "cheap" and s.is_cheap)]
        if rows:
            chosen.update(rows)
        elif re.match(r"\d", name):
            given.append(parse_shape(name))
        else:
            raise ValueError(
                f"rows: got {name!r}, expected a row name, one of {', '.join((*KINDS, 'cheap'))}, or MxNxK:NT"
            )
    return [shape for shape in SHAPES if shape in chosen] + given


def make_operands(shape: Shape, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B, random in [-1, 1], of shape ``(batch, m, k)`` and ``(batch, k, n)`` (no batch dimension if
    it is 0).
    """
    generator = torch.Generator().manual_seed(seed)
    batch = (shape.batch,) if shape.batch else ()

    def operand(rows: int, columns: int, is_transposed: bool) -> torch.Tensor:
        stored = (columns, rows) if is_transposed else (rows, columns)
        values = torch.empty(*batch, *stored, dtype=dtype).uniform_(-1, 1, generator=generator)
        return values.mT if is_transposed else values

    return (
        operand(shape.m, shape.k, shape.layout[0] == "T"),
        operand(shape.k, shape.n, shape.layout[1] == "T"),
    )
