"""What the instructions of AMD's CDNA2 to 4 (gfx90a, gfx942, gfx950) compute, as tables: mnemonic -> small function.

Meanings follow, unless said otherwise, AMD's "Instinct MI300 (CDNA3) Instruction Set Architecture". What RDNA has
beside them is in rdna.py. interpreter.py finds the operands and stores the results under EXEC.

Vector functions take numpy arrays of one element for each lane (packed ones: lane x 2), or of one for all, and know
nothing of registers. Scalar functions take Python integers.

Rounding. fp32 and fp16 fma: the product is exact in fp64, the sum is rounded to odd there, hence the second rounding is
the only one. fp64 fma: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums" (2008), and Python's
fractions where an intermediate could overflow or underflow. v_fma_mixlo and mixhi round to fp32, then to fp16. Matrix
instructions: the sum of all products and C in fp64 (long double for fp64), rounded once; the order and the rounding of
the hardware are not published. v_rcp, v_rsq, v_sqrt, v_exp and v_log are rounded from fp64, where the hardware errs by
one unit in the last place. Denormals are kept, except by v_mac and v_mad.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

U32, I32, F32, U64, I64, F64 = np.uint32, np.int32, np.float32, np.uint64, np.int64, np.float64
U16, I16, F16 = np.uint16, np.int16, np.float16
F32_TINY = 2.0**-126


class UnknownInstruction(Exception):
    """The interpreter has no meaning for an instruction or for one of its modifiers."""


# ---- Arithmetic that numpy lacks


def sum_to_odd(a, b):
    """a + b in fp64, rounded to odd: of the two neighbours of an inexact sum that with the odd last bit."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(I64)
    is_even = ((error < 0) | (error > 0)) & ((bits & 1) == 0) & np.isfinite(total)
    return np.where(is_even, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(F64)


def fma_f32(a, b, c):
    product = np.multiply(a, b, dtype=F64)
    total = product + c
    result = total.astype(F32)
    is_tie = (total.view(U64) & 0x1FFFFFFF) == 0x10000000
    if np.count_nonzero(is_tie) or np.count_nonzero((abs(result) < F32_TINY) & (total != 0)):
        result = sum_to_odd(product, np.asarray(c).astype(F64)).astype(F32)
    return result


def fma_f16(a, b, c):
    return sum_to_odd(np.multiply(a, b, dtype=F64), np.asarray(c).astype(F64)).astype(F16)


def two_sum(a, b):
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exact_fma(a: float, b: float, c: float, rounded: float) -> float:
    """One lane; `rounded` is a * b + c with two roundings, right where a factor is not finite and where it is 0."""
    if not (np.isfinite(a) and np.isfinite(b)):
        return rounded
    if not np.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return rounded
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def fma_f64(a, b, c):
    a, b, c = np.broadcast_arrays(a, b, c)
    rounded = a * b + c
    is_safe = np.ones(a.shape, bool)
    for x in (a, b, c):
        size = abs(x)
        is_safe &= (x == 0) | ((size > 2.0**-400) & (size < 2.0**400))
    scaled_a, scaled_b = a * 134217729.0, b * 134217729.0  # Veltkamp: 2^27 + 1 halves a significand
    high_a, high_b = scaled_a - (scaled_a - a), scaled_b - (scaled_b - b)
    low_a, low_b = a - high_a, b - high_b
    product = a * b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    high, low = two_sum(c, error)
    total, rest = two_sum(product, high)
    result = total + sum_to_odd(rest, low)
    result = np.where(result == 0, rounded, result)
    for i in np.flatnonzero(~is_safe):
        result.flat[i] = exact_fma(float(a.flat[i]), float(b.flat[i]), float(c.flat[i]), float(rounded.flat[i]))
    return result


def flushed(x):
    return np.where(abs(x) < F32_TINY, np.copysign(F32(0), x), x)


def mac_f32(a, b, c):
    """Two roundings, denormals flushed."""
    return flushed(flushed(flushed(a) * flushed(b)) + flushed(c))


def least(a, b):
    """IEEE mode: a number beats nan; -0 is less than +0."""
    return np.where((a == b) & np.signbit(a), a, np.fmin(a, b))


def greatest(a, b):
    return np.where((a == b) & np.signbit(a), b, np.fmax(a, b))


def median(minimum, maximum):
    return lambda a, b, c: maximum(minimum(a, b), minimum(maximum(a, b), c))


def to_integer(dtype):
    """Truncates, saturates; nan becomes 0."""
    info = np.iinfo(dtype)

    def convert(x):
        whole = np.trunc(np.nan_to_num(x.astype(F64), nan=0.0, posinf=1e30, neginf=-1e30))
        return np.clip(whole, info.min, info.max).astype(I64).astype(dtype)

    return convert


def towards_zero_f16(x):
    """fp32 to fp16 bits, rounded towards zero."""
    half = x.astype(F16)
    is_too_big = np.isfinite(x) & (abs(half.astype(F64)) > abs(x.astype(F64)))
    return half.view(U16) - is_too_big.astype(U16)


def nearest_bf16(x):
    """Bits of bfloat16, ties to even."""
    word = x.view(U32)
    rounded = (word.astype(U64) + U64(0x7FFF) + ((word >> U32(16)) & U32(1))) >> U64(16)
    return np.where(np.isnan(x), (word >> U32(16)) | U32(0x40), rounded).astype(U32)


def class_mask(x, mask):
    """v_cmp_class: bits of `mask` from 0: signalling nan, quiet nan, -inf, -normal, -denormal, -0, +0, ... +inf."""
    bits, quiet = {2: (U16, 1 << 9), 4: (U32, 1 << 22), 8: (U64, 1 << 51)}[x.itemsize]
    tiny = float(np.finfo(x.dtype).tiny)
    size, sign, is_nan = abs(x), np.signbit(x), np.isnan(x)
    kind = np.where(size == 0, 0, np.where(size < tiny, 1, np.where(np.isinf(x), 3, 2)))
    bit = np.where(is_nan, ((x.view(bits) & bits(quiet)) != 0).astype(I64), np.where(sign, 5 - kind, 6 + kind))
    return (mask.astype(I64) >> bit) & 1 != 0


def exponent_field(x):
    bits, shift, mask = (U32, 23, 0xFF) if x.itemsize == 4 else (U64, 52, 0x7FF)
    return ((x.view(bits) >> bits(shift)) & bits(mask)).astype(I64)


def div_scale(far, scale, tiny):
    """v_div_scale: x scaled so that no step of a division overflows or underflows; the mask tells v_div_fmas."""

    def run(x, denominator, numerator):
        x, denominator, numerator = np.broadcast_arrays(x, denominator, numerator)
        x, denominator, numerator = x.copy(), denominator.copy(), numerator.copy()
        smallest = float(np.finfo(x.dtype).tiny)
        up, down = np.ldexp(x, scale), np.ldexp(x, -scale)
        quotient = abs(np.divide(numerator, denominator))
        inverse_tiny = abs(np.divide(x.dtype.type(1), denominator)) < smallest
        is_far = exponent_field(numerator) - exponent_field(denominator) >= far
        cases = [
            ((numerator == 0) | (denominator == 0), np.full_like(x, np.nan), False),
            (is_far, np.where(x == denominator, up, x), True),
            (exponent_field(denominator) == 0, up, False),
            (inverse_tiny & (quotient < smallest), np.where(x == denominator, up, x), True),
            (inverse_tiny, down, False),
            (quotient < smallest, np.where(x == numerator, up, x), True),
            (exponent_field(numerator) <= tiny, up, False),
        ]
        conditions = [case[0] for case in cases]
        result = np.select(conditions, [case[1] for case in cases], x)
        flag = np.select(conditions, [np.full(x.shape, case[2]) for case in cases], False)
        return result, flag

    return run


def div_fmas(fma, middle, scale):
    """The published text multiplies by 2^32 (fp64: 2^64); only v_div_scale's factor, up or down, makes a division."""

    def run(a, b, c, vcc):
        result = fma(a, b, c)
        power = np.where(exponent_field(np.broadcast_to(c, result.shape).copy()) > middle, scale, -scale)
        return np.where(vcc, np.ldexp(result, power), result)

    return run


def div_fixup(quotient, denominator, numerator):
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), -1.0, 1.0).astype(quotient.dtype)
    is_nan = np.isnan(numerator) | np.isnan(denominator) | ((numerator == 0) & (denominator == 0))
    is_nan |= np.isinf(numerator) & np.isinf(denominator)
    result = np.where(np.isnan(quotient), sign * np.inf, np.copysign(quotient, sign))
    result = np.where(np.isinf(denominator) | (numerator == 0), sign * 0, result)
    result = np.where(np.isinf(numerator) | (denominator == 0), sign * np.inf, result)
    return np.where(is_nan, np.nan, result).astype(quotient.dtype)


def permute_bytes(high, low, selector):
    """v_perm_b32: selector bytes 0-7 pick from {high, low}; 8-11 spread a sign; 12 is 0x00; above it 0xff."""
    data = high.astype(U64) << U64(32) | low
    result = np.zeros(np.broadcast_shapes(data.shape, selector.shape), U32)
    for i in range(4):
        pick = ((selector >> U32(8 * i)) & U32(0xFF)).astype(U64)
        byte = (data >> (np.minimum(pick, 7) * U64(8))) & U64(0xFF)
        sign = ((data >> ((pick - U64(8)) * U64(16) + U64(15))) & U64(1)) * U64(0xFF)
        byte = np.where(pick < 8, byte, np.where(pick < 12, sign, np.where(pick == 12, U64(0), U64(0xFF))))
        result |= byte.astype(U32) << U32(8 * i)
    return result


def bit_operation(table: int):
    """v_bitop3 (CDNA4): bit 4 a + 2 b + c of the table, for each bit of the three sources."""

    def run(a, b, c):
        result = a & 0
        for i in range(8):
            if table >> i & 1:
                result = result | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result

    return run


def bit_field(value, offset, width, dtype=U32):
    offset, width = offset & U32(31), width & U32(31)
    if dtype is U32:
        return (value >> offset) & ((U32(1) << width) - U32(1))
    shifted = (value.view(I32).astype(I64) >> offset.astype(I64)) << (64 - width.astype(I64))
    return np.where(width == 0, 0, shifted >> (64 - width.astype(I64)))


def leading_zeros(x):
    """-1 for 0."""
    return np.where(x == 0, -1, 32 - np.frexp(x.astype(F64))[1]).astype(I32)


def trailing_zeros(x):
    return np.where(x == 0, -1, np.frexp((x & (~x + U32(1))).astype(F64))[1] - 1).astype(I32)


def popcount(x):
    return np.bitwise_count(x).astype(U32)


def reversed_bits(x):
    as_bytes = np.ascontiguousarray(x).view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(as_bytes, axis=1, bitorder="little"), axis=1).view(">u4").reshape(-1).astype(U32)


def lanes_below(lane, first):
    """One bit for each of the lanes first to first + 31 that come before this one."""
    count = np.clip(lane.astype(I64) - first, 0, 32)
    return ((I64(1) << count) - 1).astype(U32)


def wide_product(a, b):
    return a.astype(U64) * b


def signed24(x):
    return (x << U32(8)).view(I32).astype(I64) >> 8


def shift_right(x, count, bits):
    return x >> (count & (bits - 1))


def add_carry(a, b, carry=False):
    total = a.astype(U64) + b + carry
    return total.astype(U32), total > 0xFFFFFFFF


def subtract_borrow(a, b, borrow=False):
    subtrahend = b.astype(U64) + borrow
    return (a.astype(U64) - subtrahend).astype(U32), subtrahend > a


def mad_wide(dtype, wide):
    def run(a, b, c):
        product = a.astype(wide) * b.astype(wide)
        total = product + c
        # The carry of 64-bit sums: unsigned overflow; of signed ones: overflow.
        if dtype is U32:
            return total, total < c
        return total, ((product >= 0) == (c >= 0)) & ((total >= 0) != (c >= 0))

    return run


# ---- Vector instructions: name -> (types of destinations, types of sources, function)
# Types: u32 and so on are dtypes; f16, u16, i16 are the low half of a register, which as destination clears the high
# one (not on RDNA); mask is an SGPR or a pair, one bit for each lane; "dst" reads the destination; "vcc" is read
# without being named in the text; lane is the lane's number; pk_ are two elements for each lane, chosen by op_sel; mix
# is fp32 or half a register of fp16 (v_fma_mix), half is half a register, the other one kept.
VALU = {}


def define(signature, **functions):
    destinations, sources = (part.split() for part in signature.split("="))
    for name, function in functions.items():
        VALU["v_" + name] = (destinations, sources, function)


define(
    "u32 = u32",
    mov_b32=lambda a: a,
    accvgpr_write_b32=lambda a: a,
    accvgpr_read_b32=lambda a: a,
    accvgpr_mov_b32=lambda a: a,
    not_b32=lambda a: ~a,
    bfrev_b32=reversed_bits,
    ffbh_u32=leading_zeros,
    ffbl_b32=trailing_zeros,
    ffbh_i32=lambda a: np.where((a == 0) | (~a == 0), -1, leading_zeros(a ^ (a.view(I32) >> 31).view(U32))),
)
define(
    "u32 = u32 u32",
    and_b32=lambda a, b: a & b,
    or_b32=lambda a, b: a | b,
    xor_b32=lambda a, b: a ^ b,
    xnor_b32=lambda a, b: ~(a ^ b),
    lshlrev_b32=lambda a, b: b << (a & 31),
    lshrrev_b32=lambda a, b: b >> (a & 31),
    ashrrev_i32=lambda a, b: b.view(I32) >> (a & 31).view(I32),
    add_u32=lambda a, b: a + b,
    sub_u32=lambda a, b: a - b,
    subrev_u32=lambda a, b: b - a,
    min_u32=np.minimum,
    max_u32=np.maximum,
    min_i32=lambda a, b: np.minimum(a.view(I32), b.view(I32)),
    max_i32=lambda a, b: np.maximum(a.view(I32), b.view(I32)),
    mul_lo_u32=lambda a, b: a * b,
    mul_hi_u32=lambda a, b: wide_product(a, b) >> 32,
    mul_hi_i32=lambda a, b: (a.view(I32).astype(I64) * b.view(I32)) >> 32,
    mul_u32_u24=lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    mul_hi_u32_u24=lambda a, b: wide_product(a & 0xFFFFFF, b & 0xFFFFFF) >> 32,
    mul_i32_i24=lambda a, b: signed24(a) * signed24(b),
    mul_hi_i32_i24=lambda a, b: (signed24(a) * signed24(b)) >> 32,
    bcnt_u32_b32=lambda a, b: popcount(a) + b,
    bfm_b32=lambda a, b: ((U32(1) << (a & 31)) - U32(1)) << (b & 31),
)
define(
    "u32 = u32 u32 lane",
    mbcnt_lo_u32_b32=lambda a, b, lane: b + popcount(a & lanes_below(lane, 0)),
    mbcnt_hi_u32_b32=lambda a, b, lane: b + popcount(a & lanes_below(lane, 32)),
)
define(
    "u32 = u32 u32 u32",
    add3_u32=lambda a, b, c: a + b + c,
    lshl_add_u32=lambda a, b, c: (a << (b & 31)) + c,
    add_lshl_u32=lambda a, b, c: (a + b) << (c & 31),
    lshl_or_b32=lambda a, b, c: (a << (b & 31)) | c,
    and_or_b32=lambda a, b, c: (a & b) | c,
    or3_b32=lambda a, b, c: a | b | c,
    xad_u32=lambda a, b, c: (a ^ b) + c,
    bfe_u32=bit_field,
    bfe_i32=lambda a, b, c: bit_field(a, b, c, I32),
    bfi_b32=lambda a, b, c: (a & b) | (~a & c),
    alignbit_b32=lambda a, b, c: (a.astype(U64) << 32 | b) >> (c & 31),
    alignbyte_b32=lambda a, b, c: (a.astype(U64) << 32 | b) >> ((c & 3) * U32(8)),
    perm_b32=permute_bytes,
    bitop3_b32=bit_operation(0),  # the text has its table
    mad_u32_u24=lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    mad_i32_i24=lambda a, b, c: signed24(a) * signed24(b) + c,
    min3_u32=lambda a, b, c: np.minimum(np.minimum(a, b), c),
    max3_u32=lambda a, b, c: np.maximum(np.maximum(a, b), c),
    med3_u32=median(np.minimum, np.maximum),
    sad_u32=lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c,
)
define(
    "i32 = i32 i32 i32",
    min3_i32=lambda a, b, c: np.minimum(np.minimum(a, b), c),
    max3_i32=lambda a, b, c: np.maximum(np.maximum(a, b), c),
    med3_i32=median(np.minimum, np.maximum),
)
define("u32 = u32 u32 mask", cndmask_b32=lambda a, b, mask: np.where(mask, b, a))
define(
    "u32 mask = u32 u32",
    add_co_u32=add_carry,
    sub_co_u32=subtract_borrow,
    subrev_co_u32=lambda a, b: subtract_borrow(b, a),
)
define(
    "u32 mask = u32 u32 mask",
    addc_co_u32=add_carry,
    subb_co_u32=subtract_borrow,
    subbrev_co_u32=lambda a, b, borrow: subtract_borrow(b, a, borrow),
)
define("u64 = u64", mov_b64=lambda a: a)
define("u64 = u64 u32 u64", lshl_add_u64=lambda a, b, c: (a << (b & 7)) + c)  # a shift of at most 4
define("u64 mask = u32 u32 u64", mad_u64_u32=mad_wide(U32, U64))
define("i64 mask = i32 i32 i64", mad_i64_i32=mad_wide(I32, I64))
define("u64 = u32 u64", lshlrev_b64=lambda a, b: b << (a & 63), lshrrev_b64=lambda a, b: shift_right(b, a, 64))
define("i64 = u32 i64", ashrrev_i64=lambda a, b: shift_right(b, a, 64))

define(
    "f32 = f32",
    rcp_f32=lambda a: 1 / a.astype(F64),
    rcp_iflag_f32=lambda a: 1 / a.astype(F64),
    rsq_f32=lambda a: 1 / np.sqrt(a.astype(F64)),
    sqrt_f32=lambda a: np.sqrt(a.astype(F64)),
    exp_f32=lambda a: np.exp2(a.astype(F64)),
    log_f32=lambda a: np.log2(a.astype(F64)),
    trunc_f32=np.trunc,
    floor_f32=np.floor,
    ceil_f32=np.ceil,
    rndne_f32=np.rint,
    fract_f32=lambda a: a - np.floor(a),
    frexp_mant_f32=lambda a: np.frexp(a)[0],
)
define("i32 = f32", frexp_exp_i32_f32=lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0))
define(
    "f32 = f32 f32",
    add_f32=np.add,
    sub_f32=np.subtract,
    subrev_f32=lambda a, b: b - a,
    mul_f32=np.multiply,
    mul_legacy_f32=lambda a, b: np.where((a == 0) | (b == 0), F32(0), a * b),
    min_f32=least,
    max_f32=greatest,
)
define(
    "f32 = f32 f32 f32",
    fma_f32=fma_f32,
    fmaak_f32=fma_f32,
    fmamk_f32=fma_f32,
    mad_f32=mac_f32,
    madak_f32=mac_f32,
    madmk_f32=mac_f32,
    min3_f32=lambda a, b, c: least(least(a, b), c),
    max3_f32=lambda a, b, c: greatest(greatest(a, b), c),
    med3_f32=median(least, greatest),
    div_fixup_f32=div_fixup,
)
define("f32 = f32 f32 dst", fmac_f32=fma_f32, mac_f32=mac_f32)
define("f32 = f32 i32", ldexp_f32=lambda a, b: np.ldexp(a, b))
define("f32 mask = f32 f32 f32", div_scale_f32=div_scale(96, 64, 23))
define("f32 = f32 f32 f32 vcc", div_fmas_f32=div_fmas(fma_f32, 127, 64))

define(
    "f64 = f64",
    rcp_f64=lambda a: 1 / a,
    rsq_f64=lambda a: 1 / np.sqrt(a),
    sqrt_f64=np.sqrt,
    trunc_f64=np.trunc,
    floor_f64=np.floor,
    ceil_f64=np.ceil,
    rndne_f64=np.rint,
    fract_f64=lambda a: a - np.floor(a),
    frexp_mant_f64=lambda a: np.frexp(a)[0],
)
define("i32 = f64", frexp_exp_i32_f64=lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0))
define("f64 = f64 f64", add_f64=np.add, mul_f64=np.multiply, min_f64=least, max_f64=greatest)
define("f64 = f64 f64 f64", fma_f64=fma_f64, div_fixup_f64=div_fixup)
define("f64 = f64 f64 dst", fmac_f64=fma_f64)
define("f64 = f64 i32", ldexp_f64=lambda a, b: np.ldexp(a, b))
define("f64 mask = f64 f64 f64", div_scale_f64=div_scale(768, 128, 53))
define("f64 = f64 f64 f64 vcc", div_fmas_f64=div_fmas(fma_f64, 1023, 128))

define(
    "f32 = u32", cvt_f32_u32=lambda a: a, **{f"cvt_f32_ubyte{i}": (lambda a, i=i: (a >> 8 * i) & 255) for i in range(4)}
)
define("f32 = i32", cvt_f32_i32=lambda a: a)
define("f32 = f16", cvt_f32_f16=lambda a: a)
define("f32 = f64", cvt_f32_f64=lambda a: a)
define("f16 = f32", cvt_f16_f32=lambda a: a.astype(F16))
define("f16 = u16", cvt_f16_u16=lambda a: a.astype(F16))
define("f16 = i16", cvt_f16_i16=lambda a: a.astype(F16))
define("f64 = f32", cvt_f64_f32=lambda a: a)
define("f64 = u32", cvt_f64_u32=lambda a: a)
define("f64 = i32", cvt_f64_i32=lambda a: a)
define("u32 = f32", cvt_u32_f32=to_integer(U32))
define("i32 = f32", cvt_i32_f32=to_integer(I32))
define("u32 = f64", cvt_u32_f64=to_integer(U32))
define("i32 = f64", cvt_i32_f64=to_integer(I32))
define("u16 = f16", cvt_u16_f16=to_integer(U16))
define("i16 = f16", cvt_i16_f16=to_integer(I16))
define(
    "u32 = f32 f32",
    cvt_pkrtz_f16_f32=lambda a, b: towards_zero_f16(a).astype(U32) | towards_zero_f16(b).astype(U32) << U32(16),
)
define(
    "u32 = f32 f32",
    cvt_pk_bf16_f32=lambda a, b: nearest_bf16(a) | nearest_bf16(b) << U32(16),
    cvt_pk_f16_f32=lambda a, b: a.astype(F16).view(U16).astype(U32) | b.astype(F16).view(U16).astype(U32) << U32(16),
)
define(
    "u32 = u16 u16",
    pack_b32_f16=lambda a, b: a.astype(U32) | b.astype(U32) << U32(16),
)

define(
    "f16 = f16",
    rcp_f16=lambda a: (1 / a.astype(F64)).astype(F16),
    sqrt_f16=lambda a: np.sqrt(a.astype(F64)).astype(F16),
    trunc_f16=np.trunc,
    floor_f16=np.floor,
    rndne_f16=np.rint,
)
define(
    "f16 = f16 f16",
    add_f16=np.add,
    sub_f16=np.subtract,
    subrev_f16=lambda a, b: b - a,
    mul_f16=np.multiply,
    min_f16=least,
    max_f16=greatest,
)
define("f16 = f16 f16 f16", fma_f16=fma_f16, div_fixup_f16=div_fixup)
define("f16 = f16 f16 dst", fmac_f16=fma_f16)
define(
    "u16 = u16 u16",
    add_u16=lambda a, b: a + b,
    sub_u16=lambda a, b: a - b,
    subrev_u16=lambda a, b: b - a,
    mul_lo_u16=lambda a, b: a * b,
    lshlrev_b16=lambda a, b: b << (a & 15),
    lshrrev_b16=lambda a, b: b >> (a & 15),
    min_u16=np.minimum,
    max_u16=np.maximum,
)
define("u16 = u16 u16 u16", bitop3_b16=bit_operation(0))
define("i16 = i16 i16", ashrrev_i16=lambda a, b: b >> (a & 15), min_i16=np.minimum, max_i16=np.maximum)
define("u16 = u16 u16 u16", mad_u16=lambda a, b, c: a * b + c, mad_legacy_u16=lambda a, b, c: a * b + c)

define("pk_f32 = pk_f32 pk_f32 pk_f32", pk_fma_f32=fma_f32)
define("pk_f32 = pk_f32 pk_f32", pk_mul_f32=np.multiply, pk_add_f32=np.add)
define(
    "pk_f16 = pk_f16 pk_f16",
    pk_add_f16=np.add,
    pk_mul_f16=np.multiply,
    pk_min_f16=least,
    pk_max_f16=greatest,
)
define("pk_f16 = pk_f16 pk_f16 pk_f16", pk_fma_f16=fma_f16)
define(
    "pk_u16 = pk_u16 pk_u16",
    pk_add_u16=np.add,
    pk_sub_u16=np.subtract,
    pk_mul_lo_u16=np.multiply,
    pk_lshlrev_b16=lambda a, b: b << (a & 15),
    pk_lshrrev_b16=lambda a, b: b >> (a & 15),
    pk_min_u16=np.minimum,
    pk_max_u16=np.maximum,
)
define("pk_u16 = pk_u16 pk_u16 pk_u16", pk_mad_u16=lambda a, b, c: a * b + c)
define("f32 = mix mix mix", fma_mix_f32=fma_f32)
define("half = mix mix mix", fma_mixlo_f16=fma_f32, fma_mixhi_f16=fma_f32)

FLOAT_COMPARISONS = {
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}
FLOAT_OPPOSITES = {"u": "o", "nge": "ge", "nlg": "lg", "ngt": "gt", "nle": "le", "neq": "eq", "nlt": "lt", "tru": "f"}
for _name, _opposite in FLOAT_OPPOSITES.items():
    FLOAT_COMPARISONS[_name] = lambda a, b, f=FLOAT_COMPARISONS[_opposite]: ~f(a, b)
INTEGER_COMPARISONS = {name: FLOAT_COMPARISONS[name] for name in ("f", "lt", "eq", "le", "gt", "ge")}
INTEGER_COMPARISONS |= {"ne": lambda a, b: a != b, "t": FLOAT_COMPARISONS["tru"]}
for _type in ("f16", "f32", "f64", "u16", "i16", "u32", "i32", "u64", "i64"):
    for _name, _function in (FLOAT_COMPARISONS if _type[0] == "f" else INTEGER_COMPARISONS).items():
        define(f"mask = {_type} {_type}", **{f"{cmp}_{_name}_{_type}": _function for cmp in ("cmp", "cmpx")})
    if _type[0] == "f":
        define(f"mask = {_type} u32", **{f"{cmp}_class_{_type}": class_mask for cmp in ("cmp", "cmpx")})

# ---- Matrix instructions: M = N. Lane layouts: those of AMD's matrix instruction calculator.


@dataclass(frozen=True)
class Mfma:
    """64 lanes. The types are those of A and B, and of C and D."""

    m: int
    k: int
    kind: str
    acc_kind: str = "f32"
    has_copies = False  # of A and B, in the upper lanes

    def operand(self):
        """Row (or column) and k of A (or B), by lane and element of the lane."""
        per_lane = self.m * self.k // 64
        lane, element = np.mgrid[:64, :per_lane]
        return lane % self.m, per_lane * (lane // self.m) + element

    def result(self):
        """Row and column of C and D, by lane and element: fp32 has four rows in neighbouring registers, fp64 one."""
        rows, groups = 1 if self.acc_kind == "f64" else 4, 64 // self.m
        lane, element = np.mgrid[:64, : self.m * self.m // 64]
        return (element // rows) * rows * groups + rows * (lane // self.m) + element % rows, lane % self.m


@dataclass(frozen=True)
class Wmma:
    """32 lanes, 16 x 16 x 16. RDNA3 has A and B twice, RDNA4 one half of k in each half of the lanes."""

    kind: str
    has_copies: bool
    acc_kind: str = "f32"
    m: int = 16
    k: int = 16

    def operand(self):
        lane, element = np.mgrid[:32, : 16 if self.has_copies else 8]
        return lane % 16, element if self.has_copies else 8 * (lane // 16) + element

    def result(self):
        lane, element = np.mgrid[:32, :8]
        return 2 * element + lane // 16 if self.has_copies else 8 * (lane // 16) + element, lane % 16


MFMA = {
    "v_mfma_f32_16x16x4_f32": Mfma(16, 4, "f32"),
    "v_mfma_f32_32x32x2_f32": Mfma(32, 2, "f32"),
    "v_mfma_f32_16x16x16_f16": Mfma(16, 16, "f16"),
    "v_mfma_f32_32x32x8_f16": Mfma(32, 8, "f16"),
    "v_mfma_f32_16x16x16_bf16": Mfma(16, 16, "bf16"),
    "v_mfma_f32_32x32x8_bf16": Mfma(32, 8, "bf16"),
    "v_mfma_f64_16x16x4_f64": Mfma(16, 4, "f64", "f64"),
}
# gfx90a's names differ from gfx942's in an underscore.
MFMA |= {
    name[: -len(layout.kind) - 1] + layout.kind + ("_1k" if layout.kind == "bf16" else ""): layout
    for name, layout in list(MFMA.items())
}
MFMA |= {  # gfx950
    f"v_mfma_f32_{m}x{m}x{k}_{kind}": Mfma(m, k, kind) for m, k in ((16, 32), (32, 16)) for kind in ("f16", "bf16")
}


def matrix_instructions(is_rdna: bool, has_copies: bool) -> dict:
    if not is_rdna:
        return MFMA
    return {f"v_wmma_f32_16x16x16_{kind}": Wmma(kind, has_copies) for kind in ("f16", "bf16")}


# ---- Scalar instructions: Python integers. SOP2: name -> (bits, function of a, b, scc -> (result, scc or None)).


def signed(x: int, bits: int = 32) -> int:
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def nonzero(function, bits):
    """SCC = result is not zero."""
    mask = (1 << bits) - 1

    def run(a, b, scc):
        result = function(a, b) & mask
        return result, int(result != 0)

    return run


def scalar_add(a, b, scc):
    return (a + b) & 0xFFFFFFFF, (a + b) >> 32


def scalar_add_signed(a, b, scc):
    total = signed(a) + signed(b)
    return total & 0xFFFFFFFF, int(not -(1 << 31) <= total < 1 << 31)


def scalar_sub_signed(a, b, scc):
    total = signed(a) - signed(b)
    return total & 0xFFFFFFFF, int(not -(1 << 31) <= total < 1 << 31)


def scalar_field(value, field, bits, is_signed):
    """s_bfe: offset in bits 4:0 (5:0), width in 22:16."""
    offset, width = field & (bits - 1), field >> 16 & 0x7F
    if is_signed:
        value = signed(value, bits)
    value = value >> offset & ((1 << min(width, bits)) - 1)
    if is_signed and 0 < width <= bits:
        value = signed(value, width)
    return value


def shifted_add(count):
    def run(a, b, scc):
        total = (a << count) + b
        return total & 0xFFFFFFFF, int(total > 0xFFFFFFFF)

    return run


LOGIC = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
SOP2 = {f"s_{name}_b{bits}": (bits, nonzero(function, bits)) for name, function in LOGIC.items() for bits in (32, 64)}
for _bits in (32, 64):
    SOP2 |= {
        f"s_lshl_b{_bits}": (_bits, nonzero(lambda a, b, n=_bits: a << (b & (n - 1)), _bits)),
        f"s_lshr_b{_bits}": (_bits, nonzero(lambda a, b, n=_bits: a >> (b & (n - 1)), _bits)),
        f"s_ashr_i{_bits}": (_bits, nonzero(lambda a, b, n=_bits: signed(a, n) >> (b & (n - 1)), _bits)),
        f"s_bfe_u{_bits}": (_bits, nonzero(lambda a, b, n=_bits: scalar_field(a, b, n, False), _bits)),
        f"s_bfe_i{_bits}": (_bits, nonzero(lambda a, b, n=_bits: scalar_field(a, b, n, True), _bits)),
        f"s_bfm_b{_bits}": (_bits, lambda a, b, scc, n=_bits: (((1 << (a & (n - 1))) - 1) << (b & (n - 1)), None)),
        f"s_cselect_b{_bits}": (_bits, lambda a, b, scc: (a if scc else b, None)),
    }
SOP2 |= {
    name: (32, function)
    for name, function in {
        "s_add_u32": scalar_add,
        "s_addc_u32": lambda a, b, scc: ((a + b + scc) & 0xFFFFFFFF, (a + b + scc) >> 32),
        "s_sub_u32": lambda a, b, scc: ((a - b) & 0xFFFFFFFF, int(b > a)),
        "s_subb_u32": lambda a, b, scc: ((a - b - scc) & 0xFFFFFFFF, int(b + scc > a)),
        "s_add_i32": scalar_add_signed,
        "s_sub_i32": scalar_sub_signed,
        "s_mul_i32": lambda a, b, scc: (a * b, None),
        "s_mul_hi_u32": lambda a, b, scc: (a * b >> 32, None),
        "s_mul_hi_i32": lambda a, b, scc: (signed(a) * signed(b) >> 32, None),
        "s_min_u32": lambda a, b, scc: (min(a, b), int(a < b)),
        "s_max_u32": lambda a, b, scc: (max(a, b), int(a > b)),
        "s_min_i32": lambda a, b, scc: (min(signed(a), signed(b)), int(signed(a) < signed(b))),
        "s_max_i32": lambda a, b, scc: (max(signed(a), signed(b)), int(signed(a) > signed(b))),
        "s_absdiff_i32": nonzero(lambda a, b: abs(signed(a) - signed(b)), 32),
        "s_pack_ll_b32_b16": lambda a, b, scc: (a & 0xFFFF | (b & 0xFFFF) << 16, None),
        "s_pack_lh_b32_b16": lambda a, b, scc: (a & 0xFFFF | b & 0xFFFF0000, None),
        "s_pack_hh_b32_b16": lambda a, b, scc: (a >> 16 | b & 0xFFFF0000, None),
        **{f"s_lshl{count}_add_u32": shifted_add(count) for count in (1, 2, 3, 4)},
    }.items()
}
# With one source, which the destination is combined with: a signed constant of 16 bits, or the number of a bit.
SOPK = {"s_addk_i32", "s_mulk_i32", "s_bitset0_b32", "s_bitset1_b32"}
SOP2 |= {
    "s_bitset0_b32": (32, lambda a, b, scc: (a & ~(1 << (b & 31)), None)),
    "s_bitset1_b32": (32, lambda a, b, scc: (a | 1 << (b & 31), None)),
    "s_addk_i32": (32, lambda a, b, scc: scalar_add_signed(a, signed(b & 0xFFFF, 16) & 0xFFFFFFFF, scc)),
    "s_mulk_i32": (32, lambda a, b, scc: (a * signed(b & 0xFFFF, 16), None)),
}
# Bits of the second source where they are not those of the first.
SECOND_BITS = {f"s_{name}": 32 for name in ("lshl_b64", "lshr_b64", "ashr_i64", "bfe_u64", "bfe_i64", "bfm_b64")}

# SOP1: name -> (bits of the destination, bits of the source, function of a -> (result, scc or None)).


def count_leading(a, bits):
    return bits - a.bit_length() if a else -1


def unary_nonzero(function, bits):
    return lambda a: ((function(a) & ((1 << bits) - 1)), int(function(a) & ((1 << bits) - 1) != 0))


SOP1 = {}
for _bits in (32, 64):
    SOP1 |= {
        f"s_mov_b{_bits}": (_bits, _bits, lambda a: (a, None)),
        f"s_not_b{_bits}": (_bits, _bits, unary_nonzero(lambda a: ~a, _bits)),
        f"s_brev_b{_bits}": (_bits, _bits, lambda a, n=_bits: (int(f"{a:0{n}b}"[::-1], 2), None)),
        f"s_ff1_i32_b{_bits}": (32, _bits, lambda a: ((a & -a).bit_length() - 1, None)),
        f"s_flbit_i32_b{_bits}": (32, _bits, lambda a, n=_bits: (count_leading(a, n), None)),
        f"s_bcnt1_i32_b{_bits}": (32, _bits, lambda a: (a.bit_count(), int(a != 0))),
        f"s_bcnt0_i32_b{_bits}": (32, _bits, lambda a, n=_bits: (n - a.bit_count(), int(a.bit_count() != n))),
    }
SOP1 |= {
    "s_abs_i32": (32, 32, unary_nonzero(lambda a: abs(signed(a)), 32)),
    "s_sext_i32_i8": (32, 32, lambda a: (signed(a & 0xFF, 8), None)),
    "s_sext_i32_i16": (32, 32, lambda a: (signed(a & 0xFFFF, 16), None)),
    "s_movk_i32": (32, 32, lambda a: (signed(a & 0xFFFF, 16), None)),
}
# D = EXEC; EXEC = S0 op EXEC (andn1, orn1: ~S0 op EXEC); SCC = EXEC is not zero. Bits of the mask, function.
SAVEEXEC = {
    f"s_{name}_saveexec_b{bits}": (bits, function)
    for name, function in (LOGIC | {"andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b}).items()
    for bits in (32, 64)
}

# Names of floating-point instructions on scalars -> that of the vector instruction of the same meaning.
SCALAR_FLOATS = {}

SCALAR_COMPARISONS = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
# SOPC: name -> (bits, function of a, b -> bool).
SOPC = {"s_cmp_eq_u64": (64, SCALAR_COMPARISONS["eq"]), "s_cmp_lg_u64": (64, SCALAR_COMPARISONS["lg"])}
for _name, _function in SCALAR_COMPARISONS.items():
    for _k in ("", "k"):
        SOPC[f"s_cmp{_k}_{_name}_u32"] = (32, _function)
        _bits = 16 if _k else 32  # of the second operand: s_cmpk has a constant of 16
        SOPC[f"s_cmp{_k}_{_name}_i32"] = (
            32,
            lambda a, b, f=_function, n=_bits: f(signed(a), signed(b & (1 << n) - 1, n)),
        )
for _bits in (32, 64):
    SOPC[f"s_bitcmp0_b{_bits}"] = (_bits, lambda a, b, n=_bits: not a >> (b & (n - 1)) & 1)
    SOPC[f"s_bitcmp1_b{_bits}"] = (_bits, lambda a, b, n=_bits: bool(a >> (b & (n - 1)) & 1))
SECOND_BITS |= {"s_bitcmp0_b64": 32, "s_bitcmp1_b64": 32}

# ---- Memory: the last part of a load's or store's name -> (bytes, signed, half of the register or None for all of it).
WIDTHS = {
    "ubyte": (1, False, None),
    "sbyte": (1, True, None),
    "ushort": (2, False, None),
    "sshort": (2, True, None),
    "byte": (1, False, None),
    "short": (2, False, None),
    "short_d16": (2, False, 0),
    "short_d16_hi": (2, False, 1),
    "ubyte_d16": (1, False, 0),
    "ubyte_d16_hi": (1, False, 1),
    "byte_d16_hi": (1, False, 1),
    "dword": (4, False, None),
    "dwordx2": (8, False, None),
    "dwordx3": (12, False, None),
    "dwordx4": (16, False, None),
}
# The same for LDS.
DS_WIDTHS = {
    "b32": "dword",
    "b64": "dwordx2",
    "b96": "dwordx3",
    "b128": "dwordx4",
    "b8": "byte",
    "b16": "short",
    "b16_d16_hi": "short_d16_hi",
    "b8_d16_hi": "byte_d16_hi",
    "u8": "ubyte",
    "i8": "sbyte",
    "u16": "ushort",
    "i16": "sshort",
    "u16_d16": "short_d16",
    "u16_d16_hi": "short_d16_hi",
    "u8_d16": "ubyte_d16",
    "u8_d16_hi": "ubyte_d16_hi",
}
