"""What RDNA3 and RDNA4 (gfx11, gfx12) have beside the instructions of CDNA, or under other names.

Meanings follow AMD's "RDNA3" and "RDNA4 Instruction Set Architecture". Matrix instructions are in instructions.py.
"""

import re

import numpy as np

from .instructions import (
    F32,
    SCALAR_FLOATS,
    SOP2,
    U32,
    VALU,
    WIDTHS,
    define,
    fma_f32,
    fma_f64,
    greatest,
    least,
    median,
)

RENAMED = {
    "v_add_nc_u32": "v_add_u32",
    "v_sub_nc_u32": "v_sub_u32",
    "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_co_ci_u32": "v_addc_co_u32",
    "v_sub_co_ci_u32": "v_subb_co_u32",
    "v_subrev_co_ci_u32": "v_subbrev_co_u32",
    "v_add_nc_u16": "v_add_u16",
    "v_sub_nc_u16": "v_sub_u16",
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
    "v_cvt_pk_rtz_f16_f32": "v_cvt_pkrtz_f16_f32",
    "v_clz_i32_u32": "v_ffbh_u32",
    "v_ctz_i32_b32": "v_ffbl_b32",
    "v_cls_i32": "v_ffbh_i32",
    "v_mul_dx9_zero_f32": "v_mul_legacy_f32",
    "v_fmac_dx9_zero_f32": "v_fmac_legacy_f32",
    "v_dual_dot2acc_f32_f16": "v_dot2c_f32_f16",
    "v_dot2acc_f32_f16": "v_dot2c_f32_f16",
    "v_dual_dot2acc_f32_bf16": "v_dot2c_f32_bf16",
    "v_dot2acc_f32_bf16": "v_dot2c_f32_bf16",
    "s_add_co_u32": "s_add_u32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_u32": "s_sub_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "s_add_co_i32": "s_add_i32",
    "s_sub_co_i32": "s_sub_i32",
    "s_addk_co_i32": "s_addk_i32",
    "s_ctz_i32_b32": "s_ff1_i32_b32",
    "s_ctz_i32_b64": "s_ff1_i32_b64",
    "s_clz_i32_u32": "s_flbit_i32_b32",
    "s_clz_i32_u64": "s_flbit_i32_b64",
}
for _bits in (32, 64):
    RENAMED |= {f"s_{name}_not1_b{_bits}": f"s_{name}n2_b{_bits}" for name in ("and", "or")}
    RENAMED |= {f"s_{name}_not1_saveexec_b{_bits}": f"s_{name}n2_saveexec_b{_bits}" for name in ("and", "or")}
    RENAMED |= {f"s_{name}_not0_saveexec_b{_bits}": f"s_{name}n1_saveexec_b{_bits}" for name in ("and", "or")}
for _type in ("f16", "f32", "f64"):
    for _name in ("min", "max", "min3", "max3", "med3"):
        RENAMED[f"v_{_name}_num_{_type}"] = f"v_{_name}_{_type}"


def renamed(name: str, is_rdna: bool) -> str:
    """The name that the tables know."""
    if not is_rdna:
        return name
    name = RENAMED.get(name, name)
    if name.startswith("v_dual_") and name != "v_dual_cndmask_b32":
        return renamed("v_" + name.removeprefix("v_dual_"), True)
    if match := re.match(r"ds_(load|store)(?:_(2addr)(_stride64)?)?_(\w+)$", name):
        access = {"load": "read", "store": "write"}[match[1]]
        return f"ds_{access}{'2' if match[2] else ''}{'st64' if match[3] else ''}_{match[4]}"
    return name


def dot2(element):
    """Products and sum are rounded once here; the hardware's intermediate rounding is not published."""

    def run(a, b, c):
        total = np.asarray(c, np.float64)
        for half in (0, 16):
            x, y = (element((value >> U32(half)) & U32(0xFFFF)) for value in (a, b))
            total = total + x.astype(np.float64) * y
        return total.astype(F32)

    return run


def from_half(x):
    return x.astype(np.uint16).view(np.float16)


def from_bfloat(x):
    return (x << U32(16)).view(F32)


define("u32 = u32 u32 vcc", dual_cndmask_b32=lambda a, b, mask: np.where(mask, b, a))
define("u32 = u32 u32 u32", xor3_b32=lambda a, b, c: a ^ b ^ c)
define("f32 = f32 f32 dst", fmac_legacy_f32=lambda a, b, c: np.where((a == 0) | (b == 0), c, fma_f32(a, b, c)))
define("f32 = u32 u32 f32", dot2_f32_f16=dot2(from_half), dot2_f32_bf16=dot2(from_bfloat))
define("f32 = u32 u32 dst", dot2c_f32_f16=dot2(from_half), dot2c_f32_bf16=dot2(from_bfloat))
define("u16 = u16", mov_b16=lambda a: a, not_b16=lambda a: ~a)
define("u16 = u16 u16 mask", cndmask_b16=lambda a, b, mask: np.where(mask, b, a))
define("u16 = u16 u16", and_b16=lambda a, b: a & b, or_b16=lambda a, b: a | b, xor_b16=lambda a, b: a ^ b)
define("f64 = f64 f64 f64", fmaak_f64=fma_f64, fmamk_f64=fma_f64)
define(
    "f16 = f16 f16 f16",
    min3_f16=lambda a, b, c: least(least(a, b), c),
    max3_f16=lambda a, b, c: greatest(greatest(a, b), c),
    med3_f16=median(least, greatest),
)
define(
    "f32 = f32 f32 f32",
    minmax_f32=lambda a, b, c: greatest(least(a, b), c),
    maxmin_f32=lambda a, b, c: least(greatest(a, b), c),
)

SOP2 |= {
    "s_add_nc_u64": (64, lambda a, b, scc: (a + b, None)),
    "s_sub_nc_u64": (64, lambda a, b, scc: (a - b, None)),
    "s_mul_u64": (64, lambda a, b, scc: (a * b, None)),
    "s_pack_hl_b32_b16": (32, lambda a, b, scc: (a >> 16 | (b & 0xFFFF) << 16, None)),
}

# ---- Scalars: floating point (RDNA4), as the vector instruction of the same name.
for _name in ("add", "sub", "mul", "fmac", "fmaak", "fmamk", "min", "max", "trunc", "floor", "ceil", "rndne"):
    SCALAR_FLOATS[f"s_{_name}_f32"] = f"v_{_name}_f32"
SCALAR_FLOATS |= {f"s_{name}_num_f32": f"v_{name}_f32" for name in ("min", "max")}
for _to, _from in (("f32", "u32"), ("f32", "i32"), ("u32", "f32"), ("i32", "f32")):
    SCALAR_FLOATS[f"s_cvt_{_to}_{_from}"] = f"v_cvt_{_to}_{_from}"
SCALAR_FLOATS |= {f"v_s_{name}_f32": f"v_{name}_f32" for name in ("rcp", "rsq", "sqrt", "exp", "log")}
SCALAR_FLOATS |= {
    name.replace("v_", "s_", 1): name for name in VALU if name.startswith("v_cmp_") and name.endswith("_f32")
}

# ---- Memory
for _letter, _signed in (("u", False), ("i", True)):
    WIDTHS |= {f"{_letter}8": (1, _signed, None), f"{_letter}16": (2, _signed, None)}
    WIDTHS |= {f"d16_{_letter}8": (1, _signed, 0), f"d16_hi_{_letter}8": (1, _signed, 1)}
WIDTHS |= {"b8": (1, False, None), "b16": (2, False, None), "d16_b16": (2, False, 0), "d16_hi_b16": (2, False, 1)}
WIDTHS |= {"d16_hi_b8": (1, False, 1), **{f"b{8 * size}": (size, False, None) for size in (4, 8, 12, 16)}}
