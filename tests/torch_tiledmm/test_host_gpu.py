"""The GPU rungs through torch_tiledmm.host_gpu, and their counts against closed formulas.

Planted bugs that these tests caught: sectors counted once for each lane, a barrier counted once for each thread, a
plan of chunks side by side whose chunks are too many, the number of a plan ignored.
"""

import ctypes
import itertools
import json
import random
from math import ceil

import pytest
import torch

from torch_tiledmm import host_gpu
from torch_tiledmm.__main__ import main
from torch_tiledmm.dispatch import algorithms, explain
from torch_tiledmm.testing.ladder import ladder_rungs
from torch_tiledmm.testing.reference import (
    ACTIVATIONS,
    EXACT_ACTIVATIONS,
    assert_close,
    expect_addmm,
    expect_linear,
    expect_matmul,
)

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# By order of summation, with the variants of a rung; wgmma_single has instructions of Hopper alone.
FAMILIES = {
    order: [entry.name for entry in algorithms("cuda") if entry.order == order and entry.name != "wgmma_single"]
    for order in ("chain", "mma_chain")
}
VARIANTS = [name for family in FAMILIES.values() for name in family]


def rand(*shape, dtype=torch.float32):
    return (torch.rand(shape, dtype=torch.float64) * 2 - 1).to(dtype)


@pytest.mark.takes_long("host_gpu")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
def test_every_rung_is_right_in_any_order(warp_size, dtype):
    for m, n, k in [(33, 47, 29), (65, 70, 50), (1, 5, 3), (3, 4, 0)]:
        for layout in ("NN", "NT", "TN", "TT"):
            a = rand(k, m, dtype=dtype).mT if layout[0] == "T" else rand(m, k, dtype=dtype)
            b = rand(n, k, dtype=dtype).mT if layout[1] == "T" else rand(k, n, dtype=dtype)
            for seed, algorithm in enumerate(VARIANTS):
                out, _ = host_gpu.matmul(a, b, algorithm=algorithm, warp_size=warp_size, seed=seed)
                assert_close(out, expect_matmul(a, b))


@pytest.mark.takes_long("host_gpu")
@pytest.mark.parametrize("narrow", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
def test_dtypes_that_differ(warp_size, narrow):
    """Rungs of one order agree to the bit. What is added and activated may have the dtype of any of the three."""
    for dtypes in itertools.product((torch.float32, narrow), repeat=3):
        if len(set(dtypes)) == 1:
            continue
        is_wide = dtypes[0] == dtypes[1] == narrow
        algorithms = {"chain": ("naive", "register_tiled.4x4", "register_tiled")}
        if is_wide:
            algorithms["mma_chain"] = ("mma_output_cached",)
        for (m, n, k), layout in zip(
            ((33, 47, 29), (65, 70, 50), (1, 5, 3), (3, 4, 0)), ("NN", "NT", "TN", "TT"), strict=True
        ):
            a = rand(k, m, dtype=dtypes[0]).mT if layout[0] == "T" else rand(m, k, dtype=dtypes[0])
            b = rand(n, k, dtype=dtypes[1]).mT if layout[1] == "T" else rand(k, n, dtype=dtypes[1])
            bias = rand(n, dtype=dtypes[m % 3])
            how = {"warp_size": warp_size, "bias": bias, "activation": "silu", "out_dtype": dtypes[2]}
            for names in algorithms.values():
                results = [host_gpu.matmul(a, b, algorithm=name, **how)[0] for name in names]
                assert_close(results[0], expect_linear(a, b.mT, bias, "silu", dtypes[2]))
                assert all(torch.equal(result, results[0]) for result in results)
                if is_wide:
                    plain = host_gpu.matmul(a, b, algorithm=names[0], warp_size=warp_size)[0]
                    wide = host_gpu.matmul(a, b, algorithm=names[0], warp_size=warp_size, out_dtype=dtypes[2])[0]
                    assert torch.equal(wide.to(narrow), plain)
    with pytest.raises(NotImplementedError, match="its operands and its result have one dtype"):
        host_gpu.matmul(rand(3, 4), rand(4, 5, dtype=narrow), algorithm="block_tiled")


@pytest.mark.takes_long("host_gpu")
@pytest.mark.parametrize("narrow", (torch.float16, torch.bfloat16), ids=str)
def test_wide_results_of_production_kernels(narrow):
    """Rounded, a C in fp32 is the C in 16 bits, by every plan of one dtype; what is added has either dtype.
    Planted bugs that this test caught: a bias of 16 bits read as fp32, a total of chunks stored rounded.
    """
    wide = torch.float32
    for m, n, k, layout in (
        (24, 65, 2100, "TN"),
        (5, 33, 4100, "NT"),
        (33, 40, 70, "NN"),
        (130, 257, 64, "NT"),
        (9, 35, 72, "NT"),
        (50, 5, 24, "NT"),
        (1, 1, 1, "NT"),
        (3, 4, 0, "NN"),
    ):
        a = rand(k, m, dtype=narrow).mT if layout[0] == "T" else rand(m, k, dtype=narrow)
        b = rand(n, k, dtype=narrow).mT if layout[1] == "T" else rand(k, n, dtype=narrow)
        how = {"layout": layout, "device": "host:host", "out_dtype": wide}
        plain, _ = host_gpu.matmul(a, b, algorithm="mma_async")
        for name in ("mma_async", "skinny", "direct"):
            plans = explain(m, n, k, narrow, plans_of=name, **how).candidates
            assert plans or name != "mma_async"
            assert plans or name != "direct" or k not in (24, 72)
            for plan in range(narrow == torch.bfloat16, len(plans), 2):
                memory = torch.full((m + 1, n + 3), torch.nan)
                out, _ = host_gpu.matmul(a, b, algorithm=f"{name}:{plan}", out=memory[1:, 1 : n + 1])
                assert torch.equal(out.to(narrow), plain), (name, plan)
                assert memory[0].isnan().all() and memory[:, 0].isnan().all() and memory[:, n + 1 :].isnan().all()
            for bias in (rand(n, dtype=narrow), rand(m, n, dtype=wide)) if plans else ():
                added = {"bias": bias, "alpha": 0.5, "beta": -2, "algorithm": name, "out_dtype": wide}
                assert_close(host_gpu.matmul(a, b, **added)[0], expect_addmm(bias, a, b, -2, 0.5, wide))
    items = rand(3, 9, 40, dtype=narrow), rand(3, 40, 17, dtype=narrow)
    out, _ = host_gpu.matmul(*items, algorithm="mma_async", out_dtype=wide)
    assert_close(out, expect_matmul(*items, wide))
    for name in ("skinny", "direct"):
        with pytest.raises(NotImplementedError, match="that lie along k"):
            host_gpu.matmul(rand(9, 40, dtype=narrow), rand(40, 17, dtype=narrow), algorithm=name, out_dtype=wide)


@pytest.mark.takes_long("host_gpu")
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_b_of_8_bits(dtype):
    """Bits are those of the product by the widened B, whose sums are scaled; all 256 codes. Planted bugs that this test
    caught: a NaN that became 480, the factor of the next column, partial sums that were scaled, too.
    """
    for m, n, k, gap, offset in (
        (1, 256, 300, 4, 0),
        (5, 33, 2100, 0, 0),
        (9, 70, 40, 0, 3),
        (17, 40, 129, 3, 1),
        (64, 17, 257, 15, 0),
        (2, 24, 0, 0, 0),
    ):
        codes = torch.randint(0, 0x7F, (offset + n * (k + gap),)) + 0x80 * torch.randint(
            0, 2, (offset + n * (k + gap),)
        )
        memory = codes.to(torch.uint8).view(torch.float8_e4m3fn)
        q = memory[offset:].as_strided((n, k), (k + gap, 1), offset)
        if k == 300:
            q.view(torch.uint8)[:, 77] = torch.arange(256).to(torch.uint8)
        a, scale, bias = rand(m, k + 3, dtype=dtype)[:, :k], torch.rand(2 * n)[::2] + 0.5, rand(n, dtype=dtype)
        of_wide = {"algorithm": "skinny" if n > m else "mma_async", "out_dtype": torch.float32, "is_b_widened": True}
        sums, _ = host_gpu.matmul(a, q.to(dtype).mT, **of_wide)
        expected = torch.nn.functional.silu(sums * scale + bias)
        plans = explain(m, n, k, dtype, layout="NT", device="host:host", b_dtype="e4m3", plans_of="skinny").candidates
        for plan in range(0, len(plans), 3):
            for out_dtype in (torch.float32, dtype):
                out, _ = host_gpu.matmul(
                    a, q.mT, algorithm=f"skinny:{plan}", scale_b=scale, bias=bias.to(out_dtype), out_dtype=out_dtype,
                    activation="silu", seed=plan,
                )  # fmt: skip
                torch.testing.assert_close(out, expected.to(out_dtype), rtol=1e-2, atol=1e-6, equal_nan=True)
            out, _ = host_gpu.matmul(a, q.mT, algorithm=f"skinny:{plan}", scale_b=scale, out_dtype=torch.float32)
            assert out.isnan().sum() == (2 * m if k == 300 else 0)
            assert torch.equal(out.nan_to_num(7), (sums * scale).nan_to_num(7)), plan
    a, scale = rand(65, 8, dtype=dtype), torch.ones(24)
    with pytest.raises(NotImplementedError, match="up to 64 rows beside a B of 8 bits"):
        q = torch.zeros(24, 8, dtype=torch.float8_e4m3fn)
        host_gpu.matmul(a, q.mT, algorithm="skinny", scale_b=scale, out_dtype=dtype)


def test_batch_bias_activation():
    a, b, bias = rand(3, 20, 30), rand(3, 30, 10), rand(10)
    for algorithm in VARIANTS:
        out, _ = host_gpu.matmul(a, b, algorithm=algorithm)
        assert_close(out, expect_matmul(a, b))
        for activation in ACTIVATIONS:
            out, _ = host_gpu.matmul(a[0], b[0], algorithm=algorithm, bias=bias, activation=activation)
            assert_close(out, expect_linear(a[0], b[0].mT, bias, activation))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_activations_of_every_16_bit_number(dtype):
    """Half of a unit of the last place, and 2^-16 of the result; a factor below fp32's normal numbers may be zero."""
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()][:, None]
    one = torch.ones(1, 1, dtype=dtype)
    places = {torch.float16: (10, -24), torch.bfloat16: (7, -133)}[dtype]
    for activation, function in EXACT_ACTIVATIONS.items():
        out, _ = host_gpu.matmul(numbers, one, algorithm="naive", activation=activation)
        exact = function(numbers.double())
        last_place = torch.exp2((exact.abs().clamp(min=1e-300).log2().floor() - places[0]).clamp(min=places[1]))
        bound = last_place / 2 + exact.abs() * 2**-16 + (1 + numbers.double().abs()) * 2.0**-126
        most = torch.finfo(dtype).max
        is_right = ((out.double() - exact).abs() <= bound) | (exact.abs() > most)
        assert is_right.all(), (activation, numbers[~is_right][:5], out[~is_right][:5], exact[~is_right][:5])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mma_async_takes_batches_odd_strides_and_chunks(dtype):
    wide = rand(2, 9, 40, dtype=dtype)[:, :, 1:20]  # 16-bit elements are repacked
    for a, b in [(wide, rand(2, 19, 18, dtype=dtype)), (wide[:1].expand(2, 9, 19), rand(2, 18, 19, dtype=dtype).mT)]:
        out, _ = host_gpu.matmul(a, b, algorithm="mma_async", seed=1)
        assert_close(out, expect_matmul(a, b))
    a, b, bias = rand(5, 4100, dtype=dtype), rand(4100, 9, dtype=dtype), rand(9, dtype=dtype)
    out, _ = host_gpu.matmul(a, b, algorithm="mma_async", bias=bias, activation="gelu")
    assert_close(out, expect_linear(a, b.mT, bias, "gelu"))


def placed(values, is_aligned, is_transposed):
    """The same matrix in rows that begin at multiples of 16 bytes, or not all do, with NaN between and around them."""
    values = values.mT if is_transposed else values
    rows, cols = values.shape
    unit = 16 // values.element_size()
    stride, start = -(-cols // unit) * unit + (unit if is_aligned else 1), unit if is_aligned else 1
    memory = torch.full((start + rows * stride + unit,), torch.nan, dtype=values.dtype)
    found = memory.as_strided((rows, cols), (stride, 1), start)
    assert memory.data_ptr() % 16 == 0
    found.copy_(values)
    return found.mT if is_transposed else found


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_mma_async_copies_each_operand_as_it_lies(dtype, layout):
    """Every plan of fp64 meets each of four ways to be aligned in one layout; those of fp32, which are few, in two.

    Planted bugs that this test caught: the main loop copies A by the width of B; the first tiles of an operand that
    is not aligned are copied 16 bytes at a time; the last tile of one has elements beyond the end of k."""
    turn, step = ("NN", "NT", "TN", "TT").index(layout), 4 if dtype == torch.float64 else 2
    for m, n, k in [(70, 36, 205), (33, 130, 90)]:
        a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
        expected, _ = host_gpu.matmul(a, b, algorithm="mma_async")
        assert_close(expected, expect_matmul(a, b))
        plans = len(explain(m, n, k, dtype, device="host:host", plans_of="mma_async").candidates)
        for way, (is_a_aligned, is_b_aligned) in enumerate(itertools.product((False, True), repeat=2)):
            operands = (placed(a, is_a_aligned, layout[0] == "T"), placed(b, is_b_aligned, layout[1] == "T"))
            for plan in range((way + turn) % step, plans, step):
                out, _ = host_gpu.matmul(*operands, algorithm=f"mma_async:{plan}")
                assert torch.equal(out, expected), (m, n, k, is_a_aligned, is_b_aligned, plan)


@pytest.mark.parametrize(
    "algorithm, dtype, m, n, k, layout",
    [
        ("mma_async", torch.float64, 40, 17, 700, "NN"),
        ("mma_async", torch.float64, 3, 70, 700, "NT"),
        ("mma_async", torch.bfloat16, 24, 65, 4099, "TN"),
        ("skinny", torch.float16, 5, 33, 4100, "NN"),
        ("skinny", torch.float64, 5, 33, 1500, "NN"),
        ("skinny", torch.float64, 21, 8, 1301, "TT"),
        ("skinny", torch.float64, 3, 150, 257, "NT"),
        ("direct", torch.float16, 19, 33, 50, "NT"),
        ("direct", torch.float64, 7, 21, 30, "TN"),
        ("direct_fma", torch.float32, 18, 12, 21, "NN"),
        ("simt_pipelined", torch.float32, 5, 36, 1030, "NT"),
        ("simt_pipelined", torch.float32, 70, 72, 520, "NN"),
    ],
)
def test_every_plan_gives_the_same_bits(algorithm, dtype, m, n, k, layout):
    batch = 2
    a = rand(batch, k, m, dtype=dtype).mT if layout[0] == "T" else rand(batch, m, k, dtype=dtype)
    b = rand(batch, n, k, dtype=dtype).mT if layout[1] == "T" else rand(batch, k, n, dtype=dtype)
    plans = explain(m, n, k, dtype, layout=layout, device="host:host", batch=batch, plans_of=algorithm).candidates
    assert len({str(plan.config) for plan in plans}) > 1
    expected, _ = host_gpu.matmul(a, b, algorithm=algorithm)
    assert_close(expected, expect_matmul(a, b))
    counts = set()
    # An odd step: of plans that come in pairs, one with chunks side by side, it takes both kinds.
    for plan in plans[:: len(plans) // 6 | 1]:
        out, counted = host_gpu.matmul(a, b, algorithm=plan.algorithm)
        assert torch.equal(out, expected), plan
        counts.add(counted)
    assert len(counts) > 1  # it was the plan that ran
    with pytest.raises(NotImplementedError, match="it has no plan of this number"):
        host_gpu.matmul(a, b, algorithm=f"{algorithm}:{len(plans)}")


@pytest.mark.parametrize(
    "kernel, precision, tiny, ks",
    [("simt_pipelined", "fp32", 1e-30, (520,))]
    + [(kernel, "fp64", 1e-200, (45, 46)) for kernel in ("mma_async", "skinny", "direct")],
)
def test_no_plan_turns_a_zero_around(kernel, precision, tiny, ks):
    """Products that underflow are -0, and so are sums of them: in chunks, in parts of tiles, in one chain, and where k
    does not fill tiles, in rows that are aligned to 16 bytes and in others.
    """
    batch, dtype, served = 2, torch.float32 if precision == "fp32" else torch.float64, 0
    sizes = ((3, 72, "NN"), (70, 72, "NN"), (70, 72, "NT"), (4, 70, "TN"), (70, 3, "NN"), (70, 4, "NT"))
    for (m, n, layout), k in itertools.product(sizes, ks):
        a, b = torch.full((batch, m, k), -tiny, dtype=dtype), torch.full((batch, k, n), tiny, dtype=dtype)
        a = a.mT.contiguous().mT if layout[0] == "T" else a
        b = b.mT.contiguous().mT if layout[1] == "T" else b
        plans = explain(m, n, k, precision, layout=layout, device="host:host", batch=batch, plans_of=kernel)
        for plan in plans.candidates[:: len(plans.candidates) // 4 | 1]:
            out, _ = host_gpu.matmul(a, b, algorithm=plan.algorithm)
            assert not out.any() and torch.signbit(out).all(), (plan, m, n, k, layout)
            served += 1
    assert served >= 12


def odd_operand(rng, batch, rows, cols, dtype):
    """Random numbers, as often as not transposed, with rows that are padded and that begin anywhere."""
    is_transposed, pad, start = rng.random() < 0.5, rng.choice((0, 0, 1, 3, 8)), rng.choice((0, 0, 1, 5))
    far, close = (cols, rows) if is_transposed else (rows, cols)
    memory = rand(batch * far * (close + pad) + start, dtype=dtype)[start:]
    found = memory.as_strided((batch, far, close), (far * (close + pad), close + pad, 1), memory.storage_offset())
    return found.mT if is_transposed else found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_direct_has_the_bits_of_the_other_kernels(dtype):
    """Planted bugs that this test caught: a lane's first row lies beyond the operand's last one; an element beyond the
    end of k is loaded; the last step of k is loaded whole; tiles are numbered along the wrong dimension of C; sums are
    read from shared memory before all lanes have written them, or those of another lane's tile; rows and columns behind
    C's last ones are stored, and tiles behind the last one."""
    rng, others = random.Random(f"direct {dtype}"), ["mma_async"]
    kernels = {"direct": others, "direct_fma": ["simt_pipelined"]} if dtype == torch.float32 else {"direct": others}
    sizes = (1, 2, 3, 4, 5, 8, 13, 16, 17, 24, 33, 40, 70)
    for kernel, (other,) in kernels.items():
        served, tiles = 0, 6 if (kernel, dtype) == ("direct", torch.float32) else 8  # behind these: few_columns
        for turn in range(12):
            batch, m, n, k = rng.choice((1, 3, 7)), *(rng.choice(sizes) for _ in range(3))
            n = rng.choice((n, 1, 5))
            if turn in (6, 8):  # enough for a warp to have all the rows that it has lanes for
                batch, m, n, k = 140, 70, turn // 8 + 1, 17
            if turn % 2:
                a, b = odd_operand(rng, batch, m, k, dtype), odd_operand(rng, batch, k, n, dtype)
            else:  # columns along k, aligned; rows along k or along m
                a, b = (rand(batch, rows, k + -k % 8, dtype=dtype)[:, :, :k] for rows in (m, n))
                b = b.mT
                if turn % 4 == 2 and kernel == "direct_fma":
                    a = rand(batch, k, m + -m % 8, dtype=dtype)[:, :, :m].mT
            more = dict(bias=rand(n, dtype=dtype), activation="gelu") if turn % 4 == 3 else {}
            expected, _ = host_gpu.matmul(a, b, algorithm=other, **more)
            for plan in (*rng.sample(range(tiles), 3), tiles, tiles + 1):
                out = torch.full((batch, m, n + turn % 3), float("nan"), dtype=dtype)[:, :, :n]
                if turn % 5 == 4:
                    out = torch.full((batch, n, m + 1), float("nan"), dtype=dtype)[:, :, :m].mT
                try:
                    host_gpu.matmul(a, b, algorithm=f"{kernel}:{plan}", out=out, seed=turn, **more)
                except NotImplementedError:
                    assert plan >= tiles
                    continue
                served += plan >= tiles
                assert torch.equal(out, expected), (plan, batch, m, n, k, a.stride(), b.stride(), out.stride())
        assert served >= 5


@pytest.mark.parametrize(
    "error, pattern, change",
    [
        (ValueError, r"a, b: got shapes \[2, 3\] and \[4, 5\]", {"b": rand(4, 5)}),
        (ValueError, r"a, b: got shapes \[2, 2, 3\] and \[3, 5\]", {"a": rand(2, 2, 3)}),
        (ValueError, r"a, b: got shapes \[3\] and", {"a": rand(3)}),
        (TypeError, "b: got torch.float64", {"b": rand(3, 5).double()}),
        (TypeError, "a: got torch.int32", {"a": torch.ones(2, 3, dtype=torch.int32)}),
        (ValueError, "b: got a tensor on meta", {"b": rand(3, 5).to("meta")}),
        (ValueError, r"bias: got shape \[4\], expected \[5\]", {"bias": rand(4)}),
        (ValueError, r"out: got shape \[5, 2\], expected \[2, 5\]", {"out": rand(5, 2)}),
        (ValueError, "activation: got 'tanh'", {"activation": "tanh"}),
    ],
)
def test_what_does_not_fit_is_refused(error, pattern, change):
    with pytest.raises(error, match=pattern):
        host_gpu.matmul(**{"a": rand(2, 3), "b": rand(3, 5), "algorithm": "naive", **change})


def test_rungs_01_to_04_share_one_order_of_summation_and_05_to_08_another():
    a, b = rand(70, 90), rand(90, 40)
    for family in FAMILIES.values():
        assert len(family) >= 4
        outs = [host_gpu.matmul(a, b, algorithm=name)[0] for name in family]
        assert all(torch.equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("m, n, k", [(64, 96, 128), (128, 64, 32)])
def test_counts_of_naive(m, n, k, warp_size):
    _, counts = host_gpu.matmul(rand(m, k), rand(k, n), algorithm="naive", warp_size=warp_size)
    rows = warp_size // 32  # of C that a warp computes, 32 columns each
    warps = m * n // warp_size
    assert counts == host_gpu.Counts(
        global_load_elements=2 * m * n * k,
        global_load_sectors=warps * k * (rows + 4),  # an element of each row of A, 128 bytes of B
        global_store_sectors=m * n // 8,
        shared_loads=0,
        shared_stores=0,
        bank_conflicts=0,
        barriers=0,
        flops=2 * m * n * k,
    )


@pytest.mark.parametrize("tile", [8, 16, 32])
@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("m, n, k", [(64, 96, 128), (128, 64, 32)])
def test_counts_of_block_tiled(m, n, k, warp_size, tile):
    algorithm = "block_tiled" if tile == 16 else f"block_tiled.{tile}"
    _, counts = host_gpu.matmul(rand(m, k), rand(k, n), algorithm=algorithm, warp_size=warp_size)
    blocks = (m // tile) * (n // tile)
    loads = blocks * (k // tile) * 2 * tile * tile
    assert counts.global_load_elements == loads == m * k * (n // tile) + k * n * (m // tile)
    assert counts.global_load_sectors == loads // 8  # whole sectors
    assert counts.global_store_sectors == m * n // 8
    assert counts.shared_loads == 2 * m * n * k
    assert counts.shared_stores == loads
    assert counts.barriers == 2 * blocks * (k // tile)
    assert counts.flops == 2 * m * n * k


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("m, n, k", [(128, 96, 128), (256, 64, 32), (64, 96, 128)])
def test_counts_of_register_tiled(m, n, k, warp_size):
    """Thread tiles of 4 x 4, 4 lanes of a warp along n, 2 x 2 warps, k tiles of 16."""
    _, counts = host_gpu.matmul(rand(m, k), rand(k, n), algorithm="register_tiled.4x4", warp_size=warp_size)
    block_m, block_n, block_k = 2 * warp_size // 4 * 4, 32, 16
    blocks, k_tiles = ceil(m / block_m) * (n // block_n), k // block_k
    computed = blocks * block_m * block_n  # outputs, edges included
    loads = m * k * (n // block_n) + k * n * ceil(m / block_m)  # what lies outside is not loaded
    assert counts.global_load_elements == loads
    assert counts.global_load_sectors == loads // 8
    assert counts.global_store_sectors == m * n // 8
    # For each 16 multiply-adds 4 elements of A and 4 of B; at the end C once on its way out.
    assert counts.shared_loads == computed * k // 2 + computed
    assert counts.shared_stores == blocks * k_tiles * block_k * (block_m + block_n) + computed
    assert counts.barriers == blocks * (2 * k_tiles + 1)
    assert counts.flops == 2 * computed * k


@pytest.mark.parametrize(
    "dtype, layout", [(torch.float32, "NN"), (torch.float32, "TN"), (torch.bfloat16, "NT")], ids=str
)
def test_tiles_of_the_matrix_instructions_meet_no_bank_conflicts(dtype, layout):
    """Beyond those of the epilogue, which do not grow with k."""
    conflicts = []
    for k in (64, 256):
        a = rand(k, 128, dtype=dtype).mT if layout[0] == "T" else rand(128, k, dtype=dtype)
        b = rand(128, k, dtype=dtype).mT if layout[1] == "T" else rand(k, 128, dtype=dtype)
        conflicts.append(host_gpu.matmul(a, b, algorithm="mma_output_cached")[1].bank_conflicts)
    assert conflicts[0] == conflicts[1]


@pytest.mark.parametrize("layout", ("NN", "TT"))
def test_copies_and_fragments_of_fp64_meet_no_bank_conflicts(layout):
    """In any tile of mma_async. Planted bugs that this test caught: panels without padding, rows along m and n without
    padding."""

    def conflicts(k: int) -> dict[str, int]:
        a = rand(k, 128, dtype=torch.float64).mT if layout[0] == "T" else rand(128, k, dtype=torch.float64)
        b = rand(128, k, dtype=torch.float64).mT if layout[1] == "T" else rand(k, 128, dtype=torch.float64)
        options = dict(layout=layout, device="host:host", plans_of="mma_async")
        plans = explain(128, 128, k, torch.float64, **options).candidates
        return {str(plan.config): host_gpu.matmul(a, b, algorithm=plan.algorithm)[1].bank_conflicts for plan in plans}

    found = conflicts(64)
    assert len(found) > 3 and found == conflicts(160)


def test_errors():
    with pytest.raises(ValueError, match="nonsense"):
        host_gpu.matmul(rand(2, 3), rand(3, 4), algorithm="nonsense")
    with pytest.raises(ValueError, match="wave.*32, 64"):
        host_gpu.matmul(rand(2, 3), rand(3, 4), algorithm="naive", warp_size=16)


def test_ladder_counts(tmp_path, capsys):
    file = tmp_path / "counts.json"
    main(["ladder", "--count", "64", "96", "128", "--wave", "64", "--json", str(file)])
    printed = capsys.readouterr().out
    entries = json.loads(file.read_text())
    assert [entry["algorithm"] for entry in entries] == ladder_rungs()
    keys = {
        "algorithm",
        "global_load_elements",
        "global_load_sectors",
        "global_store_sectors",
        "shared_loads",
        "shared_stores",
        "bank_conflicts",
        "barriers",
        "flops",
    }
    assert all(set(entry) == keys and entry["algorithm"] in printed for entry in entries)


def test_ladder_without_a_gpu_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        main(["ladder"])
    assert "no GPU" in capsys.readouterr().err


class ElementwiseProblem(ctypes.Structure):  # csrc/core/elementwise.h
    _fields_ = [
        ("function", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("count", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("x", "grad", "y", "other", "y_other")],
        ("dtype_y", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("x_kept", "other_kept")],
    ]


def run_elementwise(problem, warp_size):
    reason = ctypes.create_string_buffer(256)
    call = host_gpu._library(warp_size).tiledmm_host_elementwise
    assert call(ctypes.byref(problem), ctypes.c_uint64(problem.count), reason, ctypes.c_size_t(256)) == 0, reason.value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_other", [False, True])
def test_sums_are_kept_as_they_are_rounded(has_other, dtype):
    """Beside the activation of sums in fp32, aligned and not; of a gated pair also without."""
    for offset, count, keeps in itertools.product((0, 1), (1, 8, 4099), (False, True) if has_other else (True,)):
        x, other = torch.randn(2, offset + count)[:, offset:]
        y, *kept = torch.full((3, offset + count + 3), torch.nan, dtype=dtype)
        problem = ElementwiseProblem(
            function=4,  # silu
            dtype=DTYPES.index(torch.float32),
            dtype_y=DTYPES.index(dtype),
            count=count,
            x=x.data_ptr(),
            y=y[offset:].data_ptr(),
        )
        sums = [x, other][: 1 + has_other]
        if has_other:
            problem.other = other.data_ptr()
        if keeps:
            problem.x_kept = kept[0][offset:].data_ptr()
        if keeps and has_other:
            problem.other_kept = kept[1][offset:].data_ptr()
        run_elementwise(problem, 32)
        exact = torch.nn.functional.silu(x.double()) * (other.double() if has_other else 1)
        torch.testing.assert_close(y[offset:-3].double(), exact, rtol=2**-7, atol=2**-10)
        for memory, values in zip([y, *kept[: len(sums) * keeps]], [None, *sums], strict=False):
            assert memory[:offset].isnan().all() and memory[-3:].isnan().all()
            assert values is None or torch.equal(memory[offset:-3], values.to(dtype))


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
def test_functions_of_each_element(warp_size):
    """The kernel of activate and activate_backward: aligned and not, with a rest and without; nothing else is written.

    fp32 has the bits of the portable code; fp64 calls the C library in both places; fp16 has formulas of its own.
    """
    for offset, count, (name, with_grad) in itertools.product(
        (0, 1), (1, 8, 4099), [("relu", True), ("gelu", False), ("gelu", True), ("silu", True), ("logistic", False)]
    ):
        for dtype in (torch.float32, torch.float64, torch.float16):
            x, grad = torch.randn(2, offset + count, dtype=dtype)[:, offset:]
            y = torch.full((offset + count + 3,), torch.nan, dtype=dtype)
            problem = ElementwiseProblem(
                ("relu", "gelu", "gelu_tanh", "silu", "logistic").index(name) + 1,
                DTYPES.index(dtype),
                count,
                x.data_ptr(),
                grad.data_ptr() if with_grad else None,
                y[offset:].data_ptr(),
            )
            run_elementwise(problem, warp_size)
            ops = torch.ops.tiledmm
            exact = ops.activate_backward(grad, x, name) if with_grad else ops.activate(x, name)
            close = {"rtol": 2**-10, "atol": 2**-11} if dtype == torch.float16 else {"rtol": 2**-20, "atol": 2**-22}
            torch.testing.assert_close(y[offset:-3], exact, **close)
            assert y[:offset].isnan().all() and y[-3:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_lies_behind_a_row_is_not_read(dtype):
    """k one less than a multiple of 16, where rows are aligned: NaNs lie between them."""
    memory = torch.randn(2, 45, 32, dtype=dtype)
    memory[:, :, 31] = torch.nan
    a, b = memory[0, :9, :31], memory[1, :, :31].mT
    for name in dict.fromkeys(name for names in FAMILIES.values() for name in names):
        try:
            out, _ = host_gpu.matmul(a, b, algorithm=name)
        except NotImplementedError:
            continue
        assert_close(out, expect_matmul(a, b))
