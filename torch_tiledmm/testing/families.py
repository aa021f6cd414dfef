"""Families of products that nobody chose one by one, with the bar of each: what a table of shapes hides.

A family is drawn from a seed. Shapes that kernels or models are tuned on come from other seeds than those that results
are published of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from .shapes import Shape

_MAX_FLOPS = {"fp64": 6e10, "fp32": 3e11}  # of a product; more take too long
_MAX_FLOPS_OF_OTHERS = 1e12
_MAX_WEIGHT = 1 << 28  # elements of the matrix that one or few rows meet: half a gigabyte in 16 bits


@dataclass(frozen=True)
class Family:
    """How products are drawn, and what is asked of them: the least geometric mean of the vendor's time over ours, and
    the largest share of rows below 0.9. Larger weights than ``most_weights`` elements are left out."""

    precisions: tuple[str, ...]
    draw: Callable[[Random], Shape]
    why: str
    least_geomean: float
    most_below: float
    most_weights: int = _MAX_WEIGHT


def _size(random: Random, least: int, most: int, multiple: int = 1) -> int:
    """Spread evenly over the logarithm."""
    size = int(math.exp(random.uniform(math.log(least), math.log(most + 1))))
    return max(-(-least // multiple), size // multiple) * multiple


def _shape(kind: str, m: int, n: int, k: int, layout: str) -> Shape:
    return Shape(kind, m, n, k, layout, kind, "drawn at random")


def _layer(random: Random, rows: int, features: tuple[int, int]) -> Shape:
    """A layer of (in, out) features: forward, or the gradient of its input or of its weight."""
    in_features, out_features = features
    return random.choice(
        (
            _shape("forward", rows, out_features, in_features, "NT"),
            _shape("dX", rows, in_features, out_features, "NN"),
            _shape("dW", out_features, in_features, rows, "TN"),
        )
    )


def _base_layer(random: Random, most_rows: int = 10000) -> Shape:
    width = random.choice((768, 1024))
    features = random.choice(((1, 1), (1, 3), (1, 4), (4, 1)))
    # Sentences of 128 and 512 tokens, images of 197, or any number.
    rows = _size(random, 1000, most_rows, random.choice((1, 64, 128, 197, 512)))
    return _layer(random, rows, (features[0] * width, features[1] * width))


# Width, width of keys and values, width of the feed-forward layers: Llama 3.2 1B and 3B, Llama 2 7B, Llama 3 8B and
# 70B; Qwen 2.5 0.5B, 1.5B, 7B, Qwen 3 8B and 14B (config.json of each).
_MODELS = (
    (2048, 512, 8192),
    (3072, 1024, 8192),
    (4096, 4096, 11008),
    (4096, 1024, 14336),
    (8192, 1024, 28672),
    (896, 128, 4864),
    (1536, 256, 8960),
    (3584, 512, 18944),
    (4096, 1024, 12288),
    (5120, 1024, 17408),
)


def _model_layer(random: Random) -> Shape:
    width, keys, inner = random.choice(_MODELS)
    features = random.choice(((width, width), (width, keys), (width, inner), (inner, width)))
    return _layer(random, _size(random, 512, 16384, random.choice((1, 8, 256))), features)


def _mid(random: Random) -> Shape:
    m, n, k = (_size(random, 512, 2500, 8) for _ in range(3))
    return _shape("mid", m, n, k, random.choice(("NT", "NN", "TN")))


def _long_k(random: Random) -> Shape:
    m, n = (_size(random, 8, 512, 8) for _ in range(2))
    return _shape("long_k", m, n, _size(random, 4096, 200000, 8), random.choice(("NT", "NN", "TN", "TT")))


def _rows(random: Random, least: int, most: int) -> Shape:
    m = random.randint(least, most)
    n, k = _size(random, 256, 60000, 8), _size(random, 256, 16384, 8)
    return _shape("m1" if most == 1 else "rows_2_to_16", m, n, k, random.choice(("NT", "NN", "TN", "TT")))


# Tokens of Llama 2, GPT-NeoX, Llama 3, DeepSeek-V3, Qwen 2.5 to 3B and from 7B on (config.json of each).
_VOCABULARIES = (32000, 50432, 128256, 129280, 151936, 152064)


def _lm_head(random: Random) -> Shape:
    features = random.choice((896, 1536, 2048, 3072, 3584, 4096)), random.choice(_VOCABULARIES)
    return _layer(random, _size(random, 256, 8192, random.choice((1, 8, 256))), features)


def _router(random: Random) -> Shape:
    """The layer that chooses a token's experts."""
    features = random.choice((2048, 2880, 4096, 5120, 7168)), random.choice((8, 16, 32, 60, 64, 128, 160, 256))
    return _layer(random, _size(random, 256, 16384, random.choice((1, 8, 256))), features)


# in_features, out_features of DeepSeek-V3's layers (DeepGEMM tests/generators.py, without what is grouped).
_DEEPSEEK_V3 = (
    (7168, 2112),
    (7168, 576),
    (1536, 24576),
    (512, 32768),
    (16384, 7168),
    (7168, 4096),
    (2048, 7168),
    (7168, 256),
    (7168, 129280),
)


def _deepseek_v3(random: Random) -> Shape:
    return _layer(random, _size(random, 64, 8192, random.choice((1, 8, 128))), random.choice(_DEEPSEEK_V3))


# m, n, k and layout of KernelBench's products of two matrices (level 1, problems 1, 2, 4, 6 to 11 and 16 to 18).
_KERNELBENCH = (
    (4096, 4096, 4096, "NN"),
    (2048, 4096, 8192, "NN"),
    (2048, 1, 1048576, "NN"),
    (256, 256, 524288, "NN"),
    (32768, 32768, 64, "NN"),
    (8205, 5921, 2949, "NN"),
    (32768, 32768, 32, "NN"),
    (16384, 768, 2048, "NN"),
    (1048576, 768, 256, "NN"),
    (2048, 4096, 8192, "TN"),
    (2048, 4096, 8192, "NT"),
    (2048, 4096, 8192, "TT"),
)


def _kernelbench(random: Random) -> Shape:
    """A problem as it is, or one like it, whose sides above 64 are up to four times as short."""
    *sides, layout = random.choice(_KERNELBENCH)
    if random.random() < 0.7:
        multiple = random.choice((1, 8, 64))
        sides = [_size(random, side // 4, side, multiple) if side > 64 else side for side in sides]
    m, n, k = sides
    return _shape("kernelbench", m, n, k, layout)


def _fp64(random: Random) -> Shape:
    return random.choice((_base_layer, _model_layer, _mid, _long_k))(random)


FAMILIES = {
    "layers_base": Family(("bf16", "fp16"), _base_layer, "layers 768 and 1,024 wide, 1,000 to 10,000 rows", 1.0, 0.03),
    "mid": Family(("bf16", "fp16"), _mid, "each side 512 to 2,500, a multiple of 8", 1.0, 0.05),
    "layers_llama": Family(("bf16", "fp16"), _model_layer, "layers of Llama and Qwen, from 512 rows on", 1.0, 0.02),
    "long_k": Family(("bf16", "fp16"), _long_k, "few outputs, k from 4,096 on", 1.0, 0.10),
    "one_row": Family(
        ("bf16", "fp16", "fp32", "fp64"), partial(_rows, least=1, most=1), "one row, all layouts", 1.0, 0.05
    ),
    "rows_2_to_16": Family(("fp32", "fp64"), partial(_rows, least=2, most=16), "2 to 16 rows, all layouts", 1.0, 0.05),
    "fp64": Family(("fp64",), _fp64, "layers, sides of 512 to 2,500, few outputs with long k", 0.98, 0.05),
    "lm_heads": Family(("bf16", "fp16"), _lm_head, "layers to vocabularies of 32,000 to 152,064", 1.0, 0.03, 1 << 30),
    "routers": Family(("bf16", "tf32", "fp32"), _router, "layers to 8 to 256 experts", 1.0, 0.03),
    "deepseek_v3": Family(("bf16", "fp16"), _deepseek_v3, "layers of DeepSeek-V3", 1.0, 0.03, 1 << 30),
    "kernelbench": Family(("bf16", "fp16", "fp32"), _kernelbench, "KernelBench's products and shorter ones", 1.0, 0.03),
    "bert_rows": Family(
        ("bf16", "fp16"), partial(_base_layer, most_rows=2000), "layers_base of at most 2,000 rows", 1.0, 0.03
    ),
}


def family_products(name: str, seed: int) -> Iterator[tuple[str, Shape]]:
    """Precision and shape of the family's products, without end."""
    family = FAMILIES[name]
    random = Random(f"{name} {seed}")
    while True:
        precision, shape = random.choice(family.precisions), family.draw(random)
        is_quick = shape.flops <= _MAX_FLOPS.get(precision, _MAX_FLOPS_OF_OTHERS)
        if is_quick and shape.n * shape.k <= family.most_weights:
            yield precision, shape
