"""Executes code objects for AMD's CDNA2 to 4 and RDNA3 and 4 on a CPU, from the text of their instructions.

    code = load("kernel.co")
    memory = Memory()
    a, c = memory.add("a", matrix), memory.add("c", result, writable=True)
    counts = run(code.find("copy"), grid=(2, 1, 1), block=(256, 1, 1), args=[a, c, 100], memory=memory)

The code object comes from clang, the text from llvm-objdump; what an instruction computes is in instructions.py and
rdna.py, what else depends on the chip in chips.py. Each instruction is decoded once, into a function over one set of
registers, which the waves of a workgroup share in turns: a wave runs until a barrier or its end, then the next one
does, in order or in an order drawn from a seed.

What is an error (a Fault names the kernel, the instruction, and where it matters lane and address):
 - a global access that is not wholly inside of one buffer, is not aligned, or writes to a buffer that is not writable;
 - LDS beyond the kernel's size, or not aligned;
 - a register read or overwritten while a load into it is outstanding;
 - a race: LDS that a wave reads or writes after another wrote it, or writes after another read it, without a barrier
   between them.
An instruction or a modifier without a meaning here raises UnknownInstruction when it is reached. LDS and registers hold
garbage at the start (nan in each format), not zeros.

Counters (ISA documents): on CDNA each vector memory instruction counts in vmcnt, stores as well, each LDS and scalar
load in lgkmcnt; RDNA3 has vscnt for stores, RDNA4 a counter for each of the four. Vector memory and LDS return in
order; scalar loads and flat accesses do not, so with one outstanding only a count of 0 says anything (LLVM inserts
waits by that rule, too). What a load brought is in its registers after the wait and not before. LDS is accessed as late
as the waits permit; global memory at once, since the accesses of a workgroup pass through one cache in order. RDNA3's
matrix instructions want the same A and B in lanes 0 to 15 and 16 to 31: that they are is checked.

Not modelled: time; the wait states between instructions that the ISA demands (matrix results, s_nop); caches and other
workgroups running at the same time; exceptions; modes other than round to nearest with denormals; scratch memory,
atomics, DPP, buffers with a stride. EXEC is honoured by v_accvgpr_read and _write, and ignored by matrix instructions.
The layout of descriptors, initial registers, arguments: LLVM, "User Guide for AMDGPU Backend", code object V5 and V6.
"""

import functools
import re
import struct
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from . import instructions as isa
from .assembly import (
    EXEC,
    M0,
    NUM_SGPRS,
    NUM_VGPRS,
    TTMP,
    VCC,
    Operand,
    constant_bits,
    parse_operand,
    register_names,
    split_text,
)
from .chips import CHIPS
from .code_object import CodeObject, Kernel, load
from .instructions import F16, F32, F64, I16, I32, I64, U16, U32, U64, UnknownInstruction
from .memory import COPY, GARBAGE, Fault, Memory, SharedMemory
from .rdna import renamed

__all__ = [
    "CodeObject",
    "Fault",
    "Kernel",
    "Machine",
    "Memory",
    "UnknownInstruction",
    "load",
    "run",
    "unknown_instructions",
]

CACHE_MODIFIERS = {"sc0", "sc1", "nt", "glc", "slc", "dlc", "off", "scope", "th"}
DTYPES = {"u32": U32, "i32": I32, "f32": F32, "u64": U64, "i64": I64, "f64": F64, "u16": U16, "i16": I16, "f16": F16}
AT_BARRIER, AT_END = -1, -2
# Hints, and cache control, which has no meaning without caches.
NO_EFFECT = {"s_nop", "s_sleep", "s_setprio", "s_dcache_wb", "buffer_wbl2", "buffer_inv", "buffer_invl2"}
NO_EFFECT |= {"buffer_wbinvl1", "buffer_wbinvl1_vol"}
NO_EFFECT |= {"s_clause", "s_delay_alu", "s_wait_alu", "s_waitcnt_depctr", "s_sendmsg", "s_sethalt", "s_wait_idle"}
NO_EFFECT |= {"s_set_inst_prefetch_distance", "s_prefetch_inst", "s_prefetch_data", "buffer_gl0_inv", "buffer_gl1_inv"}
NO_EFFECT |= {"global_inv", "global_wb", "global_wbinv", "v_nop"}


@dataclass
class Instruction:
    text: str
    uses: int  # registers that it reads or writes, as Operand.bits; loads check their destination themselves
    run: object
    reads: int = 0  # of them those behind the first operand


# ---- Registers and execution


@dataclass
class Access:
    """What one instruction of a wave asks of memory: its active lanes and, for each part of it, their addresses."""

    space: str  # global, lds
    size: int  # bytes of each lane and part
    lanes: np.ndarray
    addresses: list


@dataclass
class Wave:
    number: int
    vgprs: np.ndarray
    sgprs: np.ndarray
    scc: int = 0
    pc: int = 0
    queues: dict = field(default_factory=dict)  # counter -> accesses that are outstanding


class Machine:
    """One set of registers and the functions that instructions became. Registers lie as [lane][register], so that wider
    operands are views, too; a row is a little longer, lest all lanes of a register share a few sets of the cache."""

    def __init__(self, arch: str = "gfx942"):
        self.chip = CHIPS[arch]
        self.num_lanes = self.chip.lanes
        self.vgprs = empty_vgprs(self.num_lanes)
        self.num_used = NUM_VGPRS  # what is exchanged when another wave goes on
        self.sgprs = np.full(NUM_SGPRS, GARBAGE, U32)
        self.scalar = {32: memoryview(self.sgprs), 64: memoryview(self.sgprs.view(U64))}
        self.scc = [0]
        self.lanes = np.ones(self.num_lanes, bool)  # EXEC
        self.pending = 0
        self.counters = {name: deque() for name in self.chip.counters.values()}
        self.queues = {kind: self.counters[name] for kind, name in self.chip.counters.items()}
        self.memory, self.shared, self.wave_number = Memory(), SharedMemory(0), 0
        self.accessed = None  # what the last instruction asked of memory: an Access
        self.trace = None
        # Masks have one bit for each lane: pairs of SGPRs, or single ones.
        self.mask_size = self.num_lanes // 32
        self.masks, self.exec = self.scalar[self.num_lanes], EXEC // self.mask_size
        self.vcc = parse_operand("vcc" if self.mask_size == 2 else "vcc_lo")
        self.masks[self.exec] = (1 << self.num_lanes) - 1

    # -- Operands

    def vector_view(self, index: int, kind: str, half: int = 0) -> np.ndarray:
        dtype = DTYPES[kind]
        if kind.endswith("64"):
            return self.vgprs[:, index : index + 2].view(dtype)[:, 0]
        return self.vgprs.view(dtype)[:, 2 * index + half if kind.endswith("16") else index]

    def view(self, operand: Operand, kind: str, half: int = 0) -> np.ndarray:
        """The operand as array of all lanes, or of one element for all."""
        size = int(kind[1:])
        if operand.kind == "constant":
            bits = constant_bits(operand.text, kind)
            return np.array([bits], {16: U16, 32: U32, 64: U64}[size]).view(DTYPES[kind])
        if operand.kind not in "vs" or operand.count != max(1, size // 32):
            raise UnknownInstruction(f"operand {operand.text} as {kind}")
        if operand.kind == "v":
            return self.vector_view(operand.index, kind, half)
        elements = 32 // size if size < 32 else 1
        place = operand.index * elements + half if size <= 32 else operand.index // 2
        return self.sgprs.view(DTYPES[kind])[place : place + 1]

    def packed_view(self, operand: Operand, kind: str, low: int, high: int) -> np.ndarray:
        """Two elements for each lane: those of number `low` and `high` of the operand."""
        half = kind[1:]
        if operand.kind == "constant":
            bits = constant_bits(operand.text, "u32")
            if bits and (high or low or half == "f32" and operand.text.startswith("0x")):
                raise UnknownInstruction(f"constant {operand.text} of a packed operand")
            pair = np.full((1, 2), constant_bits(operand.text, half) if bits else 0, DTYPES[f"u{half[1:]}"])
            return pair.view(DTYPES[half])
        registers = self.vgprs if operand.kind == "v" else self.sgprs.reshape(1, -1)
        first = operand.index * (2 if half.endswith("16") else 1)
        pair = registers.view(DTYPES[half])[:, first : first + 2]
        return {(0, 1): pair, (0, 0): pair[:, :1], (1, 1): pair[:, 1:], (1, 0): pair[:, ::-1]}[low, high]

    def source(self, operand: Operand, kind: str, position: int, modifiers: dict):
        """A view and a function of it, or None where the view is the value."""
        if kind == "mask":
            if operand.kind != "s" or operand.count != self.mask_size:
                raise UnknownInstruction(f"operand {operand.text} as mask")
            view = self.sgprs[operand.index : operand.index + operand.count].view(np.uint8)
            return view, lambda x: np.unpackbits(x, bitorder="little").view(bool)
        if kind == "lane":
            return np.arange(self.num_lanes, dtype=U32), None
        op_sel = (modifiers.get("op_sel") or [0] * 4)[position]
        op_sel = operand.half if operand.half is not None else op_sel
        op_sel_hi = (modifiers.get("op_sel_hi") or [0 if kind == "mix" else 1] * 4)[position]
        steps = []
        if kind.startswith("pk_"):
            view = self.packed_view(operand, kind[2:], op_sel, op_sel_hi)
            signs = [(modifiers.get(name) or [0] * 4)[position] for name in ("neg_lo", "neg_hi")]
            if any(signs):
                factor = np.array([[-1 if sign else 1 for sign in signs]], view.dtype)
                steps.append(lambda x: x * factor)
        elif kind == "mix":
            view = self.view(operand, "f16", op_sel) if op_sel_hi else self.view(operand, "f32")
            steps += [lambda x: x.astype(F32)] if op_sel_hi else []
        elif (selection := modifiers.get(f"src{position}_sel", "DWORD")) != "DWORD":
            view = self.view(operand, "u32")
            steps.append(select(selection, kind, operand.sign_extended))
        else:
            view = self.view(operand, kind, op_sel if kind.endswith("16") else 0)
        if operand.absolute or operand.negative:
            if kind[0] != "f" and kind != "mix":
                raise UnknownInstruction(f"modifier of {operand.text} as {kind}")
            steps += [np.abs] if operand.absolute else []
            steps += [np.negative] if operand.negative else []
        if not steps:
            return view, None
        if len(steps) == 1:
            return view, steps[0]

        def apply(x):
            for step in steps:
                x = step(x)
            return x

        return view, apply

    def writer(self, operand: Operand, kind: str, name: str, modifiers: dict):
        """Stores a result in the active lanes."""
        lanes = self.lanes
        if kind == "mask":
            if operand.kind == "constant":  # null
                return lambda result: None
            if operand.kind != "s" or operand.count != self.mask_size:
                raise UnknownInstruction(f"destination {operand.text} of a mask")
            masks, place, refresh, changed = self.masks, operand.index // self.mask_size, self.exec_changed, self.exec
            bits_type = U64 if self.mask_size == 2 else U32

            def write_mask(result):
                bits = np.packbits(np.logical_and(result, lanes), bitorder="little")
                masks[place] = int(bits.view(bits_type)[0])
                if "_cmpx_" in name:
                    masks[changed] = masks[place]
                if "_cmpx_" in name or place == changed:
                    refresh()

            return write_mask
        if operand.kind != "v":
            raise UnknownInstruction(f"destination {operand.text}")
        scale = {"2": 2, "4": 4}.get(modifiers.get("mul"), 0.5 if "div" in modifiers else 1)
        is_clamped = "clamp" in modifiers
        if (is_clamped or scale != 1) and kind not in ("f32", "f64", "f16", "pk_f32", "pk_f16"):
            raise UnknownInstruction("clamp of integers")
        where = lanes[:, None] if kind.startswith("pk_") else lanes
        selection = modifiers.get("dst_sel", "DWORD")
        clears = modifiers.get("dst_unused") != "UNUSED_PRESERVE"
        if kind.startswith("pk_"):
            view = self.packed_view(operand, kind[2:], 0, 1)
        elif kind == "half":
            view = self.vector_view(operand.index, "f16", int("hi_" in name))
        elif kind.endswith("16") and operand.half is not None:
            view = self.vector_view(operand.index, kind, operand.half)
        elif kind.endswith("16") and (modifiers.get("op_sel") or [0])[-1]:
            view = self.vector_view(operand.index, kind, 1)
        elif kind.endswith("16") and self.chip.is_rdna:
            view = self.vector_view(operand.index, kind, 0)
        elif selection != "DWORD":
            dtype = {"B": np.uint8, "W": U16}[selection[0]]
            view = self.vgprs.view(dtype)[:, operand.index * (4 // dtype().itemsize) + int(selection[-1])]
            if modifiers.get("dst_unused") == "UNUSED_SEXT":
                raise UnknownInstruction("dst_unused:UNUSED_SEXT")
        else:
            view = self.vector_view(operand.index, "u32" if kind.endswith("16") else kind)
        whole = self.vector_view(operand.index, "u32")
        is_part = kind.endswith("16") and view.dtype == U32 or selection != "DWORD"

        def write(result):
            if scale != 1:
                result = result * F32(scale)
            if is_clamped:
                result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1)
            if is_part:
                bits = result.view(U16) if result.itemsize == 2 else result.astype(DTYPES.get(kind, U32)).view(U32)
                if clears:
                    np.copyto(whole, U32(0), where=lanes)
                np.copyto(view, bits, casting="unsafe", where=lanes)
            else:
                np.copyto(view, result, casting="unsafe", where=where)

        if scale == 1 and not is_clamped and not is_part:
            return lambda result: np.copyto(view, result, casting="unsafe", where=where)
        return write

    def exec_changed(self):
        self.lanes[:] = np.unpackbits(self.sgprs[EXEC : EXEC + self.mask_size].view(np.uint8), bitorder="little")

    # -- Waits

    def queue_up(self, kinds, registers: int, deliver, in_order: bool = True, mark=None):
        """`deliver` completes the access when it has been waited for; `mark` tells LDS of it."""
        if mark is not None:
            mark()
        entry = [registers, deliver, len(kinds), in_order, mark]
        for kind in kinds:
            self.queues[kind].append(entry)
        self.pending |= registers

    def drain(self, queue: deque, length: int):
        while len(queue) > length:
            entry = queue.popleft()
            entry[2] -= 1
            if entry[2] == 0:
                entry[1]()
        self.find_pending()

    def mark_outstanding(self):
        for queue in self.counters.values():
            for entry in queue:
                if entry[4] is not None:
                    entry[4]()

    def find_pending(self):
        self.pending = 0
        for queue in self.counters.values():
            for entry in queue:
                self.pending |= entry[0]

    def wait(self, counts: dict[str, int]):
        for name, count in counts.items():
            queue = self.counters[name]
            if len(queue) > count and (count == 0 or all(entry[3] for entry in queue)):
                self.drain(queue, count)

    def check_destination(self, registers: int, kind: str):
        """A load may overwrite what a load of the same counter is bringing: they return in order."""
        if self.pending & registers:
            own = self.queues[kind]
            if any(entry[0] & registers for queue in self.counters.values() if queue is not own for entry in queue):
                raise Fault("overwrites a register that a load is outstanding for")

    # -- Decoding

    def decode(self, text: str, address: int = 0, index_of: dict | None = None) -> Instruction:
        if " :: " in text:
            return self.decode_dual(text)
        name, texts, modifiers = split_text(text)
        base = renamed(re.sub(r"_(e32|e64|sdwa)$", "", name), self.chip.is_rdna)
        try:
            families = (self.flow, self.special, self.memory_access, self.vector, self.matrix, self.scalar_alu)
            for family in (*families, self.scalar_float):
                found = family(base, texts, modifiers, address, index_of or {})
                if found is not None:
                    run, operands = found
                    uses = 0
                    for operand in operands:
                        uses |= operand.bits
                    reads = 0
                    for operand in operands[1:]:
                        reads |= operand.bits
                    return Instruction(text, uses, run, reads)
        except UnknownInstruction as error:
            raise UnknownInstruction(f"{text}: {error}") from None
        raise UnknownInstruction(f"{name} ({text})")

    def decode_dual(self, text: str) -> Instruction:
        """Two instructions of RDNA in one: both read before either writes."""
        x, y = (self.decode(part) for part in text.split(" :: "))
        to_x, to_y = (parse_operand(split_text(part)[1][0]).bits for part in text.split(" :: "))
        if not to_x & y.reads:
            first, second = x.run, y.run
        elif not to_y & x.reads:
            first, second = y.run, x.run
        else:
            raise UnknownInstruction(f"{text}: halves that read what the other one writes")

        def run():
            first()
            second()

        return Instruction(text, x.uses | y.uses, run)

    def flow(self, name, texts, modifiers, address, index_of):
        if name in NO_EFFECT:
            return lambda: None, []
        if name in ("s_barrier", "s_endpgm"):
            result = AT_BARRIER if name == "s_barrier" else AT_END
            return lambda: result, []
        if name in ("s_barrier_signal", "s_barrier_wait"):
            if texts not in (["-1"], ["0xffff"]) or not self.chip.has_split_barriers:
                raise UnknownInstruction("a barrier that is not the workgroup's")
            if name == "s_barrier_signal":
                return self.signal_barrier, []

            def wait_for_others():
                self.shared.check_signal(self.wave_number)
                return AT_BARRIER

            return wait_for_others, []
        if name in ("s_trap", "s_code_end"):

            def trap():
                raise Fault("trap")

            return trap, []
        if name == "s_waitcnt":
            counts = {key: int(value) for key, value in re.findall(r"(\w+)\((\d+)\)", " ".join([*texts, *modifiers]))}
            counts.pop("expcnt", None)
            if not counts or set(counts) - set(self.counters):
                raise UnknownInstruction(f"counters {set(counts)}")
            return lambda: self.wait(counts), []
        if name == "s_waitcnt_vscnt" or re.match(r"s_wait_((load|store|ds|km|expc?)cnt_?)+$", name):
            names = ["vscnt"] if name == "s_waitcnt_vscnt" else re.findall(r"(?:load|store|ds|km)cnt", name)
            value = int(texts[-1], 0)
            # Two counters in one: dscnt has bits 0 to 5, the other one 8 to 13 (RDNA4 ISA, "SOPP Instructions").
            named = dict(zip(names, (value >> 8, value & 63), strict=True)) if len(names) == 2 else {names[0]: value}
            if set(named) - set(self.counters):
                raise UnknownInstruction(f"counters {set(named)}")
            return lambda: self.wait(named), []
        if name != "s_branch" and not name.startswith("s_cbranch_"):
            return None
        target_address = address + 4 + 4 * isa.signed(int(texts[0]) & 0xFFFF, 16)
        if target_address not in index_of:
            raise UnknownInstruction(f"branch to {target_address:#x}, which is no instruction")
        target, masks, scc = index_of[target_address], self.masks, self.scc
        if name == "s_branch":
            return lambda: target, []
        condition = name.removeprefix("s_cbranch_")
        if condition in ("scc0", "scc1"):
            wanted = int(condition[-1])
            return lambda: target if scc[0] == wanted else None, []
        place = (VCC if condition.startswith("vcc") else EXEC) // self.mask_size
        is_zero = not condition.endswith("nz")
        operands = [self.vcc] if condition.startswith("vcc") else []
        return lambda: target if (masks[place] == 0) == is_zero else None, operands

    def signal_barrier(self):
        self.shared.signal(self.wave_number)
        self.mark_outstanding()

    def special(self, name, texts, modifiers, address, index_of):
        """Instructions across lanes."""
        known = {"v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32", "v_swap_b32", "v_pk_mov_b32"}
        known |= {"v_permlane16_b32", "v_permlanex16_b32"}
        if name not in known:
            return None
        operands = [parse_operand(text) for text in texts]
        lanes, scalars, last_lane = self.lanes, self.scalar[32], self.num_lanes - 1
        if name.startswith("v_permlane"):
            return self.permute_rows("x16" in name, operands, modifiers), operands
        if name == "v_pk_mov_b32":  # op_sel chooses the low result from the first source, the high one from the second
            to, halves = self.packed_view(operands[0], "_u32", 0, 1), modifiers.get("op_sel") or [0, 0]
            pairs = [
                self.packed_view(each, "_u32", half, half) for each, half in zip(operands[1:], halves, strict=True)
            ]

            def move_pair():
                low, high = (pair[:, 0].copy() for pair in pairs)
                np.copyto(to[:, 0], low, where=lanes)
                np.copyto(to[:, 1], high, where=lanes)

            return move_pair, operands
        if name == "v_swap_b32":
            a, b = (self.vector_view(operand.index, "u32") for operand in operands)

            def swap():
                old = a.copy()
                np.copyto(a, b, where=lanes)
                np.copyto(b, old, where=lanes)

            return swap, operands
        if name == "v_writelane_b32":
            to, value, place = self.vector_view(operands[0].index, "u32"), *self.scalar_sources(operands[1:], 32)

            def write_lane():
                to[place[0][place[1]] & last_lane] = value[0][value[1]]

            return write_lane, operands
        to, values = operands[0].index, self.view(operands[1], "u32")
        if to >= EXEC:
            raise UnknownInstruction("a lane to EXEC")
        if name == "v_readlane_b32":
            (place,) = self.scalar_sources(operands[2:], 32)

            def read_lane():
                scalars[to] = int(values[place[0][place[1]] & last_lane])

            return read_lane, operands

        def read_first_lane():
            scalars[to] = int(values[int(np.argmax(lanes)) if len(values) > 1 else 0])  # EXEC is 0: lane 0

        return read_first_lane, operands

    def permute_rows(self, is_crossed: bool, operands, modifiers):
        """Each lane takes a value of its row of 16 lanes, or of the other row of 32; which one, say four bits of the
        two scalars. Those of inactive lanes are not there, unless op_sel says that they may be taken or read as 0."""
        fetches_inactive, is_bounded = (modifiers.get("op_sel") or [0, 0])[:2]
        to, values = self.vector_view(operands[0].index, "u32"), self.view(operands[1], "u32")
        (low, i), (high, j) = self.scalar_sources(operands[2:], 32)
        lane = np.arange(self.num_lanes)

        def run():
            selectors = high[j] << 32 | low[i]
            chosen = np.array([selectors >> 4 * (each % 16) & 15 for each in lane.tolist()])
            source = (lane & ~15 ^ (16 if is_crossed else 0)) + chosen
            result = np.broadcast_to(values, lane.shape)[source]
            writes = self.lanes.copy()
            if not fetches_inactive:
                result = np.where(self.lanes[source], result, 0)
                writes &= self.lanes[source] | bool(is_bounded)
            np.copyto(to, result, where=writes)

        return run

    def vector(self, name, texts, modifiers, address, index_of):
        if name not in isa.VALU:
            return None
        known = {"op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp", "mul", "div", "dst_sel", "dst_unused"}
        if unknown := set(modifiers) - known - {"src0_sel", "src1_sel", "bound_ctrl", "bitop3"}:
            raise UnknownInstruction(f"modifiers {unknown}")
        if "bound_ctrl" in modifiers:
            raise UnknownInstruction("dpp")
        destination_kinds, source_kinds, function = isa.VALU[name]
        if name in ("v_bitop3_b32", "v_bitop3_b16"):
            function = isa.bit_operation(int(modifiers.get("bitop3", "0"), 0))
        if name.startswith("v_cmpx_") and self.chip.is_rdna:
            texts = ["exec" if self.mask_size == 2 else "exec_lo", *texts]
        operands = [parse_operand(text) for text in texts]
        destinations, explicit = operands[: len(destination_kinds)], operands[len(destination_kinds) :]
        implicit = {"dst": destinations[0], "vcc": self.vcc, "lane": None}
        kinds = {"dst": destination_kinds[0], "vcc": "mask", "lane": "lane"}
        if len(explicit) != sum(kind not in kinds for kind in source_kinds):
            raise UnknownInstruction("number of operands")
        sources = []
        for position, kind in enumerate(source_kinds):
            operand = implicit[kind] if kind in implicit else explicit[position]
            sources.append(self.source(operand, kinds.get(kind, kind), position, modifiers))
        writers = [
            self.writer(operand, kind, name, modifiers)
            for operand, kind in zip(destinations, destination_kinds, strict=True)
        ]
        operands += [implicit[kind] for kind in ("vcc", "dst") if kind in source_kinds]
        write = writers[0]
        if all(apply is None for _, apply in sources) and len(writers) == 1:
            views = [view for view, _ in sources]
            if len(views) == 1:
                (only,) = views
                return lambda: write(function(only)), operands
            return lambda: write(function(*views)), operands

        def run():
            result = function(*[view if apply is None else apply(view) for view, apply in sources])
            if len(writers) == 1:
                write(result)
            else:
                for each, part in zip(writers, result, strict=True):
                    each(part)

        return run, operands

    def matrix(self, name, texts, modifiers, address, index_of):
        """All lanes take part, whatever EXEC says."""
        if name not in self.chip.matrix_instructions:
            return None
        layout = self.chip.matrix_instructions[name]
        if modifiers:
            raise UnknownInstruction(f"modifiers {set(modifiers)}")
        operands = [parse_operand(text) for text in texts]
        (rows, depth), (row, column) = layout.operand(), layout.result()
        m, k, kind, acc_kind = layout.m, layout.k, layout.kind, layout.acc_kind
        wide = np.longdouble if acc_kind == "f64" else F64
        a, b = np.zeros((m, k), wide), np.zeros((k, m), wide)
        size = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
        types = {"bf16": U16} | DTYPES

        def elements(operand, element_kind, count):
            """[lane][element]"""
            words = count * size[element_kind] // 4
            if operand.kind != "v" or operand.count != words:
                raise UnknownInstruction(f"operand {operand.text} of {words} registers")
            return self.vgprs[:, operand.index : operand.index + words].view(types[element_kind])

        from_a, from_b = (elements(operand, kind, rows.shape[1]) for operand in operands[1:3])
        to = elements(operands[0], acc_kind, row.shape[1])
        if operands[3].kind == "constant":
            from_c = None
            start = np.full((m, m), self.view(operands[3], acc_kind)[0], wide)
        else:
            from_c, start = elements(operands[3], acc_kind, row.shape[1]), np.zeros((m, m), wide)

        def value(x):
            if layout.has_copies and (x[:16].view(U16) != x[16:].view(U16)).any():
                raise Fault("lanes 16 to 31 do not hold the same as lanes 0 to 15")
            return (x.astype(U32) << 16).view(F32) if kind == "bf16" else x

        def run():
            a[rows, depth], b[depth, rows] = value(from_a), value(from_b)
            if from_c is not None:
                start[row, column] = from_c
            to[:] = (a @ b + start).astype(types[acc_kind])[row, column]

        return run, operands

    # -- Scalar instructions

    def scalar_sources(self, operands, bits):
        """(buffer, place) of each."""
        found = []
        for operand in operands:
            if operand.kind == "constant":
                found.append(([constant_bits(operand.text, f"u{bits}")], 0))
            elif operand.kind == "s" and operand.count == bits // 32:
                found.append((self.scalar[bits], operand.index // (bits // 32)))
            else:
                raise UnknownInstruction(f"operand {operand.text} of {bits} bits")
        return found

    def scalar_alu(self, name, texts, modifiers, address, index_of):
        scc = self.scc
        if not name.startswith("s_"):
            return None
        operands = [parse_operand(text) for text in texts]
        if name in isa.SOPC:
            bits, compare = isa.SOPC[name]
            first = self.scalar_sources(operands[:1], bits)
            (a, i), (b, j) = first + self.scalar_sources(operands[1:], isa.SECOND_BITS.get(name, bits))

            def run_compare():
                scc[0] = int(compare(a[i], b[j]))

            return run_compare, operands
        masks, place, all_lanes = self.masks, self.exec, (1 << self.num_lanes) - 1
        if name in isa.SAVEEXEC:
            bits, function = isa.SAVEEXEC[name]
            if bits != self.num_lanes:
                raise UnknownInstruction(f"a mask of {bits} lanes")
            (d, k), (a, i) = self.scalar_sources(operands, bits)

            def save_exec():
                source, old = a[i], masks[place]
                d[k] = old
                masks[place] = function(source, old) & all_lanes
                scc[0] = int(masks[place] != 0)
                self.exec_changed()

            return save_exec, operands
        if name in isa.SOPK:  # the destination is the first source, too
            operands.insert(1, operands[0])
        if name in isa.SOP2:
            bits, function = isa.SOP2[name]
            (d, k), (a, i) = self.scalar_sources(operands[:2], bits)
            ((b, j),) = self.scalar_sources(operands[2:], isa.SECOND_BITS.get(name, bits))
            mask = (1 << bits) - 1

            def run():
                result, flag = function(a[i], b[j], scc[0])
                d[k] = result & mask
                if flag is not None:
                    scc[0] = flag

        elif name in isa.SOP1:
            bits, source_bits, unary = isa.SOP1[name]
            ((d, k),) = self.scalar_sources(operands[:1], bits)
            ((a, i),) = self.scalar_sources(operands[1:], source_bits)
            mask = (1 << bits) - 1

            def run():
                result, flag = unary(a[i])
                d[k] = result & mask
                if flag is not None:
                    scc[0] = flag

        else:
            return None
        if operands[0].kind == "s" and operands[0].index >= EXEC:
            plain = run

            def run():
                plain()
                self.exec_changed()

        return run, operands

    def scalar_float(self, name, texts, modifiers, address, index_of):
        """Arithmetic of RDNA4 on scalars, which means what the vector instruction does."""
        if name not in isa.SCALAR_FLOATS or not self.chip.is_rdna:
            return None
        (to_kind,), source_kinds, function = isa.VALU[isa.SCALAR_FLOATS[name]]
        operands = [parse_operand(text) for text in texts]
        explicit = operands if to_kind == "mask" else operands[1:]
        sources = [
            self.source(operands[0] if kind == "dst" else explicit[i], to_kind if kind == "dst" else kind, i, {})
            for i, kind in enumerate(source_kinds)
        ]
        to = None if to_kind == "mask" else self.view(operands[0], to_kind)

        def run():
            result = function(*[view if apply is None else apply(view) for view, apply in sources])
            if to is None:
                self.scc[0] = int(result[0])
            else:
                to[:] = result

        return run, operands

    # -- Loads and stores

    def memory_access(self, name, texts, modifiers, address, index_of):
        if match := re.match(r"s_load_(?:dword(?:x(\d+))?|b(\d+))$", name):
            return self.scalar_load(int(match[2]) // 32 if match[2] else int(match[1] or 1), texts, modifiers)
        line = f"{name} {', '.join(texts)}"
        if match := re.match(r"global_load_(?:lds_)?(dword(?:x[34])?)$", name):
            if "_lds_" in name or "lds" in modifiers:
                return self.load_to_shared(line, isa.WIDTHS[match[1]][0], texts, modifiers)
        if match := re.match(r"buffer_(load|store)_(\w+)$", name):
            if match[2] not in isa.WIDTHS:
                return None
            if "lds" in modifiers:
                return self.buffer_to_shared(line, isa.WIDTHS[match[2]][0], texts, modifiers)
            return self.buffer_access(match[1] == "store", isa.WIDTHS[match[2]], texts, modifiers)
        if match := re.match(r"(global|flat)_(load|store)_(\w+)$", name):
            if match[3] not in isa.WIDTHS:
                return None
            return self.global_access(match[1], match[2] == "store", isa.WIDTHS[match[3]], texts, modifiers)
        if name == "ds_read_b64_tr_b16":
            return self.shared_access(line, False, "", isa.WIDTHS["dwordx2"], texts, modifiers, is_transposed=True)
        if match := re.match(r"ds_(read|write)(2(?:st64)?)?_(\w+)$", name):
            if match[3] not in isa.DS_WIDTHS:
                return None
            width = isa.WIDTHS[isa.DS_WIDTHS[match[3]]]
            return self.shared_access(line, match[1] == "write", match[2] or "", width, texts, modifiers)
        if name in ("ds_bpermute_b32", "ds_permute_b32"):
            return self.permute(name == "ds_bpermute_b32", texts, modifiers)
        return None

    def scalar_load(self, count, texts, modifiers):
        operands = [parse_operand(text) for text in texts]
        ((base, i),) = self.scalar_sources(operands[1:2], 64)
        ((offset, j),) = self.scalar_sources(operands[2:], 32)
        more = int(modifiers.get("offset", "0"), 0)
        is_signed, destination = operands[2].kind == "constant", operands[0]
        to = self.sgprs[destination.index : destination.index + count]
        if destination.count != count:
            raise UnknownInstruction(f"destination {destination.text}")

        def run():
            place = (base[i] + (isa.signed(offset[j]) if is_signed else offset[j]) + more) % (1 << 64)
            try:
                words = self.memory.load(np.array([place], U64), 4 * count).view(U32)[0]
            except Fault as fault:
                raise Fault(fault.args[0]) from None  # of no lane
            self.queue_up(["scalar"], destination.bits, lambda: np.copyto(to, words), False)

        return run, operands

    def registers_to_bytes(self, operand, width):
        """A function that gathers `width` bytes of each active lane."""
        size, _, half = width
        if size >= 4:
            parts = [self.vector_view(operand.index + i, "u32") for i in range(size // 4)]
            return lambda: np.stack([part[self.lanes] for part in parts], axis=1).view(np.uint8)
        view = self.vector_view(operand.index, "u16", half or 0)
        return lambda: view[self.lanes][:, None].view(np.uint8)[:, :size]

    def bytes_to_registers(self, operand, width):
        """A function that stores the bytes that were loaded for these lanes."""
        size, is_signed, half = width
        if size >= 4:
            if operand.count != size // 4:
                raise UnknownInstruction(f"register {operand.text} for {size} bytes")
            parts = [self.vector_view(operand.index + i, "u32") for i in range(size // 4)]

            def deliver(lanes, loaded):
                words = loaded.view(U32)
                for i, part in enumerate(parts):
                    part[lanes] = words[:, i]

            return deliver
        view = self.vector_view(operand.index, "u32") if half is None else None
        part = None if half is None else self.vector_view(operand.index, "u16", half)
        kind = {(1, False): np.uint8, (1, True): np.int8, (2, False): U16, (2, True): I16}[size, is_signed]

        def deliver_small(lanes, loaded):
            values = loaded.view(kind)[:, 0].astype(I32)
            if view is not None:
                view[lanes] = values.view(U32)
            else:
                part[lanes] = values.astype(U16)

        return deliver_small

    def global_addresses(self, place, base, size, modifiers):
        """A function: addresses of the active lanes. A pair of VGPRs, or an SGPR pair and an unsigned VGPR offset."""
        if set(modifiers) - CACHE_MODIFIERS - {"offset"}:
            raise UnknownInstruction(f"modifiers {set(modifiers)}")
        offset, lanes = U64(int(modifiers.get("offset", "0"), 0) % (1 << 64)), self.lanes
        if base.kind == "s":
            offsets, bases = self.view(place, "u32"), self.view(base, "u64")
            return lambda: self.noted(offsets[lanes] + bases + offset, size)
        bases = self.view(place, "u64")
        return lambda: self.noted(bases[lanes] + offset, size)

    def noted(self, addresses, size):
        if self.trace is not None:
            self.accessed = Access("global", size, self.lanes.copy(), [addresses])
        return addresses

    def global_access(self, space, is_store, width, texts, modifiers):
        operands = [parse_operand(text) for text in texts]
        data, place = (operands[1], operands[0]) if is_store else operands[:2]
        base = operands[2] if len(operands) > 2 else parse_operand("off")
        addresses = self.global_addresses(place, base, width[0], modifiers)
        lanes = self.lanes
        in_order = space == "global"  # flat accesses may be to LDS or to memory, as far as the counters know
        kinds = ["store" if is_store else "load"] + ([] if in_order else ["lds"])
        if is_store:
            gather = self.registers_to_bytes(data, width)

            def store():
                if lanes.any():
                    self.memory.store(addresses(), gather())
                self.queue_up(kinds, 0, lambda: None, in_order)

            return store, operands
        deliver = self.bytes_to_registers(data, width)

        def load():
            self.check_destination(data.bits, "load")
            if not lanes.any():
                self.queue_up(kinds, data.bits, lambda: None, in_order)
                return
            loaded, which = self.memory.load(addresses(), width[0]), np.flatnonzero(lanes)
            self.queue_up(kinds, data.bits, lambda: deliver(which, loaded), in_order)

        return load, operands[1:]

    def copy_to_shared(self, text, size, offset):
        """A function that stores what was loaded for the active lanes in LDS at M0 + offset + size * lane, later."""
        base = self.scalar[32]

        def run(values):
            start = base[M0] if self.chip.has_wide_lds_copies else base[M0] % (1 << 16)
            places = self.shared.places(start + offset + size * np.flatnonzero(self.lanes), size)
            shared, wave = self.shared, self.wave_number

            def deliver():
                shared.settle(places, wave)
                shared.data[places] = values

            mark = functools.partial(shared.mark, places, wave + COPY, True, text)
            self.queue_up(["load"], 0, deliver, mark=mark)

        if size > 4 and not self.chip.has_wide_lds_copies:
            raise UnknownInstruction(f"a copy of {size} bytes to LDS")
        return run

    def load_to_shared(self, text, size, texts, modifiers):
        """Global memory straight to LDS; the offset counts in both addresses."""
        operands = [parse_operand(text) for text in texts]
        rest = {name: value for name, value in modifiers.items() if name != "lds"}
        addresses = self.global_addresses(operands[0], operands[1], size, rest)
        copy = self.copy_to_shared(text, size, int(modifiers.get("offset", "0"), 0))

        def run():
            if self.lanes.any():
                copy(self.memory.load(addresses(), size))
            else:
                self.queue_up(["load"], 0, lambda: None)

        return run, [*operands, parse_operand("m0")]

    def buffer_to_shared(self, text, size, texts, modifiers):
        """What lies beyond the buffer's bytes becomes 0 in LDS."""
        operands = [parse_operand(text) for text in texts]
        rest = {name: value for name, value in modifiers.items() if name != "lds"}
        fetch = self.buffer_load(size, operands, rest)
        copy = self.copy_to_shared(text, size, int(modifiers.get("offset", "0"), 0))
        return lambda: copy(fetch()), [*operands, parse_operand("m0")]

    def buffer_accesses(self, size, operands, modifiers):
        """A buffer without stride (CDNA3 ISA): what lies beyond its number of bytes is read as 0 and not stored, dword
        by dword. A function: for each part of up to 4 bytes where it begins, the addresses of the active lanes, which
        of them are in range, and which wholly out of it."""
        if set(modifiers) - CACHE_MODIFIERS - {"offset", "offen"}:
            raise UnknownInstruction(f"modifiers {set(modifiers)}")
        place, descriptor, start = operands
        offset, lanes = int(modifiers.get("offset", "0"), 0), self.lanes
        ((starts, i),) = self.scalar_sources([start], 32)
        offsets = self.view(place, "u32") if "offen" in modifiers else np.zeros(1, U32)
        words, part = self.scalar[32], min(size, 4)

        def accesses():
            base, upper, records = (words[descriptor.index + word] for word in range(3))
            if upper >> 16:
                raise Fault("buffers with a stride or swizzle are not modelled")
            base |= (upper & 0xFFFF) << 32
            relative = np.broadcast_to(offsets, lanes.shape)[lanes].astype(I64) + offset
            self.noted((relative + (starts[i] + base)).astype(U64), size)
            for first in range(0, size, part):
                space = records - starts[i] - relative - first
                yield first, (relative + (first + starts[i] + base)).astype(U64), space >= part, space <= 0

        return accesses

    def buffer_load(self, size, operands, modifiers):
        """A function: what is loaded for the active lanes. Whether a dword that is partly in range is read is not
        published, so it is garbage."""
        accesses, lanes, part = self.buffer_accesses(size, operands, modifiers), self.lanes, min(size, 4)
        garbage = np.array([GARBAGE], U32).view(np.uint8)

        def fetch():
            loaded = np.zeros((np.count_nonzero(lanes), size), np.uint8)
            for first, addresses, is_inside, is_outside in accesses():
                loaded[~is_outside, first : first + part] = garbage[:part]
                if is_inside.any():
                    loaded[is_inside, first : first + part] = self.memory.load(addresses[is_inside], part)
            return loaded

        return fetch

    def buffer_access(self, is_store, width, texts, modifiers):
        operands, size, lanes = [parse_operand(text) for text in texts], width[0], self.lanes
        data = operands[0]
        if not is_store:
            fetch, deliver = self.buffer_load(size, operands[1:], modifiers), self.bytes_to_registers(data, width)

            def load():
                self.check_destination(data.bits, "load")
                which, loaded = np.flatnonzero(lanes), fetch()
                self.queue_up(["load"], data.bits, lambda: deliver(which, loaded))

            return load, operands[1:]
        accesses, gather = self.buffer_accesses(size, operands[1:], modifiers), self.registers_to_bytes(data, width)
        part = min(size, 4)

        def store():
            values = gather() if lanes.any() else None
            parts = list(accesses())
            if any((~is_inside & ~is_outside).any() for *_, is_inside, is_outside in parts):
                raise Fault("stores a dword that is partly in range")
            for first, addresses, is_inside, _ in parts:
                if is_inside.any():
                    self.memory.store(addresses[is_inside], values[is_inside, first : first + part])
            self.queue_up(["store"], 0, lambda: None)

        return store, operands

    def shared_access(self, text, is_store, pair, width, texts, modifiers, is_transposed=False):
        if set(modifiers) - {"offset", "offset0", "offset1"}:
            raise UnknownInstruction(f"modifiers {set(modifiers)}")
        operands = [parse_operand(text) for text in texts]
        lanes, size = self.lanes, width[0]
        if pair:
            step = size * (64 if pair == "2st64" else 1)
            offsets = [step * int(modifiers.get(name, "0"), 0) for name in ("offset0", "offset1")]
        else:
            offsets = [int(modifiers.get("offset", "0"), 0)]
        place = self.view(operands[0 if is_store else 1], "u32")

        def places():
            start = np.broadcast_to(place, lanes.shape)[lanes].astype(I64)
            if self.trace is not None:
                self.accessed = Access("lds", size, lanes.copy(), [start + offset for offset in offsets])
            return [self.shared.places(start + offset, size) for offset in offsets]

        def marker(where, is_store):
            def mark():
                for each in where:
                    self.shared.mark(each, self.wave_number, is_store, text)

            return mark

        if is_store:
            gathers = [self.registers_to_bytes(operand, width) for operand in operands[1:]]

            def store():
                where, values = places(), [gather() for gather in gathers]

                def deliver():
                    for each, value in zip(where, values, strict=True):
                        self.shared.data[each] = value

                self.queue_up(["lds"], 0, deliver, mark=marker(where, True))

            return store, operands
        to = operands[0]
        count = max(1, size // 4)
        if to.count != count * len(offsets):
            raise UnknownInstruction(f"destination {to.text}")
        parts = [Operand(to.text, "v", to.index + i * count, count) for i in range(len(offsets))]
        delivers = [self.bytes_to_registers(part, width) for part in parts]

        def load():
            self.check_destination(to.bits, "lds")
            where, which = places(), np.flatnonzero(lanes)

            def deliver():
                for each, give in zip(where, delivers, strict=True):
                    values = self.shared.data[each]
                    give(which, transposed_in_rows(values, lanes) if is_transposed else values)

            self.queue_up(["lds"], to.bits, deliver, mark=marker(where, False))

        return load, operands[1:]

    def permute(self, is_backward, texts, modifiers):
        """Through the LDS hardware, without memory: lane number is address / 4. Inactive lanes give 0."""
        operands = [parse_operand(text) for text in texts]
        offset = int(modifiers.get("offset", "0"), 0)
        place, data = self.view(operands[1], "u32"), self.view(operands[2], "u32")
        to, lanes = self.vector_view(operands[0].index, "u32"), self.lanes

        def run():
            self.check_destination(operands[0].bits, "lds")
            lane = ((place.astype(I64) + offset) >> 2) % len(lanes)
            active, result = lanes.copy(), np.zeros(len(lanes), U32)
            if is_backward:
                result[:] = np.where(active, data, 0)[lane]
            else:
                result[lane[active]] = data[active]
            self.queue_up(["lds"], operands[0].bits, lambda: np.copyto(to, result, where=active))

        return run, operands[1:]

    # -- Running

    def resume(self, wave: Wave, code: dict, executed: list, limit: int) -> int:
        """Runs until a barrier or the end."""
        used = np.s_[:, : self.num_used]
        self.vgprs[used], self.sgprs[:], self.scc[0] = wave.vgprs[used], wave.sgprs, wave.scc
        for counter, queue in self.counters.items():
            queue.clear()
            queue.extend(wave.queues.get(counter, ()))
        self.wave_number = wave.number
        self.find_pending()
        self.exec_changed()
        pc, steps, current = wave.pc, 0, wave.pc
        try:
            self.mark_outstanding()
            while steps < limit:
                current = pc
                uses, execute = code[pc]
                if self.pending & uses:
                    raise Fault(
                        "uses a register that a load is outstanding for: " + register_names(self.pending & uses)
                    )
                executed[pc] += 1
                steps += 1
                pc += 1
                target = execute()
                if self.trace is not None:
                    self.trace.append((current, self.accessed))
                    self.accessed = None
                if target is not None:
                    if target < 0:
                        break
                    pc = target
            else:
                raise Fault(f"{limit} instructions without a barrier or an end")
            if target == AT_END:
                self.wait(dict.fromkeys(self.counters, 0))
        except Fault as fault:
            fault.place = current
            fault.lanes = np.flatnonzero(self.lanes)
            raise
        wave.vgprs[used], wave.sgprs[:], wave.scc, wave.pc = self.vgprs[used], self.sgprs, self.scc[0], pc
        wave.queues = {counter: deque(queue) for counter, queue in self.counters.items()}
        return target

    def execute(self, *texts: str):
        """Runs these lines on the registers as they are: for tests of instructions."""
        with np.errstate(all="ignore"):
            for text in texts:
                instruction = self.decode(text)
                if self.pending & instruction.uses:
                    raise Fault(f"{text}: " + register_names(self.pending & instruction.uses))
                instruction.run()
        return self


def transposed_in_rows(values: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """ds_read_b64_tr_b16 (CDNA4 ISA): in each row of 16 lanes, element e of lane i is element i % 4 of lane
    4 e + i / 4. The layout as measured on gfx950: ROCm/rocm-systems, pull request 10175."""
    if not lanes.all():
        raise Fault("a transposing read with inactive lanes")
    rows = values.view(U16).reshape(-1, 4, 4, 4)  # row, lane / 4, lane % 4, element
    return np.ascontiguousarray(rows.transpose(0, 2, 3, 1)).reshape(-1, 4).view(np.uint8)


def select(selection: str, kind: str, is_signed: bool):
    """A byte or a word of a register, extended to the operand's width (SDWA)."""
    size = 8 if selection.startswith("BYTE") else 16
    shift, mask = U32(size * int(selection[-1])), U32((1 << size) - 1)
    dtype = DTYPES[kind]

    def apply(x):
        value = (x >> shift) & mask
        if is_signed:
            value = (value << U32(32 - size)).view(I32) >> I32(32 - size)
        if kind.endswith("16"):
            return value.astype(U16).view(dtype)
        return value.view(dtype)

    return apply


# ---- Dispatch


def empty_vgprs(num_lanes: int) -> np.ndarray:
    return np.full((num_lanes, NUM_VGPRS + 2), GARBAGE, U32)


def index_of(kernel: Kernel) -> dict[int, int]:
    return {address: i for i, (address, _) in enumerate(kernel.lines)}


class Code(dict):
    """Instructions of a kernel as (registers used, function) by their places, each decoded when it is first reached:
    one without a meaning fails then, not before."""

    def __init__(self, kernel: Kernel, machine: Machine):
        self.lines, self.machine, self.places = kernel.lines, machine, index_of(kernel)

    def __missing__(self, place: int):
        address, text = self.lines[place]
        try:
            instruction = self.machine.decode(text, address, self.places)
            self[place] = instruction.uses, instruction.run
        except UnknownInstruction as error:
            self[place] = 0, fail_with(error)
        return self[place]


def decode(kernel: Kernel) -> tuple[Machine, Code]:
    """The machine and the instructions, made once."""
    if kernel.program is None:
        machine = Machine(kernel.arch)
        if not kernel.metadata.get(".agpr_count"):
            machine.num_used = kernel.metadata[".vgpr_count"]
        kernel.program = machine, Code(kernel, machine)
    return kernel.program


def fail_with(error: Exception):
    def run():
        raise error

    return run


def unknown_instructions(kernel: Kernel) -> list[str]:
    machine, places, found = Machine(kernel.arch), index_of(kernel), []
    for address, text in kernel.lines:
        try:
            machine.decode(text, address, places)
        except UnknownInstruction as error:
            found.append(str(error))
    return found


def kernel_arguments(kernel: Kernel, grid, block, args) -> np.ndarray:
    """The kernarg segment. What is not an argument stays garbage."""
    size = kernel.metadata[".kernarg_segment_size"]
    segment = np.full(-(-size // 4) + 1, GARBAGE, U32).view(np.uint8)
    hidden = {"hidden_grid_dims": max([1] + [d + 1 for d in range(3) if grid[d] * block[d] > 1])}
    for d, axis in enumerate("xyz"):
        hidden |= {f"hidden_block_count_{axis}": grid[d], f"hidden_group_size_{axis}": block[d]}
        hidden |= {f"hidden_remainder_{axis}": 0, f"hidden_global_offset_{axis}": 0}
    explicit = list(args)
    for argument in kernel.metadata.get(".args", []):
        at, size, kind = argument[".offset"], argument[".size"], argument[".value_kind"]
        if kind.startswith("hidden_"):
            if kind not in hidden:
                continue
            value = hidden[kind].to_bytes(size, "little")
        else:
            value = explicit.pop(0)
            if isinstance(value, float):
                value = struct.pack("<f" if size == 4 else "<d", value)
            elif isinstance(value, int):
                value = (value % (1 << 8 * size)).to_bytes(size, "little")
            elif isinstance(value, np.generic):
                value = value.tobytes()
        if len(value) != size:
            raise ValueError(f"an argument of {kernel.name} has {size} bytes, not {len(value)}")
        segment[at : at + size] = np.frombuffer(value, np.uint8)
    if explicit:
        raise ValueError(f"{len(explicit)} arguments too many for {kernel.name}")
    return segment[: kernel.metadata[".kernarg_segment_size"]]


def initial_wave(kernel: Kernel, number: int, place, block, kernarg: int, segment: np.ndarray) -> Wave:
    """Registers at the start of a wave: user SGPRs by the properties of the descriptor, then preloaded arguments and
    workgroup ids; v0 holds the three workitem ids, 10 bits each. A kernel with preloaded arguments begins with 256
    bytes that load them where the firmware cannot; here it can."""
    rsrc1, rsrc2 = struct.unpack_from("<II", kernel.descriptor, 48)
    properties, preload = struct.unpack_from("<HH", kernel.descriptor, 56)
    if struct.unpack_from("<I", kernel.descriptor, 4)[0] or properties & 1 << 11:
        raise UnknownInstruction("scratch memory or a dynamic stack")
    if rsrc1 >> 12 & 0xFF != 0xF0:
        raise UnknownInstruction("rounding or denormals other than the default")
    chip = CHIPS[kernel.arch]
    if kernel.metadata[".wavefront_size"] != chip.lanes:
        raise UnknownInstruction(f"waves of {kernel.metadata['.wavefront_size']} lanes")
    vgprs, sgprs = empty_vgprs(chip.lanes), np.full(NUM_SGPRS, GARBAGE, U32)
    next_sgpr = 0
    # Private segment buffer, dispatch pointer, queue pointer, kernarg pointer, dispatch id, flat scratch, private size.
    for bit, size in enumerate((4, 2, 2, 2, 2, 2, 1)):
        if properties >> bit & 1:
            if bit == 3:
                sgprs[next_sgpr : next_sgpr + 2] = kernarg & 0xFFFFFFFF, kernarg >> 32
            next_sgpr += size
    num_preloaded, start = preload & 127, 0
    if num_preloaded:
        words = segment[4 * (preload >> 7) :][: 4 * num_preloaded].copy().view(U32)
        sgprs[next_sgpr : next_sgpr + num_preloaded] = words
        next_sgpr += num_preloaded
        start = index_of(kernel)[kernel.lines[0][0] + 256]
    if next_sgpr > rsrc2 >> 1 & 31:
        raise UnknownInstruction(f"{next_sgpr} user SGPRs of {rsrc2 >> 1 & 31}")
    next_sgpr = rsrc2 >> 1 & 31
    if chip.has_block_ids_in_ttmp:
        sgprs[TTMP + 7 : TTMP + 10] = place[1] | place[2] << 16, number << 25, place[0]
    else:
        for d in range(3):
            if rsrc2 >> (7 + d) & 1:
                sgprs[next_sgpr] = place[d]
                next_sgpr += 1
    thread = np.arange(chip.lanes) + number * chip.lanes
    num_threads = block[0] * block[1] * block[2]
    ids = [thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])]
    vgprs[:, 0] = ids[0] | ids[1] << 10 | ids[2] << 20
    active = min(chip.lanes, num_threads - number * chip.lanes)
    sgprs[EXEC : EXEC + 2] = ((1 << active) - 1) & 0xFFFFFFFF, ((1 << active) - 1) >> 32
    return Wave(number, vgprs, sgprs, pc=start)


def run(
    kernel: Kernel,
    grid,
    block,
    args,
    memory: Memory,
    order_seed=None,
    limit: int = 10_000_000,
    traces=None,
    most_blocks: int | None = None,
) -> Counter:
    """Executes all workgroups; how often each mnemonic was executed, by waves. `grid` counts workgroups. With a seed,
    the order of the workgroups and, after each barrier, that of the waves are drawn from it. `limit`: instructions of a
    wave between barriers. `traces`: a list of what each wave of the first workgroup executes, to be filled with lists
    of (place in the kernel's lines, Access or None). `most_blocks`: only so many workgroups."""
    (machine, code), executed = decode(kernel), [0] * len(kernel.lines)
    num_threads = block[0] * block[1] * block[2]
    if num_threads > kernel.metadata[".max_flat_workgroup_size"]:
        raise ValueError(f"{num_threads} threads, more than {kernel.name} is compiled for")
    machine.memory = Memory()
    machine.memory.buffers = list(memory.buffers)
    segment = kernel_arguments(kernel, grid, block, args)
    kernarg = machine.memory.add("kernarg", segment)
    random = None if order_seed is None else np.random.default_rng(order_seed)
    places = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    if random is not None:
        random.shuffle(places)
    with np.errstate(all="ignore"):
        for place in places[:most_blocks]:
            place = tuple(int(i) for i in place)
            machine.shared = SharedMemory(kernel.shared_bytes)
            num_waves = -(-num_threads // machine.num_lanes)
            waves = [initial_wave(kernel, i, place, block, kernarg, segment) for i in range(num_waves)]
            if traces is not None and not traces:
                traces += [[] for _ in waves]
                traced = traces
            else:
                traced = None
            while waves:
                order = list(waves)
                if random is not None:
                    random.shuffle(order)
                for wave in order:
                    machine.trace = traced[wave.number] if traced is not None else None
                    try:
                        if machine.resume(wave, code, executed, limit) == AT_END:
                            waves.remove(wave)
                    except Fault as fault:
                        raise Fault(describe(fault, kernel, place, wave)) from None
                machine.shared.forget()
    counts = Counter()
    for (_, text), times in zip(kernel.lines, executed, strict=True):
        counts[text.split()[0]] += times
    return +counts


def describe(fault: Fault, kernel: Kernel, place, wave: Wave) -> str:
    address, text = kernel.lines[fault.place]
    message = fault.args[0]
    if len(fault.args) > 1:  # which of the active lanes
        message += f", lane {fault.lanes[fault.args[1]]}"
    return f"{message}: {text} at {address:#x} of {kernel.name}, workgroup {place}, wave {wave.number}"
