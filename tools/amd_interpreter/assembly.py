"""The text of an instruction, as llvm-objdump writes it: mnemonic, operands, modifiers."""

import re
from dataclasses import dataclass

import numpy as np

from .instructions import F16, F32, F64, U16, U32, U64, UnknownInstruction, signed

NUM_VGPRS, NUM_SGPRS = 512, 128  # AGPRs are the upper half
VCC, TTMP, M0, EXEC = 106, 108, 124, 126
NAMED_SGPRS = {"vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "m0": (M0, 1)}
NAMED_SGPRS |= {"exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1)}
NAMED_SGPRS |= {"flat_scratch": (102, 2), "xnack_mask": (104, 2)}
NAMED_SGPRS |= {f"ttmp{i}": (TTMP + i, 1) for i in range(16)}


@dataclass
class Operand:
    text: str
    kind: str  # v: VGPR or AGPR; s: SGPR; constant; off
    index: int = 0
    count: int = 1
    negative: bool = False
    absolute: bool = False
    sign_extended: bool = False
    half: int | None = None  # which 16 bits, where the text says so

    @property
    def bits(self) -> int:
        """One bit for each register, those of all kinds in one number."""
        if self.kind not in "vs":
            return 0
        return ((1 << self.count) - 1) << (self.index + (NUM_VGPRS if self.kind == "s" else 0))


REGISTER = re.compile(r"([vas])(?:(\d+)(?:\.([lh]))?|\[(\d+)(?::(\d+))?\])$")
NUMBER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?)$")


def parse_operand(text: str) -> Operand:
    text, flags = text.strip(), {}
    if match := re.match(r"sext\((.*)\)$", text):
        text, flags["sign_extended"] = match[1], True
    if text.startswith("-") and not NUMBER.match(text):
        text, flags["negative"] = text[1:], True
    if text.startswith("neg("):
        text, flags["negative"] = text[4:-1], True
    if match := re.match(r"(?:\||abs\()(.*)(?:\||\))$", text):
        text, flags["absolute"] = match[1], True
    if match := REGISTER.match(text):
        first = int(match[2] or match[4])
        count = int(match[5]) - first + 1 if match[5] else 1
        kind = "s" if match[1] == "s" else "v"
        if match[3]:
            flags["half"] = "lh".index(match[3])
        return Operand(text, kind, first + (256 if match[1] == "a" else 0), count, **flags)
    if text in NAMED_SGPRS:
        return Operand(text, "s", *NAMED_SGPRS[text], **flags)
    if NUMBER.match(text):
        return Operand(text, "constant", **flags)
    if text == "src_shared_base":  # where LDS begins among flat addresses: no address of memory
        return Operand(text, "constant")
    if text == "null":  # reads as 0; what is written there is lost
        return Operand("0", "constant")
    if text == "off":
        return Operand(text, "off")
    raise UnknownInstruction(f"operand {text}")


def constant_bits(text: str, kind: str) -> int:
    """A constant as bits of an operand. Decimals are inline integers, extended by their sign; numbers with a point are
    inline constants of the operand's width, of integer operands as well; hexadecimals are literals of 32 bits."""
    size = int(kind[1:])
    if text == "src_shared_base":
        if size != 64:
            raise UnknownInstruction(f"{text} of {size} bits")
        return 1 << 48
    if "." in text or "e" in text and not text.startswith("0x"):
        dtype, bits = {16: (F16, U16), 32: (F32, U32), 64: (F64, U64)}[size]
        return int(np.array([text], F64).astype(dtype).view(bits)[0])
    value = int(text, 0)
    if text.startswith("0x") and size == 64 and value <= 0xFFFFFFFF:
        if kind == "f64":
            value <<= 32
        elif kind == "i64":
            value = signed(value)
        elif value >> 31:
            raise UnknownInstruction(f"literal {text} of a 64-bit operand")
    return value & ((1 << size) - 1)


def split_text(text: str):
    """Mnemonic, operands and modifiers of a line."""
    name, _, rest = text.partition(" ")
    operands, modifiers = [], {}
    for part in re.split(r",(?![^\[]*\])\s*", rest.strip()):
        words = part.split()
        for word in words[1:]:
            key, _, value = word.partition(":")
            modifiers[key] = [int(x) for x in value[1:-1].split(",")] if value.startswith("[") else value or True
        operands += words[:1]
    return name, operands, modifiers


def register_names(bits: int) -> str:
    names = []
    for i in range(bits.bit_length()):
        if bits >> i & 1:
            names.append(f"v{i}" if i < 256 else f"a{i - 256}" if i < NUM_VGPRS else f"s{i - NUM_VGPRS}")
    return " ".join(names)
