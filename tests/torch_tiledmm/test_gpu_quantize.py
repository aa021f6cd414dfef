"""quantize_rows and quantize_blocks on a GPU: the bits of the CPU, by every kernel, whatever is around x.

Skipped without a GPU. The same on a CPU, and the kernels by the host executor: test_quantize.py.
"""

import itertools

import pytest
import torch
from test_quantize import BLOCKS, DTYPES, FLOAT8, LAYOUTS, ODD_SIZES, numbers_of, operand, quantize, same

from torch_tiledmm import quantize_blocks, quantize_rows
from torch_tiledmm.dispatch import ACTIVATIONS

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

LARGE = ((4096, 7168), (1, 7168), (300, 4100), (7, 16400), (3, 70001), (1000, 128), (257, 1030), (20000, 3))


def on_the_gpu(x: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of x and with its own offset; what is between its elements is NaN."""
    size = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    offset = x.storage_offset() % 8
    memory = torch.full((size + offset + 8,), torch.nan, dtype=x.dtype, device="cuda")
    own = memory.as_strided(x.shape, x.stride(), offset)
    own.copy_(x)
    return own


def check(x: torch.Tensor, block: str, **options) -> None:
    expected = quantize(x, block, **options)
    own = on_the_gpu(x)
    torch.full((x.numel() + 16 * len(x),), 0xFF, dtype=torch.uint8, device="cuda")  # the results' memory
    got = quantize(own, block, **options)
    assert got[0].stride() == expected[0].stride() and got[1].stride() == expected[1].stride()
    same((got[0].cpu(), got[1].cpu()), expected)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_are_those_of_the_cpu(dtype, block):
    for seed, ((m, k), how) in enumerate(itertools.product(ODD_SIZES, LAYOUTS)):
        x = operand(m, k, dtype, how)
        check(x, block, dtype=FLOAT8[seed % 2], power_of_two=seed % 3 == 0, activation=ACTIVATIONS[seed % 4 == 1])
    for (m, k), how in itertools.product(LARGE, ("along", "across", "odd_across")):
        check(operand(m, k, dtype, how), block)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_rounding(dtype):
    """All numbers of 16 bits between the dtype's largest ones, and in fp32 what is halfway between two of 8 bits."""
    most = float(numbers_of(dtype)[-1])
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    for half in (torch.float16, torch.bfloat16):
        x = numbers.view(half)
        x = x[x.abs().double() <= most][None]
        for power_of_two in (False, True):
            check(x, "row", dtype=dtype, power_of_two=power_of_two)
            check(x.float(), "row", dtype=dtype, power_of_two=power_of_two)
    own = torch.from_numpy(numbers_of(dtype)).float()
    halves = (own[1:] + own[:-1]) / 2
    beside = [torch.nextafter(halves, torch.tensor(limit)) for limit in (0.0, most)]
    check(torch.cat([own, halves, *beside, -halves])[None], "row", dtype=dtype)


@pytest.mark.parametrize("how", ("along", "across"))
def test_what_is_no_number(how):
    for block, special in itertools.product(BLOCKS, (torch.nan, torch.inf, -torch.inf, 1e-45, 0.0, -0.0, 3e38)):
        for dtype, power_of_two in itertools.product(FLOAT8, (False, True)):
            x = operand(5, 300, torch.float32, how) * (1e-40 if special == 1e-45 else 1)
            x[1, 150], x[3] = special, 0
            check(x, block, dtype=dtype, power_of_two=power_of_two)
    for m, k in ((0, 5), (5, 0), (0, 0)):
        assert (quantize_rows(torch.empty(m, k, device="cuda"))[1] == 1).all()
        assert quantize_blocks(torch.empty(m, k, device="cuda"))[0].shape == (m, k)


@pytest.mark.parametrize("block", BLOCKS)
def test_activations(block):
    """In 16 bits by the short functions of the epilogues: a number of 8 bits may be the next one."""
    for dtype, activation, how in itertools.product(DTYPES, ACTIVATIONS[1:], ("along", "across")):
        x = operand(300, 2000, dtype, how)
        q, scale = (part.cpu() for part in quantize(on_the_gpu(x), block, activation=activation))
        own, own_scale = quantize(x, block, activation=activation)
        assert ((scale - own_scale).abs() <= own_scale * 2**-14).all()
        codes, own_codes = (part.view(torch.uint8).int() for part in (q, own))
        assert ((codes - own_codes).abs() <= 1).all() and (codes != own_codes).float().mean() < 0.01


def test_a_row_s_bits_are_its_own():
    for how, activation in itertools.product(("along", "across"), ("none", "silu")):
        x = on_the_gpu(operand(513, 7000, torch.bfloat16, how))
        for block in ("row", "segment"):
            q, scale = quantize(x, block, activation=activation)
            for rows in (slice(0, 1), slice(512, 513), slice(17, 150)):
                for own in (x[rows], x[rows].contiguous()):
                    same(quantize(own, block, activation=activation), (q[rows], scale[rows]))


def test_graphs_streams_and_no_waiting():
    x = torch.randn(300, 1000, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        plain = [quantize(own, block) for block in BLOCKS for own in (x, x.mT)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [quantize(own, block) for block in BLOCKS for own in (x, x.mT)]
    graph.replay()
    for own, other in zip(captured, plain, strict=True):
        same(own, other)
    x.mul_(3.7)
    graph.replay()
    for own, other in zip(captured, [quantize(own, block) for block in BLOCKS for own in (x, x.mT)], strict=True):
        same(own, other)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.zeros(4096, 4096, device="cuda")
        for _ in range(20):
            late += 1
        scale = quantize_rows(late.mT)[1]
    side.synchronize()
    assert torch.equal(scale.cpu(), torch.full((4096, 1), 20 / 448))


def test_compiles_in_one_graph():
    def quantized(x):
        q, scale = quantize_rows(torch.relu(x))
        block, scales = quantize_blocks(x.mT, block_rows=128)
        return q, scale, block, scales

    x = torch.randn(130, 140, device="cuda")
    compiled, plain = torch.compile(quantized, fullgraph=True)(x), quantized(x)
    same(compiled[:2], plain[:2])
    same(compiled[2:], plain[2:])
