"""What the tests and the benchmarks share: the shapes, the reference with its error bounds, and the clock."""

from ..dispatch import LAYOUTS
from .reference import ACTIVATIONS, Expected, assert_close, expect_linear, expect_matmul
from .shapes import SHAPES, Shape, make_operands, parse_shape, select_shapes

__all__ = [
    "ACTIVATIONS",
    "LAYOUTS",
    "SHAPES",
    "Expected",
    "Shape",
    "assert_close",
    "expect_linear",
    "expect_matmul",
    "make_operands",
    "parse_shape",
    "select_shapes",
]
