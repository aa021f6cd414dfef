"""The lane layouts of csrc/platform/mma_layout.h against the vendors' formulas, written here once more by element.

NVIDIA: PTX ISA, matrix fragments of mma.m16n8k16, m16n8k8 (tf32), m8n8k4 (f64). AMD: matrix instruction calculator,
instruction set documents of CDNA3, RDNA3 and RDNA4.
"""

import os
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"


def m16n8k16(operand, lane, element):
    """Row and k (column and k, row and column) of a 16-bit element, in the order of the PTX ISA's a0..a7, b0..b3."""
    group, member = lane >> 2, lane % 4
    if operand == "A":
        return group + (8 if element in (2, 3, 6, 7) else 0), member * 2 + (element & 1) + (8 if element >= 4 else 0)
    if operand == "B":
        return group, member * 2 + (element & 1) + (8 if element >= 2 else 0)
    return group + (8 if element >= 2 else 0), member * 2 + (element & 1)


def m16n8k8(operand, lane, element):
    """tf32: a0..a3, b0, b1."""
    group, member = lane >> 2, lane % 4
    if operand == "A":
        return group + (8 if element in (1, 3) else 0), member + (4 if element >= 2 else 0)
    return (group, member + 4 * element) if operand == "B" else m16n8k16("C", lane, element)


def m8n8k4(operand, lane, element):
    if operand == "C":
        return lane >> 2, lane % 4 * 2 + element
    return lane >> 2, lane % 4


def mfma(elements, is_f64=False):
    def formula(operand, lane, element):
        if operand == "C":
            return (4 * element + lane // 16 if is_f64 else 4 * (lane // 16) + element), lane % 16
        return lane % 16, elements * (lane // 16) + element

    return formula


def rdna3(operand, lane, element):
    return (2 * element + lane // 16, lane % 16) if operand == "C" else (lane % 16, element)


def rdna4(operand, lane, element):
    return (8 * (lane // 16) + element, lane % 16) if operand == "C" else (lane % 16, 8 * (lane // 16) + element)


# layout: formula, elements of a word, copies of each element of A and B among the lanes
TABLE = {
    "m16n8": [(m16n8k16, 2, 1), (m16n8k8, 1, 1)],
    "m8n8": [(m8n8k4, 1, 1)],
    "mfma_f32": [(mfma(1), 1, 1)],
    "mfma_f64": [(mfma(1, is_f64=True), 1, 1)],
    "mfma_f16": [(mfma(4), 2, 1)],
    "rdna3": [(rdna3, 2, 2)],
    "rdna4": [(rdna4, 2, 1)],
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    program = tmp_path_factory.mktemp("layout") / "layout"
    cxx = os.environ.get("CXX", "g++").split()
    subprocess.run([*cxx, "-std=c++17", f"-I{CSRC}", HERE / "mma_layout.cpp", "-o", program], check=True, timeout=60)
    places, shapes = defaultdict(dict), {}
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        layout, operand, lane, register, *numbers = line.split()
        if operand == "shape":
            shapes[layout] = tuple(map(int, numbers))
        else:
            places[layout][operand, int(lane), int(register)] = tuple(map(int, numbers))
    return places, shapes


@pytest.mark.parametrize("layout", TABLE)
def test_layout_is_the_published_one(layout, printed):
    places, shapes = printed[0][layout], printed[1][layout]
    for formula, elements, copies in TABLE[layout]:
        for (operand, lane, register), (row, place) in places.items():
            if operand == "C":
                assert (row, place) == formula("C", lane, register)
                continue
            for half in range(elements):
                assert (row, elements * place + half) == formula(operand, lane, elements * register + half)
        m, n, words = shapes
        for operand, expected in (("A", m * words), ("B", n * words), ("C", m * n)):
            found = [value for (of, *_), value in places.items() if of == operand]
            assert len(set(found)) == expected, f"{operand} is not covered"
            assert len(found) == expected * (copies if operand != "C" else 1)
