"""Code objects for AMD GPUs: kernels with their descriptors, arguments and the text of their instructions.

Source: LLVM, "User Guide for AMDGPU Backend": ELF code object, kernel descriptor, code object V5 and V6 metadata.
"""

import functools
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path


def unpack(data: bytes, at: int = 0):
    """The value at `at` and the place after it: MessagePack, as far as the metadata of kernels uses it."""
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in (0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3):
        size = 1 << (tag & 3)
        return int.from_bytes(data[at : at + size], "big", signed=tag >= 0xD0), at + size
    if tag < 0xA0:
        length = tag & 15
    elif tag < 0xC0:
        length = tag & 31
    else:
        size = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}[tag]
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    if 0xA0 <= tag < 0xC0 or tag in (0xD9, 0xDA, 0xDB):
        return data[at : at + length].decode(), at + length
    is_map = tag < 0x90 or tag in (0xDE, 0xDF)
    values = []
    for _ in range(2 * length if is_map else length):
        value, at = unpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if is_map else values), at


@dataclass
class Kernel:
    name: str
    metadata: dict
    descriptor: bytes
    lines: list  # (address, text)
    arch: str  # as in gfx942
    program: object = None  # the interpreter's, once it is decoded

    @property
    def shared_bytes(self) -> int:
        return struct.unpack_from("<I", self.descriptor, 0)[0]


@dataclass
class CodeObject:
    path: Path
    kernels: dict[str, Kernel]

    def find(self, *parts: str) -> Kernel:
        """The kernel whose (mangled) name has all these parts."""
        found = [kernel for name, kernel in self.kernels.items() if all(part in name for part in parts)]
        if len(found) != 1:
            raise KeyError(f"{len(found)} kernels with {parts} among {sorted(self.kernels)}")
        return found[0]


def elf_sections(data: bytes):
    """(type, address, offset, size, linked section) of each section of a 64-bit ELF file."""
    start, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    for i in range(count):
        kind, _, address, offset, length, link = struct.unpack_from("<IQQQQI", data, start + i * size + 4)
        yield kind, address, offset, length, link


@functools.lru_cache(maxsize=8)  # tests load an object again for each of their edits
def disassembly(path: Path, data: bytes, arch: str) -> dict[str, list[tuple[int, str]]]:
    """The lines of each kernel; `data`: what is in the file."""
    objdump = shutil.which("llvm-objdump-22") or shutil.which("llvm-objdump") or "llvm-objdump-22"
    command = [objdump, "-d", "--no-show-raw-insn", path]
    if arch.startswith("gfx12"):  # halves of registers, which not every compiler uses there
        command.append("--mattr=+real-true16")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines: dict[str, list[tuple[int, str]]] = {}
    for line in text.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            current = lines.setdefault(match[1], [])
        elif match := re.match(r"\s+(\S.*?)\s*// ([0-9A-F]+):", line):
            current.append((int(match[2], 16), match[1]))
    return lines


def load(path, edit=None) -> CodeObject:
    """`edit` changes the lines [(address, text)] of a kernel, given with its name: for tests with mistakes in them."""
    data = Path(path).read_bytes()
    sections = list(elf_sections(data))
    symbols, metadata = {}, {}
    for kind, _, offset, length, link in sections:
        if kind == 2:  # symbols
            for at in range(offset, offset + length, 24):
                name, section, value = struct.unpack_from("<I2xHQ", data, at)
                text = data[sections[link][2] + name :].split(b"\0", 1)[0].decode()
                symbols[text] = (section, value)
        elif kind == 7:  # note: sizes of name and description, type, name padded to 4 bytes, description
            name_size, description_size, _ = struct.unpack_from("<III", data, offset)
            at = offset + 12 + -(-name_size // 4) * 4
            metadata = unpack(data[at : at + description_size])[0]
    arch = metadata["amdhsa.target"].rsplit("-", 1)[1].split(":")[0]
    lines = disassembly(Path(path), data, arch)
    kernels = {}
    for description in metadata["amdhsa.kernels"]:
        name = description[".name"]
        section, value = symbols[description[".symbol"]]
        at = value - sections[section][1] + sections[section][2]
        body = edit(name, lines[name]) if edit else lines[name]
        kernels[name] = Kernel(name, description, data[at : at + 64], body, arch)
    return CodeObject(Path(path), kernels)
