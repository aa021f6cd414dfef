"""What the interpreter must know of a chip beside its instructions: lanes of a wave, counters of outstanding accesses.

Sources: AMD's ISA documents of CDNA2 to CDNA4, RDNA3 and RDNA4, chapters on data dependency resolution; LLVM, "User
Guide for AMDGPU Backend", memory model and initial registers.
"""

from dataclasses import dataclass, field

from .instructions import matrix_instructions

GFX9 = {"load": "vmcnt", "store": "vmcnt", "lds": "lgkmcnt", "scalar": "lgkmcnt"}
GFX11 = GFX9 | {"store": "vscnt"}
GFX12 = {"load": "loadcnt", "store": "storecnt", "lds": "dscnt", "scalar": "kmcnt"}


@dataclass(frozen=True)
class Chip:
    lanes: int
    counters: dict = field(default_factory=lambda: GFX9)  # kind of access -> the counter that it counts in
    is_rdna: bool = False
    has_split_barriers: bool = False  # s_barrier_signal, s_barrier_wait
    has_block_ids_in_ttmp: bool = False
    has_wide_lds_copies: bool = False  # of 12 and 16 bytes a lane, beyond 64 KiB
    matrix_instructions: dict = field(default_factory=lambda: matrix_instructions(False, False))


CHIPS = {
    "gfx90a": Chip(64),
    "gfx942": Chip(64),
    "gfx950": Chip(64, has_wide_lds_copies=True),
    "gfx1100": Chip(32, GFX11, is_rdna=True, matrix_instructions=matrix_instructions(True, True)),
    "gfx1201": Chip(
        32,
        GFX12,
        is_rdna=True,
        has_split_barriers=True,
        has_block_ids_in_ttmp=True,
        matrix_instructions=matrix_instructions(True, False),
    ),
}
