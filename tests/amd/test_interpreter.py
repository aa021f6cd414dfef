"""The interpreter of AMD's instructions: single instructions by cases worked out by hand, errors that
it must find, and whole kernels (kernels.hip) compared with float64.

Mutants of the compiled kernels that must be found: every s_waitcnt and every s_barrier removed, one at a time; a store
guard; a wrong offset along k; a barrier missing in the source.
"""

import os
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from amd_interpreter.assembly import EXEC, VCC
from amd_interpreter.instructions import fma_f32, fma_f64
from amd_interpreter.interpreter import Fault, Machine, Memory, UnknownInstruction, load, run, unknown_instructions
from amd_interpreter.memory import GARBAGE, SharedMemory
from compilers import IS_WHOLE

HERE = Path(__file__).parent
CDNA, RDNA = ["gfx942", "gfx90a", "gfx950"], ["gfx1100", "gfx1201"]
ARCHS = CDNA + RDNA
ALL = (1 << 64) - 1
INF, NAN = float("inf"), float("nan")


def need(*programs: str):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        reason = f"{', '.join(missing)} not found (Debian: clang-22 lld-22 llvm-22)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must not skip this: {reason}")
        pytest.skip(reason)


# ---- Single instructions


def bits(value) -> int:
    """Of a register: floats are fp32."""
    return int(np.float32(value).view(np.uint32)) if isinstance(value, float) else value & 0xFFFFFFFF


def set_registers(machine: Machine, **registers) -> Machine:
    """v1=..., s4=..., vcc=..., exec=..., scc=...; the same value in all lanes, or a list."""
    for name, value in registers.items():
        if name == "scc":
            machine.scc[0] = value
        elif name in ("vcc", "exec"):
            machine.masks[{"vcc": VCC, "exec": EXEC}[name] // machine.mask_size] = value
            machine.exec_changed()
        elif name[0] == "s":
            machine.scalar[32][int(name[1:])] = bits(value)
        else:
            values = value if isinstance(value, list) else [value] * machine.num_lanes
            machine.vector_view(int(name[1:]) + (256 if name[0] == "a" else 0), "u32")[:] = [bits(x) for x in values]
    return machine


def get(machine: Machine, name: str):
    if name == "scc":
        return machine.scc[0]
    if name in ("vcc", "exec"):
        return machine.masks[{"vcc": VCC, "exec": EXEC}[name] // machine.mask_size]
    if name[0] == "s":
        return machine.scalar[32][int(name[1:])]
    values = machine.vector_view(int(name[1:]) + (256 if name[0] == "a" else 0), "u32").tolist()
    return values[0] if len(set(values)) == 1 else values


def double(value: float, low: str) -> dict:
    """The two registers of a double."""
    word = int(np.float64(value).view(np.uint64))
    return {low: word & 0xFFFFFFFF, f"{low[0]}{int(low[1:]) + 1}": word >> 32}


HALVES = {"v1": 0x40003C00, "v2": 0x44004200}  # fp16: 1 and 2; 3 and 4
PAIRS = {"v2": 1.0, "v3": 2.0, "v4": 3.0, "v5": 5.0, "v6": 10.0, "v7": 20.0}
SDWA = "dst_sel:DWORD dst_unused:UNUSED_PAD"
CASES = [
    # Integers
    ("v_add_u32_e32 v0, v1, v2", {"v1": 0xFFFFFFFF, "v2": 2}, {"v0": 1}),
    ("v_add_co_u32_e32 v0, vcc, v1, v2", {"v1": 0xFFFFFFFF, "v2": 1}, {"v0": 0, "vcc": ALL}),
    ("v_add_co_u32_e64 v0, s[4:5], v1, v2", {"v1": 0xFFFFFFFE, "v2": 1}, {"v0": 0xFFFFFFFF, "s4": 0, "s5": 0}),
    ("v_addc_co_u32_e32 v0, vcc, v1, v2, vcc", {"v1": 0xFFFFFFFF, "v2": 0, "vcc": 5}, {"vcc": 5}),
    ("v_subrev_co_u32_e32 v0, vcc, v1, v2", {"v1": 3, "v2": 2}, {"v0": 0xFFFFFFFF, "vcc": ALL}),
    ("v_subb_co_u32_e32 v0, vcc, v1, v2, vcc", {"v1": 7, "v2": 7, "vcc": ALL}, {"v0": 0xFFFFFFFF, "vcc": ALL}),
    ("v_subbrev_co_u32_e32 v0, vcc, 0, v2, vcc", {"v2": 9, "vcc": 0}, {"v0": 9, "vcc": 0}),
    (
        "v_mad_u64_u32 v[0:1], s[6:7], v2, v3, v[4:5]",
        {"v2": -1, "v3": -1, "v4": -1, "v5": -1},
        {"v0": 0, "v1": 0xFFFFFFFE, "s6": 0xFFFFFFFF, "s7": 0xFFFFFFFF},
    ),
    ("v_mad_u64_u32 v[0:1], s[6:7], v2, 3, 7", {"v2": 0x80000000}, {"v0": 0x80000007, "v1": 1, "s6": 0, "s7": 0}),
    ("v_mad_i64_i32 v[0:1], s[6:7], v2, v3, 0", {"v2": -2, "v3": 3}, {"v0": 0xFFFFFFFA, "v1": 0xFFFFFFFF}),
    (
        "v_lshl_add_u64 v[0:1], v[2:3], 2, v[4:5]",
        {"v2": 0x40000001, "v3": 1, "v4": 0xFFFFFFFF, "v5": 0},
        {"v0": 3, "v1": 6},
    ),
    ("v_lshl_add_u64 v[0:1], s[2:3], 0, v[4:5]", {"s2": 1, "s3": 2, "v4": 3, "v5": 4}, {"v0": 4, "v1": 6}),
    ("v_lshlrev_b64 v[0:1], 33, v[2:3]", {"v2": 3, "v3": 9}, {"v0": 0, "v1": 6}),
    ("v_ashrrev_i64 v[0:1], 33, v[2:3]", {"v2": 3, "v3": -8}, {"v0": 0xFFFFFFFC, "v1": 0xFFFFFFFF}),
    ("v_mul_hi_u32 v0, v1, v2", {"v1": -1, "v2": -1}, {"v0": 0xFFFFFFFE}),
    ("v_mul_hi_i32 v0, v1, v2", {"v1": -1, "v2": 5}, {"v0": 0xFFFFFFFF}),
    ("v_mul_lo_u32 v0, v1, v2", {"v1": 0x10001, "v2": 0x10001}, {"v0": 0x20001}),
    ("v_mul_i32_i24_e32 v0, v1, v2", {"v1": 0xFFFFFE, "v2": 3}, {"v0": 0xFFFFFFFA}),
    ("v_mad_u32_u24 v0, v1, v2, 5", {"v1": 0xFF000002, "v2": 3}, {"v0": 11}),
    ("v_mad_i32_i24 v0, v1, v2, -1", {"v1": 0xFFFFFF, "v2": 3}, {"v0": 0xFFFFFFFC}),
    ("v_alignbit_b32 v0, v1, v2, 8", {"v1": 0x11223344, "v2": 0x55667788}, {"v0": 0x44556677}),
    ("v_alignbyte_b32 v0, v1, v2, 3", {"v1": 0x11223344, "v2": 0x55667788}, {"v0": 0x22334455}),
    ("v_bfe_u32 v0, v1, 8, 12", {"v1": 0xABCDEF12}, {"v0": 0xDEF}),
    ("v_bfe_i32 v0, v1, 8, 12", {"v1": 0xABCDEF12}, {"v0": 0xFFFFFDEF}),
    ("v_bfe_i32 v0, v1, 8, 0", {"v1": 0xABCDEF12}, {"v0": 0}),
    ("v_bfi_b32 v0, v1, v2, v3", {"v1": 0xFF00FF00, "v2": 0x12345678, "v3": 0x9ABCDEF0}, {"v0": 0x12BC56F0}),
    ("v_perm_b32 v0, v1, v2, v3", {"v1": 0x77665544, "v2": 0x33221100, "v3": 0x04030605}, {"v0": 0x44336655}),
    ("v_perm_b32 v0, v1, v2, v3", {"v1": 0x87665544, "v2": 0x33221100, "v3": 0x0B080C0D}, {"v0": 0xFF0000FF}),
    ("v_and_or_b32 v0, v1, 60, v2", {"v1": 0xFF, "v2": 0x100}, {"v0": 0x13C}),
    ("v_lshl_or_b32 v0, v1, 4, v2", {"v1": 0xF0000001, "v2": 2}, {"v0": 0x12}),
    ("v_add_lshl_u32 v0, v1, v2, 4", {"v1": 1, "v2": 2}, {"v0": 0x30}),
    ("v_ashrrev_i32_e32 v0, 4, v1", {"v1": 0x80000000}, {"v0": 0xF8000000}),
    ("v_bfrev_b32_e32 v0, v1", {"v1": 0x00000013}, {"v0": 0xC8000000}),
    ("v_ffbh_u32_e32 v0, v1", {"v1": 0x00010000}, {"v0": 15}),
    ("v_ffbl_b32_e32 v0, v1", {"v1": 0}, {"v0": 0xFFFFFFFF}),
    ("v_bcnt_u32_b32 v0, v1, 64", {"v1": 0xF0F0}, {"v0": 72}),
    ("v_mbcnt_lo_u32_b32 v0, -1, 0", {}, {"v0": [min(i, 32) for i in range(64)]}),
    ("v_mbcnt_hi_u32_b32 v0, -1, v1", {"v1": 32}, {"v0": [32 + max(i - 32, 0) for i in range(64)]}),
    ("v_pk_add_u16 v0, v1, v2", {"v1": 0x0001FFFF, "v2": 0x00010001}, {"v0": 0x00020000}),
    ("v_sad_u32 v0, v1, v2, 5", {"v1": 3, "v2": 10}, {"v0": 12}),
    ("v_lshlrev_b16_e32 v0, 4, v1", {"v0": -1, "v1": 0xABCD1234}, {"v0": 0x2340}),
    ("v_or_b32_e32 v0, 1.0, v1", {"v1": 1}, {"v0": 0x3F800001}),
    ("v_mov_b64_e32 v[0:1], s[2:3]", {"s2": 5, "s3": 6}, {"v0": 5, "v1": 6}),
    ("v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]", PAIRS, {"v0": bits(2.0), "v1": bits(3.0)}),
    ("v_accvgpr_write_b32 a3, v1", {"v1": 7}, {"a3": 7}),
    # Floating point
    ("v_fma_f32 v0, -v1, |v2|, v3", {"v1": 2.0, "v2": -3.0, "v3": 1.0}, {"v0": bits(-5.0)}),
    ("v_fma_f32 v0, v1, v1, v2", {"v1": 1 + 2.0**-12, "v2": -1 - 2.0**-11}, {"v0": bits(2.0**-24)}),
    # In fp64 the sum is the middle between two fp32 numbers, and the even one is wrong.
    ("v_fma_f32 v0, v1, v1, v2", {"v1": 1 + 2.0**-12, "v2": 2.0**-70}, {"v0": bits(1 + 2.0**-11 + 2.0**-23)}),
    ("v_fmac_f32_e32 v0, v1, v2", {"v0": 1.0, "v1": 2.0, "v2": 3.0}, {"v0": bits(7.0)}),
    ("v_fmamk_f32 v0, v1, 0x40400000, v2", {"v1": 2.0, "v2": 1.0}, {"v0": bits(7.0)}),
    ("v_fmaak_f32 v0, v1, v2, 0x3f800000", {"v1": 2.0, "v2": 3.0}, {"v0": bits(7.0)}),
    ("v_add_f32_e64 v0, v1, v2 clamp", {"v1": 2.0, "v2": 3.0}, {"v0": bits(1.0)}),
    ("v_mul_f32_e64 v0, v1, v2 mul:2", {"v1": 2.0, "v2": 3.0}, {"v0": bits(12.0)}),
    ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]", PAIRS, {"v0": bits(13.0), "v1": bits(30.0)}),
    ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel_hi:[1,0,1]", PAIRS, {"v0": bits(13.0), "v1": bits(26.0)}),
    ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[0,1,0]", PAIRS, {"v0": bits(15.0), "v1": bits(30.0)}),
    ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] neg_lo:[1,0,0]", PAIRS, {"v0": bits(7.0), "v1": bits(30.0)}),
    ("v_pk_mul_f32 v[0:1], v[2:3], s[4:5] op_sel:[1,0]", PAIRS | {"s4": 3.0, "s5": 5.0}, {"v0": bits(6.0)}),
    ("v_pk_fma_f16 v0, v1, v2, v2", HALVES, {"v0": 0x4A004600}),  # 1 * 3 + 3, 2 * 4 + 4
    ("v_fma_mix_f32 v0, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]", HALVES | {"v3": 0.5}, {"v0": bits(6.5)}),
    ("v_fma_mixhi_f16 v0, v1, v2, v3 op_sel_hi:[1,1,0]", HALVES | {"v0": 1, "v3": 0.5}, {"v0": 0x43000001}),
    ("v_min_f32_e32 v0, v1, v2", {"v1": NAN, "v2": 3.0}, {"v0": bits(3.0)}),
    ("v_max_f32_e32 v0, v1, v2", {"v1": -0.0, "v2": 0.0}, {"v0": 0}),
    ("v_min_f32_e32 v0, v1, v2", {"v1": 0.0, "v2": -0.0}, {"v0": 0x80000000}),
    ("v_med3_f32 v0, v1, v2, 1.0", {"v1": 5.0, "v2": 2.0}, {"v0": bits(2.0)}),
    ("v_ldexp_f32 v0, v1, -3", {"v1": 8.0}, {"v0": bits(1.0)}),
    ("v_rndne_f32_e32 v0, v1", {"v1": 2.5}, {"v0": bits(2.0)}),
    ("v_fract_f32_e32 v0, v1", {"v1": -0.25}, {"v0": bits(0.75)}),
    ("v_add_f64 v[0:1], v[2:3], 1.0", double(2.0, "v2"), double(3.0, "v0")),
    ("v_trunc_f64_e32 v[0:1], 0x40090000", {}, double(3.0, "v0")),  # a literal is the upper half
    (
        "v_fma_f64 v[0:1], v[2:3], v[2:3], -v[4:5]",
        double(1 + 2.0**-30, "v2") | double(1 + 2.0**-29, "v4"),
        double(2.0**-60, "v0"),
    ),
    # Conversions
    *[
        ("v_cvt_f16_f32_e32 v0, v1", {"v0": -1, "v1": value}, {"v0": half})
        for value, half in [
            (2049.0, 0x6800),  # the middle: to even
            (2051.0, 0x6802),
            (65519.0, 0x7BFF),
            (65520.0, 0x7C00),
            (2.0**-25, 0),
            (1.5 * 2.0**-25, 1),
            (-0.0, 0x8000),
        ]
    ],
    ("v_cvt_f32_f16_e32 v0, v1", {"v1": 0xFFFF3C00}, {"v0": bits(1.0)}),
    (f"v_cvt_f32_f16_sdwa v0, v1 {SDWA} src0_sel:WORD_1", {"v1": 0xC0003C00}, {"v0": bits(-2.0)}),
    ("v_cvt_pkrtz_f16_f32 v0, v1, v2", {"v1": 2051.0, "v2": -65535.0}, {"v0": 0xFBFF6801}),
    *[
        ("v_cvt_u32_f32_e32 v0, v1", {"v1": value}, {"v0": result})
        for value, result in [(3.99, 3), (-1.0, 0), (NAN, 0), (5e9, 0xFFFFFFFF), (INF, 0xFFFFFFFF)]
    ],
    ("v_cvt_i32_f32_e32 v0, v1", {"v1": -3e9}, {"v0": 0x80000000}),
    ("v_cvt_f32_u32_e32 v0, v1", {"v1": 0xFFFFFFFF}, {"v0": bits(4294967296.0)}),
    ("v_cvt_f32_ubyte2_e32 v0, v1", {"v1": 0x00FE0000}, {"v0": bits(254.0)}),
    ("v_cvt_f64_i32_e32 v[0:1], v2", {"v2": -5}, double(-5.0, "v0")),
    ("v_cvt_f32_f64_e32 v0, v[2:3]", double(1 + 2.0**-24 + 2.0**-40, "v2"), {"v0": bits(1 + 2.0**-23)}),
    # Parts of registers
    (f"v_or_b32_sdwa v0, v1, v2 {SDWA} src0_sel:WORD_1 src1_sel:DWORD", {"v1": 0x12345678, "v2": 1}, {"v0": 0x1235}),
    (
        f"v_add_u32_sdwa v0, sext(v1), v2 {SDWA} src0_sel:BYTE_1 src1_sel:BYTE_3",
        {"v1": 0x8000, "v2": 1 << 24},
        {"v0": -127},
    ),
    (
        "v_mov_b32_sdwa v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0",
        {"v0": 0x11112222, "v1": 0x33334444},
        {"v0": 0x44442222},
    ),
    (
        "v_add_u16_sdwa v0, v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1",
        {"v0": -1, "v1": 1, "v2": 0x20000},
        {"v0": 0x300},
    ),
    (
        "v_cvt_f16_f32_sdwa v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD",
        {"v0": 0x11112222, "v1": 1.0},
        {"v0": 0x3C002222},
    ),
    ("v_fma_f32 v0, s4, s4, v2", {"s4": 1 + 2.0**-12, "v2": 2.0**-70}, {"v0": bits(1 + 2.0**-11 + 2.0**-23)}),
    # Masks
    ("v_cmp_lt_i32_e32 vcc, v1, v2", {"v1": -1, "v2": 0, "exec": 6}, {"vcc": 6}),
    ("v_cmp_lt_u32_e64 s[4:5], v1, v2", {"v1": -1, "v2": 0}, {"s4": 0, "s5": 0}),
    ("v_cmp_ngt_f32_e32 vcc, 0, v1", {"v1": NAN}, {"vcc": ALL}),
    ("v_cmp_lg_f32_e32 vcc, 0, v1", {"v1": NAN}, {"vcc": 0}),
    ("v_cmp_ge_i64_e32 vcc, s[4:5], v[2:3]", {"s4": 0, "s5": 0, "v2": -1, "v3": -1}, {"vcc": ALL}),
    ("v_cmpx_eq_u32_e32 vcc, v1, v2", {"v1": list(range(64)), "v2": 3}, {"vcc": 8, "exec": 8}),
    ("v_cmp_class_f32_e64 s[4:5], v1, 3", {"v1": NAN}, {"s4": 0xFFFFFFFF}),
    ("v_cmp_class_f32_e64 s[4:5], v1, 4", {"v1": -INF}, {"s4": 0xFFFFFFFF}),
    ("v_cmp_class_f32_e32 vcc, v1, v2", {"v1": 1e-40, "v2": 0x80}, {"vcc": ALL}),
    (
        "v_cndmask_b32_e64 v0, 0, v1, s[4:5]",
        {"v1": 5, "s4": 2, "s5": 0, "exec": 7, "v0": 9},
        {"v0": [0, 5, 0] + [9] * 61},
    ),
    # Across lanes
    ("v_readfirstlane_b32 s4, v1", {"v1": list(range(64)), "exec": 0xF00}, {"s4": 8}),
    ("v_readlane_b32 s4, v1, 5", {"v1": list(range(64)), "exec": 1}, {"s4": 5}),
    ("v_writelane_b32 v0, s4, 2", {"v0": 0, "s4": 9, "exec": 1}, {"v0": [0, 0, 9] + [0] * 61}),
    # Scalars
    ("s_add_u32 s0, s1, s2", {"s1": -1, "s2": 1}, {"s0": 0, "scc": 1}),
    ("s_addc_u32 s0, s1, 0", {"s1": -1, "scc": 1}, {"s0": 0, "scc": 1}),
    ("s_add_i32 s0, s1, 1", {"s1": 0x7FFFFFFF}, {"s0": 0x80000000, "scc": 1}),
    ("s_sub_u32 s0, 0, s1", {"s1": 1}, {"s0": 0xFFFFFFFF, "scc": 1}),
    ("s_subb_u32 s0, s1, s2", {"s1": 5, "s2": 5, "scc": 1}, {"s0": 0xFFFFFFFF, "scc": 1}),
    ("s_bfe_u32 s0, s1, 0x80004", {"s1": 0xABCDEF12}, {"s0": 0xF1, "scc": 1}),
    ("s_bfe_i32 s0, s1, 0x80004", {"s1": 0xABCDEF12}, {"s0": 0xFFFFFFF1, "scc": 1}),
    ("s_bfe_u64 s[0:1], s[2:3], 0x80020", {"s2": 0, "s3": 0x1FF}, {"s0": 0xFF, "s1": 0, "scc": 1}),
    ("s_lshl_b64 s[0:1], s[2:3], 33", {"s2": 3, "s3": 9}, {"s0": 0, "s1": 6, "scc": 1}),
    ("s_ashr_i64 s[0:1], s[2:3], 5", {"s2": 0, "s3": 0x80000000}, {"s0": 0, "s1": 0xFC000000}),
    ("s_ashr_i32 s0, s1, 31", {"s1": 0x80000000}, {"s0": 0xFFFFFFFF, "scc": 1}),
    ("s_mul_hi_u32 s0, s1, s2", {"s1": -1, "s2": -1, "scc": 1}, {"s0": 0xFFFFFFFE, "scc": 1}),
    ("s_mul_hi_i32 s0, s1, s2", {"s1": -1, "s2": 1}, {"s0": 0xFFFFFFFF}),
    ("s_andn2_b32 s0, s1, -2.0", {"s1": -1}, {"s0": 0x3FFFFFFF, "scc": 1}),
    ("s_xor_b64 s[0:1], s[2:3], -1", {"s2": -1, "s3": -1}, {"s0": 0, "s1": 0, "scc": 0}),
    ("s_cselect_b32 s0, 7, 9", {"scc": 0}, {"s0": 9}),
    ("s_movk_i32 s0, 0xfe80", {}, {"s0": 0xFFFFFE80}),
    ("s_ff1_i32_b64 s0, s[2:3]", {"s2": 0, "s3": 4}, {"s0": 34}),
    ("s_flbit_i32_b32 s0, s1", {"s1": 0}, {"s0": 0xFFFFFFFF}),
    ("s_cmp_gt_i32 s0, s1", {"s0": 0, "s1": -1}, {"scc": 1}),
    ("s_cmp_gt_u32 s0, s1", {"s0": 0, "s1": -1}, {"scc": 0}),
    ("s_cmpk_lg_i32 s0, 0xff00", {"s0": -256}, {"scc": 0}),
    ("s_cmpk_lg_u32 s0, 0xff00", {"s0": 0xFF00}, {"scc": 0}),
    ("s_cmp_lg_u64 s[0:1], 0", {"s0": 0, "s1": 1}, {"scc": 1}),
    ("s_bitcmp1_b32 s0, 3", {"s0": 8}, {"scc": 1}),
    ("s_and_saveexec_b64 s[0:1], vcc", {"vcc": 6, "exec": 12}, {"s0": 12, "exec": 4, "scc": 1}),
    ("s_andn2_saveexec_b64 s[0:1], s[0:1]", {"s0": 15, "s1": 0, "exec": 12}, {"s0": 12, "exec": 3, "scc": 1}),
    ("s_lshl2_add_u32 s0, s1, s2", {"s1": 0x40000000, "s2": 5}, {"s0": 5, "scc": 1}),
    ("s_pack_lh_b32_b16 s0, s1, s2", {"s1": 0x11112222, "s2": 0x33334444}, {"s0": 0x33332222}),
]

LOW = (1 << 32) - 1
LANES32 = list(range(32))
DUALS = {"v1": 2.0, "v2": 3.0, "v4": 1.0, "v5": 10.0, "v7": 20.0}
# RDNA3 and RDNA4 both write these so.
RDNA_CASES = [
    # Tuples begin anywhere; masks are single registers.
    ("v_add_co_u32 v0, vcc_lo, v1, v2", {"v1": -1, "v2": 1}, {"v0": 0, "vcc": LOW}),
    ("v_add_co_u32 v0, s7, v1, v2", {"v1": list(range(-16, 16)), "v2": 1, "s8": 5}, {"s7": 1 << 15, "s8": 5}),
    ("v_add_co_ci_u32_e64 v0, null, v1, 0, s3", {"v1": 7, "s3": 2}, {"v0": [7, 8] + [7] * 30}),
    ("v_subrev_co_ci_u32_e64 v0, null, 0, v1, vcc_lo", {"v1": 7, "vcc": LOW}, {"v0": 6}),
    ("v_cmp_gt_i32_e32 vcc_lo, 3, v1", {"v1": LANES32, "exec": 6}, {"vcc": 6}),
    ("v_cmp_gt_i64_e64 s1, s[4:5], v[3:4]", {"s4": 0, "s5": 1, "v3": -1, "v4": 0}, {"s1": LOW}),
    ("v_cmpx_lt_i32_e32 2, v1", {"v1": LANES32, "exec": 0xFF}, {"exec": 0xF8}),
    ("v_cndmask_b32_e64 v0, v1, v2, s3", {"v1": 5, "v2": 6, "s3": 2}, {"v0": [5, 6] + [5] * 30}),
    ("v_mbcnt_lo_u32_b32 v0, -1, 3", {}, {"v0": [3 + i for i in LANES32]}),
    ("v_readlane_b32 s4, v1, 33", {"v1": LANES32}, {"s4": 1}),
    ("s_and_saveexec_b32 s0, vcc_lo", {"vcc": 6, "exec": 12}, {"s0": 12, "exec": 4, "scc": 1}),
    ("s_and_not1_saveexec_b32 s0, s1", {"s1": 15, "exec": 12}, {"s0": 12, "exec": 3, "scc": 1}),
    ("s_or_not1_b32 s0, s1, s2", {"s1": 1, "s2": -4}, {"s0": 3, "scc": 1}),
    ("s_ctz_i32_b64 s0, s[2:3]", {"s2": 0, "s3": 4}, {"s0": 34}),
    ("s_pack_hl_b32_b16 s0, s1, s2", {"s1": 0x11112222, "s2": 0x33334444}, {"s0": 0x44441111}),
    # Two in one: both read before either writes.
    (
        "v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5",
        DUALS | {"v0": 1.0},
        {"v0": bits(7.0), "v3": bits(10.0)},
    ),
    ("v_dual_mov_b32 v1, v2 :: v_dual_add_f32 v2, v5, v7", DUALS, {"v1": bits(3.0), "v2": bits(30.0)}),
    ("v_dual_add_f32 v2, v5, v7 :: v_dual_mov_b32 v1, v2", DUALS, {"v1": bits(3.0), "v2": bits(30.0)}),
    (
        "v_dual_cndmask_b32 v0, v1, v2 :: v_dual_fmaak_f32 v3, v4, v5, 0x40000000",
        DUALS | {"vcc": 1},
        {"v0": [bits(3.0)] + [bits(2.0)] * 31, "v3": bits(12.0)},
    ),
    ("v_dual_mov_b32 v3, v4 :: v_dual_add_nc_u32 v0, v1, v2", {"v1": -1, "v2": 3, "v4": 5}, {"v0": 2, "v3": 5}),
    # 16 bits keep the other half.
    ("v_cvt_f32_f16_e32 v0, v1", {"v1": 0xFFFF3C00}, {"v0": bits(1.0)}),
    ("v_fma_mix_f32 v0, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]", HALVES | {"v3": 0.5}, {"v0": bits(6.5)}),
    ("v_perm_b32 v0, v1, v2, s3", {"v1": 0x77665544, "v2": 0x33221100, "s3": 0x04030605}, {"v0": 0x44336655}),
    ("v_dot2_f32_f16 v0, v1, v2, v3", HALVES | {"v3": 0.5}, {"v0": bits(11.5)}),
    ("v_dot2_f32_bf16 v0, v1, v2, v3", {"v1": 0x40003F80, "v2": 0x40803F80, "v3": 0.5}, {"v0": bits(9.5)}),
    # Rows of 16 lanes: four bits a lane from the pair of scalars.
    (
        "v_permlane16_b32 v0, v1, s2, s3",
        {"v1": LANES32, "s2": 0x11111110, "s3": 0xF},
        {"v0": [0] + [1] * 7 + [15] + [0] * 7 + [16] + [17] * 7 + [31] + [16] * 7},
    ),
    ("v_permlanex16_b32 v0, v1, s2, s3", {"v1": LANES32, "s2": 0, "s3": 0}, {"v0": [16] * 16 + [0] * 16}),
    ("v_permlane16_b32 v0, v1, 0, 0", {"v0": 9, "v1": LANES32, "exec": 0xFFFE}, {"v0": 9}),
]
ONLY_RDNA = {
    "gfx1100": [
        ("v_mad_u64_u32 v[1:2], null, v3, v4, v[5:6]", {"v3": -1, "v4": 2, "v5": 3, "v6": 4}, {"v1": 1, "v2": 6}),
        ("v_mov_b16_e32 v0.l, v1.h", {"v0": 0x11112222, "v1": 0x33334444}, {"v0": 0x11113333}),
        ("v_cvt_f16_f32_e32 v0.h, v1", {"v0": 0x11112222, "v1": 1.0}, {"v0": 0x3C002222}),
        ("v_cvt_f16_f32_e32 v0.l, v1", {"v0": 0x11112222, "v1": 1.0}, {"v0": 0x11113C00}),
        ("v_lshlrev_b64 v[1:2], 33, v[3:4]", {"v3": 3, "v4": 9}, {"v1": 0, "v2": 6}),
    ],
    "gfx1201": [
        ("v_mad_co_u64_u32 v[1:2], null, v3, v4, v[5:6]", {"v3": -1, "v4": 2, "v5": 3, "v6": 4}, {"v1": 1, "v2": 6}),
        ("v_max_num_f32_e32 v0, v1, v2", {"v1": NAN, "v2": 3.0}, {"v0": bits(3.0)}),
        ("v_cvt_f16_f32_e32 v0, v1", {"v0": 0x11112222, "v1": 1.0}, {"v0": 0x11113C00}),
        ("v_lshlrev_b64_e32 v[1:2], 33, v[3:4]", {"v3": 3, "v4": 9}, {"v1": 0, "v2": 6}),
        ("s_add_nc_u64 s[0:1], s[2:3], s[4:5]", {"s2": -1, "s3": 1, "s4": 1, "s5": 0}, {"s0": 0, "s1": 2}),
        ("s_mul_u64 s[0:1], s[2:3], s[4:5]", {"s2": -1, "s3": 0, "s4": 4, "s5": 0}, {"s0": -4, "s1": 3}),
        ("s_add_co_ci_u32 s0, s1, 0", {"s1": -1, "scc": 1}, {"s0": 0, "scc": 1}),
        ("s_fmac_f32 s0, s1, s2", {"s0": 1.0, "s1": 2.0, "s2": 3.0}, {"s0": bits(7.0)}),
        ("s_cvt_u32_f32 s0, s1", {"s1": 3.9}, {"s0": 3}),
        ("s_cmp_lt_f32 s0, s1", {"s0": 1.0, "s1": 2.0}, {"scc": 1}),
        ("v_s_rcp_f32 s0, s1", {"s1": 4.0}, {"s0": bits(0.25)}),
    ],
}
CDNA_CASES = [
    ("s_addk_i32 s0, 0xfffe", {"s0": 5}, {"s0": 3, "scc": 0}),
    ("s_bitset1_b32 s2, 7", {"s2": 5, "scc": 1}, {"s2": 133, "scc": 1}),
    ("s_bitset0_b32 s2, 34", {"s2": 5, "scc": 1}, {"s2": 1, "scc": 1}),
    ("s_mulk_i32 s0, 0xfffe", {"s0": 5}, {"s0": -10}),
]
ALL_CASES = [("gfx942", *case) for case in CASES + CDNA_CASES]
ALL_CASES += [(arch, *case) for arch in RDNA for case in RDNA_CASES + ONLY_RDNA[arch]]
ALL_CASES += [
    ("gfx950", "v_cvt_pk_f16_f32 v0, v1, v2", {"v1": 2049.0, "v2": 2051.0}, {"v0": 0x68026800}),
    ("gfx950", "v_bitop3_b32 v0, v1, v2, v3 bitop3:0x36", {"v1": 0xF0, "v2": 0xCC, "v3": 0xAA}, {"v0": 0x36}),
    ("gfx950", "v_bitop3_b16 v0, v1, v2, v3 bitop3:0xfe", {"v1": 0x10F0, "v2": 0x1200C, "v3": 3}, {"v0": 0x30FF}),
    ("gfx950", "v_cvt_pk_bf16_f32 v0, v1, v2", {"v1": 1 + 2.0**-8, "v2": 1 + 3 * 2.0**-8}, {"v0": 0x3F823F80}),
]


@pytest.mark.parametrize(
    "arch, text, before, after", ALL_CASES, ids=[f"{i}-{case[1].split()[0]}" for i, case in enumerate(ALL_CASES)]
)
def test_instruction(arch, text, before, after):
    machine = set_registers(Machine(arch), **before).execute(text)
    for name, expected in after.items():
        found = get(machine, name)
        expected = expected if isinstance(expected, list) or name in ("vcc", "exec", "scc") else expected & 0xFFFFFFFF
        assert found == expected, f"{name}: {found if isinstance(found, list) else hex(found)}"


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", *RDNA])
def test_cases_are_instructions_as_the_disassembler_writes_them(arch):
    need("llvm-mc-22")
    texts = [case[1] for case in ALL_CASES if case[0] == arch]
    command = ["llvm-mc-22", "-arch=amdgcn", f"-mcpu={arch}"]
    done = subprocess.run(command, input="\n".join(texts), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    written = [line.split(";")[0].strip() for line in done.stdout.splitlines()]
    assert [line for line in written if line and not line.startswith(".")] == texts


def test_inactive_lanes_keep_their_registers():
    machine = set_registers(Machine(), v0=1, v1=5, exec=0b1010).execute("v_mov_b32_e32 v0, v1")
    assert get(machine, "v0")[:4] == [1, 5, 1, 5]


def test_fma_rounds_once():
    """Against exact fractions: random numbers with exponents close enough for the last bits to matter."""
    random = np.random.default_rng(3)
    for dtype, fma, spread in ((np.float32, fma_f32, 40), (np.float64, fma_f64, 70)):
        a, b = (random.standard_normal(4000).astype(dtype) for _ in range(2))
        c = (random.standard_normal(4000) * 2.0 ** random.integers(-spread, spread, 4000)).astype(dtype)
        a[::7], c[::5] = dtype(1) + dtype(2) ** -12, -c[::5]
        found = fma(a, b, c)
        for x, y, z, result in zip(a, b, c, found, strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            error = abs(Fraction(float(result)) - exact)
            for neighbour in (np.nextafter(result, dtype(INF)), np.nextafter(result, dtype(-INF))):
                assert error <= abs(Fraction(float(neighbour)) - exact), (x, y, z)
    with np.errstate(all="ignore"):
        for a, b, c, expected in [
            (1e308, 10.0, -INF, -INF),
            (1e200, 1e200, 1.0, INF),
            (1e200, 1e200, -1e308, INF),
            (2.0**-600, 2.0**-474, 0.0, 2.0**-1074),
            (2.0**-600, 2.0**-475, 2.0**-1074, 2.0**-1073),  # the middle: to even
        ]:
            assert fma_f64(*(np.array([x]) for x in (a, b, c)))[0] == expected


# Lane layouts by the formulas of AMD's matrix instruction calculator: m, k, elements of A and of D a lane holds, A's k
# and D's row by lane and element. A's row, B's column and D's column are lane % m.
def rows_in_fours(m):
    return lambda lane, r: r // 4 * (4 * (64 // m)) + 4 * (lane // m) + r % 4


LAYOUTS = {
    "v_mfma_f32_16x16x4_f32": (16, 4, 1, 4, lambda lane, e: lane // 16, rows_in_fours(16)),
    "v_mfma_f32_16x16x16_f16": (16, 16, 4, 4, lambda lane, e: 4 * (lane // 16) + e, rows_in_fours(16)),
    "v_mfma_f32_16x16x16_bf16": (16, 16, 4, 4, lambda lane, e: 4 * (lane // 16) + e, rows_in_fours(16)),
    "v_mfma_f32_32x32x2_f32": (32, 2, 1, 16, lambda lane, e: lane // 32, rows_in_fours(32)),
    "v_mfma_f32_32x32x8_f16": (32, 8, 4, 16, lambda lane, e: 4 * (lane // 32) + e, rows_in_fours(32)),
    "v_mfma_f64_16x16x4_f64": (16, 4, 1, 4, lambda lane, e: lane // 16, lambda lane, r: 4 * r + lane // 16),
    "v_mfma_f32_16x16x32_f16": (16, 32, 8, 4, lambda lane, e: 8 * (lane // 16) + e, rows_in_fours(16)),
    "v_mfma_f32_16x16x32_bf16": (16, 32, 8, 4, lambda lane, e: 8 * (lane // 16) + e, rows_in_fours(16)),
    "v_mfma_f32_32x32x16_f16": (32, 16, 8, 16, lambda lane, e: 8 * (lane // 32) + e, rows_in_fours(32)),
}
RDNA3_LAYOUT = (16, 16, 16, 8, lambda lane, e: e, lambda lane, r: 2 * r + lane // 16)
RDNA4_LAYOUT = (16, 16, 8, 8, lambda lane, e: 8 * (lane // 16) + e, lambda lane, r: 8 * (lane // 16) + r)
ALL_LAYOUTS = [("gfx950" if "x32_" in name or "x16_" in name else "gfx942", name, row) for name, row in LAYOUTS.items()]
ALL_LAYOUTS += [
    (arch, f"v_wmma_f32_16x16x16_{kind}", layout)
    for arch, layout in (("gfx1100", RDNA3_LAYOUT), ("gfx1201", RDNA4_LAYOUT))
    for kind in ("f16", "bf16")
]


@pytest.mark.parametrize("arch, name, layout", ALL_LAYOUTS)
def test_matrix_layout(arch, name, layout):
    """Small integers, exact in every format; the same registers written and read element by element."""
    m, k, per_lane, num_accs, k_of, row_of = layout
    kind = name.rsplit("_", 1)[1]
    random = np.random.default_rng(1)
    a, b, c = (random.integers(-8, 9, shape).astype(np.float64) for shape in ((m, k), (k, m), (m, m)))
    machine = set_registers(Machine(arch), exec=1)
    lanes = machine.num_lanes
    size = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16}[kind]
    acc = "f64" if kind == "f64" else "f32"
    acc_size = 2 if kind == "f64" else 1

    def element(register, index):
        """A view of element `index` of the operand that begins at `register`, and the function that encodes it."""
        if size == 16:
            return machine.vector_view(register + index // 2, "u16" if kind == "bf16" else "f16", index % 2)
        return machine.vector_view(register + index * size // 32, kind)

    def encoded(x):
        return int(np.float32(x).view(np.uint32)) >> 16 if kind == "bf16" else x

    for lane in range(lanes):
        for e in range(per_lane):
            element(2, e)[lane] = encoded(a[lane % m, k_of(lane, e)])
            element(10, e)[lane] = encoded(b[k_of(lane, e), lane % m])
        for r in range(num_accs):
            machine.vector_view(32 + acc_size * r, acc)[lane] = c[row_of(lane, r), lane % m]
    width = max(1, per_lane * size // 32)
    operand = (lambda first: f"v[{first}:{first + width - 1}]") if width > 1 else (lambda first: f"v{first}")
    last = num_accs * acc_size - 1
    to = 60 if arch in RDNA else 256
    result = f"v[{to}:{to + last}]" if arch in RDNA else f"a[0:{last}]"
    machine.execute(f"{name} {result}, {operand(2)}, {operand(10)}, v[32:{32 + last}]")
    expected = a @ b + c
    for lane in range(lanes):
        for r in range(num_accs):
            assert machine.vector_view(to + acc_size * r, acc)[lane] == expected[row_of(lane, r), lane % m]
    machine.execute(f"{name} {result}, {operand(2)}, {operand(10)}, 1.0")
    assert machine.vector_view(to, acc)[0] == (a @ b)[0, 0] + 1
    found = machine.chip.matrix_instructions[name]
    rows, columns = found.result()
    assert len(set(zip(rows.flat, columns.flat, strict=True))) == m * m
    assert len(set(zip(*(x.ravel() for x in found.operand()), strict=True))) == m * k
    if arch == "gfx1100":
        element(2, 3)[20] = encoded(9.0)
        with pytest.raises(Fault, match="lanes 16 to 31"):
            machine.execute(f"{name} {result}, {operand(2)}, {operand(10)}, 1.0")


def test_unknown_instructions_have_a_name():
    for text in ("v_frobnicate_b32 v0, v1", "v_add_f32_dpp v0, v1, v2 row_shr:1", "v_mov_b32_e32 v0, src_shared_base"):
        with pytest.raises(UnknownInstruction, match=text.split()[0]):
            Machine().execute(text)


# ---- Waits and bounds


def machine_with_memory(size=256, writable=False, arch="gfx942"):
    machine, data = Machine(arch), np.arange(size // 4, dtype=np.uint32)
    address = machine.memory.add("data", data, writable=writable)
    machine.shared = SharedMemory(1024)
    lanes = np.arange(machine.num_lanes)
    place = address + 4 * lanes.astype(np.uint64)
    set_registers(machine, v2=(place & 0xFFFFFFFF).tolist(), v3=(place >> np.uint64(32)).tolist())
    set_registers(machine, s0=address & 0xFFFFFFFF, s1=address >> 32, v8=(4 * lanes).tolist())
    return machine, data


LOAD, READ = "global_load_dword v4, v[2:3], off", "ds_read_b32 v5, v8"


@pytest.mark.parametrize(
    "lines",
    [
        (LOAD, "v_mov_b32_e32 v6, v4"),
        (LOAD, "v_mov_b32_e32 v4, 0"),
        (LOAD, "s_waitcnt lgkmcnt(0)", "v_mov_b32_e32 v6, v4"),
        (LOAD, "global_load_dword v6, v[2:3], off", "s_waitcnt vmcnt(1)", "v_mov_b32_e32 v7, v6"),
        (LOAD, "global_store_dword v[2:3], v8, off", "s_waitcnt vmcnt(2)", "v_mov_b32_e32 v7, v4"),
        (LOAD, "global_store_dword v[2:3], v4, off"),
        (LOAD, "ds_read_b32 v4, v8"),
        (READ, "v_mov_b32_e32 v6, v5"),
        (READ, "ds_write_b32 v8, v5"),
        (READ, "ds_read_b32 v6, v8", "s_waitcnt lgkmcnt(1)", "v_mov_b32_e32 v7, v6"),
        ("s_load_dword s4, s[0:1], 0x0", "s_add_u32 s5, s4, 1"),
        ("s_load_dwordx2 s[4:5], s[0:1], 0x0", "v_mov_b32_e32 v6, s5"),
        # Scalar loads return in any order, so a count above 0 says nothing, of LDS neither.
        ("s_load_dword s4, s[0:1], 0x0", "s_load_dword s5, s[0:1], 0x4", "s_waitcnt lgkmcnt(1)", "s_mov_b32 s6, s4"),
        (READ, "s_load_dword s4, s[0:1], 0x0", "s_waitcnt lgkmcnt(1)", "v_mov_b32_e32 v6, v5"),
        ("flat_load_dword v4, v[2:3]", "s_waitcnt vmcnt(0)", "v_mov_b32_e32 v6, v4"),
    ],
    ids=lambda lines: "; ".join(line.split()[0] for line in lines),
)
def test_missing_wait_is_found(lines):
    machine, _ = machine_with_memory(writable=True)
    with pytest.raises(Fault, match="outstanding|v[4-6]|s[45]"):
        machine.execute(*lines)


LOAD3, STORE3 = "global_load_b32 v4, v[2:3], off", "global_store_b32 v[2:3], v8, off"
READ3, SCALAR3 = "ds_load_b32 v5, v8", "s_load_b32 s4, s[0:1], 0x0"
USE_V4, USE_V5, USE_S4 = "v_mov_b32_e32 v6, v4", "v_mov_b32_e32 v6, v5", "s_mov_b32 s6, s4"


@pytest.mark.parametrize(
    "arch, lines",
    [
        ("gfx1100", (LOAD3, "s_waitcnt lgkmcnt(0)", USE_V4)),
        ("gfx1100", (LOAD3, "s_waitcnt_vscnt null, 0x0", USE_V4)),
        ("gfx1100", (LOAD3, STORE3, "s_waitcnt vmcnt(1)", USE_V4)),  # stores count on their own
        ("gfx1100", (READ3, "s_waitcnt vmcnt(0)", USE_V5)),
        ("gfx1100", (SCALAR3, READ3, "s_waitcnt lgkmcnt(1)", USE_S4)),
        ("gfx1201", (LOAD3, "s_wait_dscnt 0x0", USE_V4)),
        ("gfx1201", (LOAD3, "s_wait_storecnt_dscnt 0x0", USE_V4)),
        ("gfx1201", (LOAD3, LOAD3.replace("v4", "v7"), "s_wait_loadcnt 0x2", USE_V4)),
        ("gfx1201", (READ3, "s_wait_loadcnt 0x0", USE_V5)),
        ("gfx1201", (READ3, "s_wait_loadcnt_dscnt 0x1", USE_V5)),  # the lower byte is LDS's
        ("gfx1201", (LOAD3, READ3, "s_wait_loadcnt_dscnt 0x100", USE_V4)),
        ("gfx1201", (READ3, "s_wait_kmcnt 0x0", USE_V5)),
        ("gfx1201", (SCALAR3, "s_wait_dscnt 0x0", USE_S4)),
        ("gfx1201", (SCALAR3, SCALAR3.replace("s4", "s5"), "s_wait_kmcnt 0x1", USE_S4)),
        ("gfx1201", ("v_dual_mov_b32 v9, v4 :: v_dual_mov_b32 v10, v11",)),
    ],
)
def test_missing_wait_is_found_on_rdna(arch, lines):
    machine, _ = machine_with_memory(writable=True, arch=arch)
    if "dual" in lines[0]:
        lines = (LOAD3, *lines)
    with pytest.raises(Fault, match="v[45]|s4"):
        machine.execute(*lines)


def test_the_wait_for_each_counter_of_rdna():
    for arch, vector, lds, scalar in (
        ("gfx1100", "s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(0)"),
        ("gfx1201", "s_wait_loadcnt 0x0", "s_wait_dscnt 0x0", "s_wait_kmcnt 0x0"),
        ("gfx1201", "s_wait_loadcnt_dscnt 0x0", "s_wait_storecnt_dscnt 0x0", "s_wait_kmcnt 0x0"),
    ):
        machine, _ = machine_with_memory(writable=True, arch=arch)
        machine.execute(
            LOAD3, STORE3, vector, USE_V4, "ds_store_b32 v8, v4", READ3, lds, USE_V5, SCALAR3, scalar, USE_S4
        )
        assert get(machine, "v6") == LANES32 and get(machine, "s6") == 0


def test_accesses_between_signal_and_wait_count_on_both_sides():
    place = np.arange(4)[None]
    for is_early in (True, False):  # the other wave's access: in the same section, or in the next one
        shared = SharedMemory(64)
        shared.signal(0)
        shared.mark(place, 0, False)
        if not is_early:
            shared.forget()
        with pytest.raises(Fault, match="race"):
            shared.mark(place, 1, True)
    shared.forget()
    shared.forget()
    shared.mark(place, 1, True)


COPY = "buffer_load_dword v8, s[4:7], 0 offen lds"
COPY4 = "buffer_load_dwordx4 v9, s[4:7], 0 offen offset:16 lds"


def machine_with_buffer(arch, num_bytes=256):
    """v8: 4 bytes a lane, v9: 16 bytes a lane, s[4:7]: a buffer of 256 words, M0: 64."""
    machine, data = machine_with_memory(1024, arch=arch)
    set_registers(machine, s4=get(machine, "s0"), s5=get(machine, "s1"), s6=num_bytes, s7=0x27000)
    set_registers(machine, v9=[16 * lane for lane in range(64)]).execute("s_mov_b32 m0, 64")
    machine.shared = SharedMemory(2048)
    return machine, data


def test_copies_to_shared_memory():
    machine, data = machine_with_buffer("gfx950", 1000)
    machine.execute(COPY)
    assert (machine.shared.data[64:320].view(np.uint32) == GARBAGE).all(), "before the wait"
    machine.execute("s_waitcnt vmcnt(0)")
    assert (machine.shared.data[64:320].view(np.uint32) == data[:64]).all()
    machine.execute(COPY4, "s_waitcnt vmcnt(0)")
    expected = np.append(data[4:250], np.zeros(10, np.uint32))  # zeros beyond 1000 bytes
    assert (machine.shared.data[80:1104].view(np.uint32) == expected).all()
    set_registers(machine, exec=~1 & ALL, v9=0).execute("s_mov_b32 m0, 512", COPY4, "s_waitcnt vmcnt(0)")
    assert (machine.shared.data[528:544].view(np.uint32) == data[116:120]).all(), "of the copy before"
    assert (machine.shared.data[544:560].view(np.uint32) == data[4:8]).all()
    with pytest.raises(UnknownInstruction, match="16 bytes to LDS"):
        Machine("gfx942").execute(COPY4)


def test_a_dword_partly_in_range_is_garbage():
    machine, _ = machine_with_buffer("gfx942", 6)
    machine.execute("buffer_load_dwordx2 v[10:11], v9, s[4:7], 0 offen", "s_waitcnt vmcnt(0)")
    assert (get(machine, "v10"), get(machine, "v11")) == (0, [GARBAGE] + [0] * 63)
    with pytest.raises(Fault, match="partly"):
        machine.execute("buffer_store_dwordx2 v[10:11], v9, s[4:7], 0 offen")


def test_a_copy_may_write_until_it_is_waited_for():
    """Another wave that uses the place: before the copy is issued, while it is outstanding across barriers, and after a
    wait without a barrier; the wave itself before its wait."""
    place = 64 + np.arange(4)[None]

    def issued():
        machine, _ = machine_with_buffer("gfx950")
        return machine.execute(COPY)

    machine = machine_with_buffer("gfx950")[0]
    machine.shared.mark(place, 1, False)
    with pytest.raises(Fault, match="race"):
        machine.execute(COPY)
    for num_barriers in range(3):
        machine = issued()
        for _ in range(num_barriers):
            machine.shared.forget()
            machine.mark_outstanding()  # as when its wave goes on
        with pytest.raises(Fault, match="race"):
            machine.shared.mark(place, 1, False)
    machine = issued().execute("s_waitcnt vmcnt(0)")
    with pytest.raises(Fault, match="race"):
        machine.shared.mark(place, 1, False)
    machine.shared.forget()
    machine.shared.mark(place, 1, False)
    with pytest.raises(Fault, match="a copy is outstanding"):
        issued().execute("ds_read_b32 v5, v8 offset:64")
    issued().execute("s_waitcnt vmcnt(0)", "ds_read_b32 v5, v8 offset:64")


def test_transposing_read():
    """CDNA4: lane l's element n is element l % 4 of lane 4 n + l / 4 % 4 of its row of 16 lanes."""
    machine, _ = machine_with_buffer("gfx950")
    halves = np.arange(256, dtype=np.uint16)
    machine.shared.data[:512] = halves.view(np.uint8)
    set_registers(machine, v8=[8 * lane for lane in range(64)])
    machine.execute("ds_read_b64_tr_b16 v[2:3], v8", "s_waitcnt lgkmcnt(0)")
    for lane in range(64):
        for n in range(4):
            found = machine.vector_view(2 + n // 2, "u16", n % 2)[lane]
            assert found == halves[4 * (lane // 16 * 16 + 4 * n + lane // 4 % 4) + lane % 4], (lane, n)


def test_what_a_load_brings_is_there_after_the_wait():
    machine, data = machine_with_memory(writable=True)
    machine.execute("v_mov_b32_e32 v4, 9", LOAD)
    assert get(machine, "v4") == 9, "before the wait"
    machine.execute("global_load_dword v6, v8, s[0:1]", "s_waitcnt vmcnt(1)")
    assert get(machine, "v4") == list(range(64))
    machine.execute("s_waitcnt vmcnt(0)", "v_mov_b32_e32 v7, v6")
    assert get(machine, "v7") == list(range(64))
    machine.execute("ds_write2_b32 v8, v4, v7 offset1:64", "ds_read_b32 v10, v8 offset:256", "s_waitcnt lgkmcnt(0)")
    assert get(machine, "v10") == list(range(64))
    machine.execute("s_load_dwordx2 s[4:5], s[0:1], 0x8", "s_waitcnt lgkmcnt(0)")
    assert (get(machine, "s4"), get(machine, "s5")) == (2, 3)
    machine.execute("v_mov_b32_e32 v12, -2", "global_store_short v[2:3], v12, off", "s_waitcnt vmcnt(0)")
    assert data[5] == 0xFFFE
    machine.execute("global_load_sshort v13, v[2:3], off", "s_waitcnt vmcnt(0)")
    assert get(machine, "v13") == 0xFFFFFFFE
    set_registers(machine, v14=0x11112222).execute("global_load_short_d16_hi v14, v[2:3], off", "s_waitcnt vmcnt(0)")
    assert get(machine, "v14") == 0xFFFE2222


def test_permutes():
    machine = set_registers(Machine(), v1=[4 * (63 - i) for i in range(64)], v2=list(range(64)), v0=7)
    machine.execute("ds_bpermute_b32 v0, v1, v2", "s_waitcnt lgkmcnt(0)")
    assert get(machine, "v0") == list(range(63, -1, -1))
    machine.execute("ds_permute_b32 v0, v1, v2", "s_waitcnt lgkmcnt(0)")
    assert get(machine, "v0") == list(range(63, -1, -1))


@pytest.mark.parametrize(
    "text, message",
    [
        ("global_load_dword v4, v[2:3], off offset:4", "4 bytes at .* 256 bytes into data"),
        ("global_load_dword v4, v[2:3], off offset:-4", "-4 bytes into data"),
        ("global_load_dwordx4 v[4:7], v[2:3], off", "16 bytes at"),
        ("global_load_dword v4, v[8:9], off", "near no buffer"),
        ("global_load_dword v4, v[2:3], off offset:2", "misaligned|outside"),
        ("global_store_dword v[2:3], v8, off", "read-only"),
        ("s_load_dwordx2 s[4:5], s[0:1], 0xfc", "8 bytes at"),
        ("ds_read_b32 v4, v8 offset:772", "LDS at 1024"),
        ("ds_write_b64 v8, v[2:3]", "misaligned"),
        ("ds_read_b32 v4, v3", "LDS at"),
    ],
)
def test_access_out_of_bounds_is_found(text, message):
    machine, _ = machine_with_memory()
    with pytest.raises(Fault, match=message):
        machine.execute(text)


def test_races_in_shared_memory_are_found():
    shared = SharedMemory(64)
    places = shared.places(np.array([8]), 4)
    shared.mark(places, 0, True)
    shared.mark(places, 0, False)
    with pytest.raises(Fault, match="race"):
        shared.mark(places, 1, False)
    shared.forget()
    shared.mark(places, 0, False)
    shared.mark(places, 1, False)
    with pytest.raises(Fault, match="race"):
        shared.mark(places, 1, True)


# ---- Whole kernels


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A function: architecture, macros -> path of the code object."""
    need("clang++-22", "llvm-objdump-22")
    folder, paths = tmp_path_factory.mktemp("code_objects"), {}

    def compile_kernels(arch: str, *macros: str) -> Path:
        if (arch, macros) not in paths:
            path = folder / f"{len(paths)}.{arch}.co"
            command = [
                "clang++-22",
                "-x",
                "hip",
                "--cuda-device-only",
                f"--offload-arch={arch}",
                "-nogpuinc",
                "-nogpulib",
                "-O3",
            ]
            command += ["-ffp-contract=off", "--no-gpu-bundle-output", *(f"-D{macro}" for macro in macros)]
            done = subprocess.run(
                [*command, HERE / "kernels.hip", "-o", path], capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            paths[arch, macros] = path
        return paths[arch, macros]

    return compile_kernels


def to_bf16(x: np.ndarray) -> np.ndarray:
    word = x.astype(np.float32).view(np.uint32)
    return ((word + 0x7FFF + (word >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
UNIT = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}
# Rows and columns of a block, threads.
BLOCKS = {
    "naive": (8, 16, 128),
    "lds": (16, 16, 256),
    "register": (64, 64, 256),
    "mfma": (64, 16, 256),
    "wmma": (64, 16, 128),
}
BLOCKS["32x32"] = (32, 32, 64)


def multiply(code, name: str, shape, *, batch: int = 1, grid_z: int = 1, order_seed=None, traces=None):
    """Runs a kernel on random matrices; C, the reference and the bound of each element (docs/numerics.md)."""
    m, n, k = shape
    kind = name.split("_")[1] if name.startswith(("naive", "mfma", "wmma")) else "f32"
    block_m, block_n, threads = BLOCKS["32x32" if "32x32" in name else name.split("_")[0]]
    random = np.random.default_rng(m + 100 * n + 10000 * k)
    a, b = random.uniform(-1, 1, (batch, m, k)), random.uniform(-1, 1, (batch, k, n))
    if kind == "bf16":
        a_bits, b_bits, c = to_bf16(a), to_bf16(b), np.full((batch, m, n), 0x7FFF, np.uint16)
        a, b = from_bf16(a_bits).astype(np.float64), from_bf16(b_bits).astype(np.float64)
    else:
        a_bits, b_bits, c = a.astype(DTYPES[kind]), b.astype(DTYPES[kind]), np.full((batch, m, n), NAN, DTYPES[kind])
        a, b = a_bits.astype(np.float64), b_bits.astype(np.float64)
    memory = Memory()
    pointers = [memory.add("a", a_bits), memory.add("b", b_bits), memory.add("c", c, writable=True)]
    if name.startswith("naive"):
        args = [*pointers, m, n, k, batch]
    else:
        args = [np.array([*pointers, m, n, k], np.uint64).tobytes()]
    grid = (-(-n // block_n), -(-m // block_m), grid_z)
    counts = run(code.kernels[name], grid, (threads, 1, 1), args, memory, order_seed, traces=traces)
    found = (from_bf16(c) if kind == "bf16" else c).astype(np.float64)
    wide = np.longdouble if kind == "f64" else np.float64
    reference = np.matmul(a.astype(wide), b.astype(wide))
    unit = UNIT["f64" if kind == "f64" else "f32"]
    bound = (k + 2) * unit * (np.abs(a) @ np.abs(b)) + UNIT[kind] * np.abs(reference)
    return found, reference, bound, counts


def is_right(found, reference, bound) -> bool:
    return bool((np.abs(found - reference) <= bound).all())  # nan is wrong


SHAPES = [(1, 1, 1), (17, 33, 5), (40, 33, 29), (70, 20, 16)]
KERNELS = ["naive_f32", "naive_f64", "naive_f16", "naive_bf16", "lds_tiled", "register_tiled"]
# Of a family's chips CI has conversions on one: the instructions are the same.
ONE_OF_FAMILY = ("gfx942", "gfx1100")
CASES_OF_KERNELS = [
    (name, arch)
    for name in KERNELS
    for arch in (ARCHS if IS_WHOLE or name not in ("naive_f64", "naive_f16", "naive_bf16") else ONE_OF_FAMILY)
]
CASES_OF_KERNELS += [(f"mfma_{kind}", arch) for kind in ("f32", "f64", "f16", "bf16") for arch in CDNA]
CASES_OF_KERNELS += [(f"wmma_{kind}", arch) for kind in ("f16", "bf16") for arch in RDNA]
MATRIX_INSTRUCTION = {
    "mfma_f32": r"v_mfma_f32_16x16x4_?f32",
    "mfma_f64": r"v_mfma_f64_16x16x4_?f64",
    "mfma_f16": r"v_mfma_f32_16x16x16_?f16",
    "mfma_bf16": r"v_mfma_f32_16x16x16_?bf16(_1k)?",
    "wmma_f16": "v_wmma_f32_16x16x16_f16",
    "wmma_bf16": "v_wmma_f32_16x16x16_bf16",
}


@pytest.mark.parametrize("name, arch", CASES_OF_KERNELS)
def test_kernel(name, arch, compiled):
    code = load(compiled(arch))
    for seed, shape in enumerate(SHAPES):
        found, reference, bound, counts = multiply(code, name, shape, order_seed=seed or None)
        assert is_right(found, reference, bound), f"{shape}: {np.abs(found - reference).max()}"
    if name in MATRIX_INSTRUCTION:
        assert any(re.fullmatch(MATRIX_INSTRUCTION[name], mnemonic) for mnemonic in counts)
    if name == "register_tiled":
        read, fma = ("ds_load_b128", "v_dual_fmac_f32") if arch in RDNA else ("ds_read_b128", "v_pk_fma_f32")
        assert counts[read] > 0 and counts[fma] > 0


@pytest.mark.parametrize("arch", ARCHS)
def test_every_instruction_has_a_meaning(arch, compiled):
    for kernel in load(compiled(arch)).kernels.values():
        assert unknown_instructions(kernel) == [], kernel.name


def test_batch_is_a_loop_over_the_hidden_block_count(compiled):
    found, reference, bound, _ = multiply(load(compiled("gfx942")), "naive_f32", (9, 17, 3), batch=5, grid_z=2)
    assert is_right(found, reference, bound)


def test_matrix_instruction_of_32_rows(compiled):
    found, reference, bound, counts = multiply(load(compiled("gfx942")), "mfma_f16_32x32", (64, 32, 24))
    assert is_right(found, reference, bound) and counts["v_mfma_f32_32x32x8_f16"] == 6


@pytest.mark.parametrize("arch, matrix", [("gfx942", "mfma_f16"), ("gfx1100", "wmma_f16"), ("gfx1201", "wmma_f16")])
def test_orders_give_the_same_bits(arch, matrix, compiled):
    code = load(compiled(arch))
    for name in ("lds_tiled", "register_tiled", matrix):
        results = [multiply(code, name, (40, 33, 29), order_seed=seed)[0] for seed in (None, 1, 2)]
        assert all((result == results[0]).all() for result in results)


def truncated_division(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def expected_integers(a: int, b: int) -> list[int]:
    """What `integers` of kernels.hip computes, with Python's integers."""
    ua, ub, wide = a % 2**32, b % 2**32, 2**64

    def signed(x, size):
        return (x + (1 << (size - 1))) % (1 << size) - (1 << (size - 1))

    la, lb = signed((a << 20) ^ b, 64), b * 3 + (1 if b >= 0 else -1)
    quotient, wide_quotient = truncated_division(a, b or 1), truncated_division(la, lb)
    fraction32 = np.float32(np.float32(a) / (np.float32(b) + np.float32(0.5)))
    return [
        quotient,
        a - quotient * (b or 1),
        ua // (ub or 1),
        ua % (ub or 1),
        wide_quotient,
        la - wide_quotient * lb,
        la % wide // (lb % wide),
        la * lb,
        (la % wide) * (lb % wide) >> 64,
        min(a, b) + (5 if ua > ub else 7),
        ua.bit_count() + 100 * (32 - ua.bit_length()) + 10000 * ((ua & -ua).bit_length() - 1 if ua else 32),
        (ua << (ub & 31)) % 2**32 + (a >> (ub & 31)) + (la >> (ub & 63)),
        ((ua >> 5 & 0x3FF) + signed(a, 16) + signed(b, 8)) % 2**32,
        int(float(la)) + int(np.float32(a)),
        int(np.float64(a / (b + 0.5)).view(np.int64)),
        int(fraction32.view(np.int32)),
    ]


@pytest.mark.parametrize("arch", ARCHS)
def test_integers_and_divisions(arch, compiled):
    random = np.random.default_rng(7)
    x = random.integers(-(2**31), 2**31, 300)
    y = random.integers(-(2**31), 2**31, 300) >> random.integers(0, 31, 300)
    x[:6], y[:6] = [0, 1, -1, 7, 2**31 - 1, 5], [0, -1, 1, 0, 1, -7]
    x[0] = 12345
    x, y, to = x.astype(np.int32), y.astype(np.int32), np.full((300, 16), -99, np.int64)
    memory = Memory()
    args = [memory.add("x", x), memory.add("y", y), memory.add("to", to, writable=True), 300]
    run(load(compiled(arch)).kernels["integers"], (3, 1, 1), (128, 1, 1), args, memory)
    for a, b, row in zip(x.tolist(), y.tolist(), to.tolist(), strict=True):
        expected = [(value + 2**63) % 2**64 - 2**63 for value in expected_integers(a, b)]
        assert row == expected, (a, b)


@pytest.mark.parametrize("arch, lanes", [("gfx942", 64), ("gfx1100", 32), ("gfx1201", 32)])
def test_lanes_exchange_values(arch, lanes, compiled):
    x = np.arange(128, dtype=np.int32) ** 2
    sums, firsts, memory = np.zeros_like(x), np.zeros_like(x), Memory()
    args = [memory.add("x", x), memory.add("sums", sums, writable=True), memory.add("firsts", firsts, writable=True)]
    counts = run(load(compiled(arch)).kernels["across_lanes"], (2, 1, 1), (64, 1, 1), args, memory)
    assert counts["ds_bpermute_b32"] == {64: 12, 32: 20}[lanes]
    for first in range(0, 128, lanes):
        wave = slice(first, first + lanes)
        assert (sums[wave] == x[wave].sum()).all() and (firsts[wave] == x[wave][0]).all()


def run_reverse(code):
    """512 numbers, the last 112 of them beyond the buffer's range."""
    x, to, memory = np.arange(512, dtype=np.int32), np.full(512, 7, np.int32), Memory()
    args = [memory.add("x", x), memory.add("to", to, writable=True), 400]
    run(code.kernels["reverse"], (2, 1, 1), (256, 1, 1), args, memory)
    return to, np.where(x < 400, 7000 + x.reshape(2, 256)[:, ::-1].ravel(), 7)


@pytest.mark.parametrize("arch", ARCHS)
def test_loads_to_shared_memory_and_buffers(arch, compiled):
    found, expected = run_reverse(load(compiled(arch)))
    assert (found == expected).all()
    if arch in RDNA:
        return
    path = compiled(arch)
    waits = [i for i in places_of(path, "reverse", "s_waitcnt") if "vmcnt" in load(path).kernels["reverse"].lines[i][1]]
    with pytest.raises(Fault, match="race"):  # without the wait, LDS is written after the barrier
        run_reverse(load(path, without("reverse", waits[0])))


# ---- Mutants


def without(name: str, place: int):
    """An edit that replaces the line of that number by nothing."""

    def edit(kernel, lines):
        if kernel != name:
            return lines
        return [(address, "s_nop 0" if i == place else text) for i, (address, text) in enumerate(lines)]

    return edit


def places_of(path: Path, kernel: str, mnemonic: str) -> list[int]:
    lines = load(path).kernels[kernel].lines
    return [i for i, (_, text) in enumerate(lines) if re.fullmatch(mnemonic, text.split()[0])]


def outcome(code, name, shape, order_seed=None) -> str:
    try:
        found, reference, bound, _ = multiply(code, name, shape, order_seed=order_seed)
    except Fault as fault:
        return str(fault)
    return "" if is_right(found, reference, bound) else "wrong result"


WAITS = r"s_waitcnt|s_wait_\w+cnt"
MUTANTS = [(arch, "lds_tiled") for arch in ("gfx942", *RDNA)]
MUTANTS += [("gfx942", "register_tiled"), ("gfx942", "mfma_f16"), *((arch, "wmma_f16") for arch in RDNA)]


@pytest.mark.parametrize("arch, name", MUTANTS)
@pytest.mark.parametrize("mnemonic", [WAITS, "s_barrier", "s_barrier_signal"])
def test_mutant_without_a_wait_or_barrier_is_found(mnemonic, arch, name, compiled):
    path = compiled(arch)
    mnemonic = "s_barrier_wait" if (arch, mnemonic) == ("gfx1201", "s_barrier") else mnemonic
    places = places_of(path, name, mnemonic)
    assert places or arch != "gfx1201" and mnemonic == "s_barrier_signal"
    message = {WAITS: "outstanding|race", "s_barrier_signal": "without having signalled"}.get(mnemonic, "race")
    for place in places:
        found = outcome(load(path, without(name, place)), name, (40, 33, 29))
        # Without a wait, LDS may also be accessed after the next barrier.
        assert re.search(message, found), (place, found)


def test_faults_name_the_instruction(compiled):
    path = compiled("gfx942")
    place = places_of(path, "naive_f32", "s_waitcnt")[0]
    found = outcome(load(path, without("naive_f32", place)), "naive_f32", (1, 1, 1))
    match = re.match(
        r"uses a register .* for: ([vs]\d+).*: (\S.*) at (0x[0-9a-f]+) of naive_f32, workgroup .*, wave 0", found
    )
    assert match, found
    assert (int(match[3], 16), match[2]) in load(path).kernels["naive_f32"].lines


def test_mutant_without_a_guard_is_found(compiled):
    """Lanes beyond the matrix are masked by s_and_saveexec; without one of them they store."""
    path = compiled("gfx942")
    place = places_of(path, "lds_tiled", "s_and_saveexec_b64")[-1]
    assert "access outside" in outcome(load(path, without("lds_tiled", place)), "lds_tiled", (40, 33, 29))


@pytest.mark.parametrize("macro, message", [("K_OFFSET=1", "wrong result"), ("SECOND_BARRIER=", "race")])
def test_mutant_of_the_source_is_found(macro, message, compiled):
    assert message in outcome(load(compiled("gfx942", macro)), "lds_tiled", (40, 33, 29))
