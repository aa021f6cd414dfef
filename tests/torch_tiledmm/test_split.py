"""algorithm="split": who serves it and who refuses, its terms and flags by a model, and on a GPU that has it products.

The model is what csrc/kernels/split/terms.h says, in torch (torch_tiledmm/testing/split_model.py): terms, scales and
flags in every bit. A product with the identity shows the kernel's terms, since first + 2^-11 second is a number of
fp32. The same model simulates sums, so that every machine sees whether the bounds of docs/numerics.md hold.
"""

import itertools
import math

import pytest
import torch

import torch_tiledmm
from torch_tiledmm import TiledLinear, linear, matmul
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.split_model import CHUNK_K, SIMULATED, fp16_terms
from torch_tiledmm.testing.timing import gpu_name

U = 2.0**-24
MIN_K, GROUP_K, FLAGGED_CHUNK_K = 96, 1 << 14, 128
ONE_PRODUCT = {"split_chunks": 9.1, "mfma_split_sums": 10.1}  # its largest error, in U of it
NUM_RANDOM = 5_000  # products; on a GPU
IS_AMD = torch.cuda.is_available() and torch.version.hip is not None
CHIP = gpu_name().split(":")[1] if torch.cuda.is_available() else ""
on_chip = pytest.mark.skipif(CHIP not in ("sm_90", "gfx942", "gfx950"), reason="split is for Hopper, CDNA 3 and 4")


def joined(first, second, scale, k):
    """What the terms stand for, in float64."""
    x = (first.double() + second.double() / 2048) * scale.double()[..., None]
    return x.flatten(1)[:, :k]


def absolute_error(x):
    """By how much elements of unflagged rows can be missed where they are small in their chunk."""
    rows, k = x.shape
    if x.dtype != torch.float32:
        return torch.zeros_like(x, dtype=torch.float64)
    largest = torch.nn.functional.pad(x, (0, -k % CHUNK_K)).reshape(rows, -1, CHUNK_K).abs().amax(-1, keepdim=True)
    return (2.0**-50 * largest.double()).expand(-1, -1, CHUNK_K).flatten(1)[:, :k]


def error_bound(a, b, is_amd=IS_AMD):
    """The bound of docs/numerics.md for each element of a @ b, where one may have 16 bits."""
    k = a.shape[1]
    a64, b64 = a.double().abs(), b.double().abs()
    sums, products = a64 @ b64, (a64 != 0).double() @ (b64 != 0).double()
    groups = math.ceil(k / GROUP_K)
    # A chain, what is left of its total's rounding, groups.
    chain = k if k < 2 * FLAGGED_CHUNK_K else FLAGGED_CHUNK_K
    adds = chain + 1 + groups + 2
    plain = adds * U * sums + (k + 2) * 2.0**-149
    if k < MIN_K:
        return plain
    is_mixed = a.dtype != b.dtype
    small = 2 * (absolute_error(a) @ b64 + a64 @ absolute_error(b.mT).mT)
    k_of_group = min(k, GROUP_K)
    on_hopper = (18 if is_mixed else 24) + min(math.ceil(k / 16), CHUNK_K // 16) + math.ceil(k_of_group / CHUNK_K)
    units = groups + (45 + math.ceil(k_of_group / 32) if is_amd else on_hopper)
    of_few = bound_of_few(products, is_amd) - (6 if is_mixed else 0)
    split = of_few.clamp_max(units) * U * sums + small + (k + 2) * 2.0**-149
    is_flagged = fp16_terms(a)[3][:, None] | fp16_terms(b.mT.contiguous())[3]
    return torch.where(is_flagged, plain, split)


def bound_of_few(products, is_amd):
    """What it says where so many products of an element are not zero, in units of U and of the sum of magnitudes."""
    few = 4 * products + 6.1 if is_amd else 1.5 * products + 10.8
    return torch.where(products == 1, ONE_PRODUCT["mfma_split_sums" if is_amd else "split_chunks"], few)


def lognormal(sigma):
    return lambda *shape: torch.exp(sigma * torch.randn(shape))


def sparse(*shape):
    """Rows of which a half to a 256th is not zero; each third one has a single number, every other time 1."""
    density = 2.0 ** -torch.randint(1, 9, (shape[0], 1))
    x = torch.randn(shape) * (torch.rand(shape) < density)
    single = torch.arange(shape[1]) == torch.randint(0, max(shape[1], 1), (shape[0], 1))
    x[::3] = single[::3].float()
    x[::6] *= torch.randn(shape)[::6]
    return x


DATA = {
    "normal": torch.randn,
    "uniform": torch.rand,
    "near one": lambda *shape: 1 + 2.0**-12 * torch.randn(shape),
    "lognormal 4": lognormal(4),
    "lognormal 8": lognormal(8),
    "signed lognormal 3": lambda *shape: lognormal(3)(*shape) * (torch.randint(0, 2, shape) * 2 - 1),
    "small": lambda *shape: torch.randn(shape) * 2.0**-59,
    "large": lambda *shape: torch.randn(shape) * 2.0**57,
    "denormal": lambda *shape: torch.randn(shape) * 2.0**-130,
    "zero": torch.zeros,
    "sparse": sparse,
}


# ---- everywhere


def candidate(*args, name="wgmma_split", **kwargs):
    found = torch_tiledmm.explain(*args, **kwargs)
    return next(c for c in found.candidates if c.algorithm == name), found.choice


def check_left_to(native, m, n, k, device, name):
    """A product is not the kernel's own: who asks for it, or for split, gets the native one of plain fp32."""
    own, plain = (candidate(m, n, k, "fp32", device=device, name=one)[0] for one in (name, native))
    assert not own.legal and "native kernel" in own.reason and plain.legal
    for algorithm in ("split", name):
        matmul, precision = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
        try:
            matmul.fp32_precision = "tf32"
            plans = torch_tiledmm.explain(m, n, k, "fp32", device=device, plans_of=algorithm).candidates
        finally:
            matmul.fp32_precision = precision
        assert plans and {plan.algorithm.split(":")[0] for plan in plans} == {native}
        assert (plain.config, plain.cost_us) in [(plan.config, plan.cost_us) for plan in plans]


def test_split_is_a_group_that_nobody_gets_without_asking():
    entries = {entry.name: entry for entry in torch_tiledmm.algorithms("cuda")}
    assert entries["split"].rung == 0 and entries["split"].dtypes == ("fp32",)
    assert entries["wgmma_split"].rung == 0 and entries["wgmma_split"].order == "split_chunks"
    assert not entries["wgmma_split"].is_native
    torch_tiledmm.use_algorithm("split")  # is known
    for size in (MIN_K, 1000, 4096):
        own, choice = candidate(size, size, size, "fp32", device="cuda:sm_90")
        assert own.legal and own.cost_us > 0 and choice != "wgmma_split"
    assert own.cost_us < 1000 and own.config["workspace"] < 2.1 * 4 * 4096**2
    assert own.config["one_product_within"] == f"{ONE_PRODUCT['split_chunks']}*2^-24"


@pytest.mark.parametrize(
    "dtype, device, reason",
    [
        ("fp16", "cuda:sm_90", "it serves fp32"),
        ("bf16", "cuda:sm_90", "it serves fp32"),
        ("fp64", "cuda:sm_90", "it serves fp32"),
        ("fp32", "cuda:sm_80", "the chip has no wgmma instruction"),
        ("fp32", "cuda:sm_100", "the chip has no wgmma instruction"),
        ("fp32", "hip:gfx942", "it is for NVIDIA's chips"),
    ],
)
def test_refusals_have_reasons(dtype, device, reason):
    own, choice = candidate(64, 64, 64, dtype, device=device)
    assert not own.legal and own.reason == reason and choice != "wgmma_split"


@pytest.mark.parametrize(
    "dtype, device, reason",
    [
        ("fp16", "hip:gfx942", "it serves fp32"),
        ("fp32", "hip:gfx90a", "the chip's MFMA instructions read denormal fp16 as zero"),
        ("fp32", "hip:gfx1201", "the chip has no MFMA instruction"),
        ("fp32", "cuda:sm_90", "it is for AMD's chips"),
    ],
)
def test_refusals_of_amd_s_kernel_have_reasons(dtype, device, reason):
    own, choice = candidate(64, 64, 64, dtype, device=device, name="mfma_split")
    assert not own.legal and own.reason == reason and choice != "mfma_split"


@pytest.mark.skipif("cuda" in torch_tiledmm.build_info().compiled, reason="this build lacks the kernels of other chips")
@pytest.mark.parametrize("device", ["hip:gfx942", "hip:gfx950"])
def test_amd_s_kernel_is_priced_and_nobody_gets_it_without_asking(device):
    entries = {entry.name: entry for entry in torch_tiledmm.algorithms("hip")}
    assert entries["split"].rung == 0 and entries["split"].dtypes == ("fp32",)
    own = entries["mfma_split"]
    assert own.rung == 0 and own.order == "mfma_split_sums" and not own.is_native
    for size, block in ((MIN_K, "64x64"), (512, "64x64"), (8192, "128x128")):
        own, choice = candidate(size, size, size, "fp32", device=device, name="mfma_split")
        assert own.legal and own.cost_us > 0 and choice != "mfma_split" and own.config["block"] == block
    assert own.config["workspace"] < 2.1 * 4 * 8192**2
    assert own.config["one_product_within"] == f"{ONE_PRODUCT['mfma_split_sums']}*2^-24"
    plain = candidate(size, size, size, "fp32", device=device, name="mfma")[0]
    assert own.cost_us < plain.cost_us
    for k in (0, 1, MIN_K - 1):
        check_left_to("few_rows.mfma", 3, 500, k, device, "mfma_split")
        check_left_to("mfma", 300, 500, k, device, "mfma_split")
    assert "2^21" in candidate(3, 5, 2**21 + 1, "fp32", device=device, name="mfma_split")[0].reason
    for m, n, batch in ((2**18, 2**18, 1), (1, 1, 2**21)):
        own = candidate(m, n, MIN_K, "fp32", device=device, batch=batch, name="mfma_split")[0]
        assert own.reason == "it has 2^23 tiles or more"


def test_a_size_beyond_the_counters_is_refused():
    assert candidate(2**30, 4, MIN_K, "fp32", device="cuda:sm_90")[0].reason == "a size is 2^30 or more"
    own = candidate(2**10, 2**10, MIN_K, "fp32", device="cuda:sm_90", batch=2**24)[0]
    assert own.reason == "it has 2^30 tiles or more"


def test_short_k_is_left_to_the_native_kernel_by_k_alone():
    for m in (3, 5000):
        for k in (0, 1, MIN_K - 1):
            native = "direct_fma" if k <= 1 else "simt_pipelined"
            check_left_to(native, m, 500, k, "cuda:sm_90", "wgmma_split")
    assert {
        candidate(m, n, MIN_K, "fp32", device="cuda:sm_90")[0].config["path"] for m in (1, 5000) for n in (1, 5000)
    } == {"3 products in fp16"}


def test_16_bits_beside_fp32_are_two_products():
    def mixed(m, n, k, *dtypes, **options):
        return candidate(m, n, k, dtypes[0], b_dtype=dtypes[1], device="cuda:sm_90", **options)[0]

    for dtypes in itertools.permutations(("bf16", "fp32")):
        own = mixed(4096, 256, 7168, *dtypes)
        assert own.legal and own.config["path"] == "2 products in fp16"
        terms = (4096 * 7168 * (1 if dtypes[0] == "bf16" else 2) + 256 * 7168 * (1 if dtypes[1] == "bf16" else 2)) * 2
        sums = own.config.get("tiles_by_chunks", 0) * own.config["chunks"] * 2 * 128 * 128 * 4
        assert terms <= own.config["workspace"] - sums < 1.03 * terms
    # Few rows of 16 bits have the kernel for few rows; a large operand of 16 bits is split before.
    assert mixed(3, 4096, 4096, "bf16", "fp32").config["split_after_load"] == "B"
    assert "split_after_load" not in mixed(4096, 3, 4096, "bf16", "fp32").config
    assert mixed(4096, 3, 4096, "fp32", "bf16").config["split_after_load"] == "A"
    assert "split_after_load" not in mixed(3, 4096, 4096, "fp32", "bf16").config
    assert mixed(64, 64, 200, "bf16", "fp32", out_dtype="bf16").reason == "its result and its bias are fp32"
    assert not mixed(64, 64, MIN_K - 1, "bf16", "fp32").legal
    of_amd = candidate(64, 64, 200, "bf16", b_dtype="fp32", device="hip:gfx942", name="mfma_split")[0]
    assert of_amd.reason == "its operands and its result have one dtype"


def test_long_k_needs_the_memory_of_groups_that_are_multiplied_together():
    def workspace(m, n, k, batch=1):
        return candidate(m, n, k, "fp32", device="cuda:sm_90", batch=batch)[0].config["workspace"]

    one = 5000 * 6000 * 4
    assert workspace(5000, 6000, 1 << 20) == workspace(5000, 6000, GROUP_K) + one > workspace(5000, 6000, GROUP_K // 2)
    # Results of 27 groups are less than 32 MiB.
    assert workspace(500, 600, 1 << 20) == workspace(500, 600, GROUP_K, batch=27) + 27 * 500 * 600 * 4


def test_the_large_operand_of_few_rows_is_split_after_the_load():
    def late(m, n, k=4096):
        return candidate(m, n, k, "fp32", device="cuda:sm_90")[0].config.get("split_after_load")

    assert [late(m, 4096) for m in (1, 64, 65)] == ["B", "B", None]
    assert [late(4096, n) for n in (1, 64, 65)] == ["A", "A", None]
    assert late(3, 64) == "B" and late(64, 3) == "A"
    # So few tiles of so long k leave most of the chip idle; chunks of k side by side do not.
    assert [late(m, 256, 7168) for m in (16, 64)] == ["B", None]
    assert [late(256, n, 7168) for n in (16, 64)] == ["A", None]
    # Memory for the terms of the few rows, but not for those of the others.
    own = candidate(16, 4096, 4096, "fp32", device="cuda:sm_90")[0]
    assert own.config["workspace"] < 4096 * 4096 / 32


def test_chunks_side_by_side_fill_the_chip():
    """Of all tiles where there are few, else of those behind the last full round; 66 pairs of tiles are a round."""

    def by_chunks(m, n, k):
        own = candidate(m, n, k, "fp32", device="cuda:sm_90")[0]
        terms = candidate(8192, 8192, k, "fp32", device="cuda:sm_90")[0].config["workspace"] * (m + n) / 16384
        tiles = own.config.get("tiles_by_chunks", 0)
        sums = tiles * own.config["chunks"] * 2 * 128 * 128 * 4
        assert abs(own.config["workspace"] - terms - sums) < terms / 16 and sums <= 64 << 20
        return tiles

    assert by_chunks(512, 768, 3072) == 12
    assert by_chunks(2047, 2049, 2048) == 136 - 2 * 66
    assert by_chunks(512, 768, 512) == by_chunks(4096, 4096, 4096) == by_chunks(2816, 768, 4096) == 0


def test_it_is_refused_where_there_is_no_kernel():
    on_cpu = {entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available}
    reasons = {"wgmma_split": "no CPU kernel", "split": "lacks AMX", "amx_split": "lacks AMX"}
    for algorithm in set(reasons) - on_cpu:
        with pytest.raises(NotImplementedError, match=f"'{algorithm}' cannot serve.*{reasons[algorithm]}"):
            matmul(torch.ones(3, 4), torch.ones(4, 5), algorithm=algorithm)


@pytest.mark.parametrize("name", DATA)
def test_terms_of_the_model(name):
    torch.manual_seed(1)
    x = DATA[name](40, 200)
    first, second, scale, is_flagged = fp16_terms(x)
    clean = ~is_flagged
    assert (torch.frexp(scale)[0] == 0.5).all()
    difference = (joined(first, second, scale, 200) - x.double()).abs()
    bound = torch.maximum(2.0**-23 * x.double().abs(), absolute_error(x))
    assert (difference <= bound)[clean].all()
    together = joined(first, second, scale, 200)
    assert torch.equal(together, together.float().double())
    assert is_flagged.all() if name in ("denormal", "lognormal 8") else clean.all() or name == "lognormal 4"


def test_flags_of_the_model():
    x = torch.ones(9, 1030)
    x[1, 1029] = torch.inf
    x[2, 3] = torch.nan
    x[3, 512] = 2.0**60
    x[4, 1024:] = 2.0**-61
    x[5, 0] = 2.0**-41
    x[6, 0] = 2.0**-40
    x[7, :512] = 0
    x[8, :512] = 2.0**59
    assert fp16_terms(x)[3].tolist() == [False, True, True, True, True, True, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_are_one_term_of_the_model(dtype):
    info = torch.finfo(dtype)
    x = torch.rand(60, 600).to(dtype) + 1
    x[:, ::5] *= -(2.0**-24) if dtype == torch.float16 else -(2.0**-30)
    x[1, 7] = info.max if dtype == torch.float16 else 2.0**59
    x[2, 599], x[3, 599] = torch.tensor([2.0**-32, 2.0**-33]) * (2 - info.eps)
    x[4, 0], x[5, 0], x[6, :512] = torch.inf, torch.nan, 0
    first, second, scale, is_flagged = fp16_terms(x)
    assert is_flagged.nonzero().flatten().tolist() == ([1, 3, 4, 5] if dtype == torch.bfloat16 else [4, 5])
    assert (second[~is_flagged] == 0).all()
    assert torch.equal(joined(first, second, scale, 600)[~is_flagged], x.double()[~is_flagged])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_beside_fp32_by_the_model(dtype):
    """In its bound, which is less than that of fp32, and with the bits of three products."""
    torch.manual_seed(20)
    for name, k in (("normal", 500), ("uniform", 1100), ("sparse", 500)):
        a, b = DATA[name](8, k).to(dtype), DATA[name](k, 8)
        for own in ((a, b), (b.mT.contiguous(), a.mT)):
            out = SIMULATED["split_chunks"](*own)
            check(*own, out, error_bound(*own, False))
            assert torch.equal(out, SIMULATED["split_chunks"](*(x.float() for x in own)))


@pytest.mark.parametrize("k", [MIN_K, 500, 1100])
@pytest.mark.parametrize("name", ["normal", "uniform", "signed lognormal 3", "sparse"])
def test_the_schemes_meet_their_bounds_and_beat_a_chain_on_dense_data(name, k):
    torch.manual_seed(2)
    a, b = DATA[name](8, k), DATA[name](k, 8)
    expected, sums = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    chain = torch.zeros(8, 8)
    for p in range(k):
        chain = torch.addcmul(chain, a[:, p : p + 1], b[p : p + 1])
    of_chain = ((chain.double() - expected).abs() / sums).nan_to_num().max()
    for order in ("split_chunks", "mfma_split_sums"):
        out = SIMULATED[order](a, b)
        check(a, b, out, error_bound(a, b, order == "mfma_split_sums"))
        error = ((out.double() - expected).abs() / sums).nan_to_num().max()
        assert name == "sparse" or error <= of_chain


# The two pairs of neighbours whose products a search has found to be met worst, by the simulated Hopper and gfx942.
WORST = [float.fromhex(f"0x1.{digits}p0") for digits in ("026006", "009f96", "0020aa", "02e00a")]


def near_the_worst(count):
    """Numbers whose terms miss nearly as much as terms can, little above a power of two."""
    missed = 4095 - 2 * torch.randint(0, 200, (count,))
    steps = torch.randint(0, 40, (count,)) * 2**13 + missed * (torch.randint(0, 2, (count,)) * 2 - 1)
    x = 1 + steps.clamp_min(0) * 2.0**-23
    x[: len(WORST)] = torch.tensor(WORST)
    return torch.ldexp(x, torch.randint(-20, 21, (1,)))


def check_single_products(product, k, units, worst_units, numbers=near_the_worst):
    """All products of an element but one are zero. Random mantissas and those near the worst are met to `units`, and
    some miss by more than `worst_units`: less cannot be promised."""
    worst = 0.0
    for make in (torch.randn, numbers):
        a, b = torch.zeros(64, k), torch.zeros(k, 60)
        place = int(torch.randint(0, k, ()))
        a[:, place], b[place] = make(64), make(60)
        exact = a.double() @ b.double()
        worst = max(worst, ((product(a, b).cpu().double() - exact) / exact / U).abs().max().item())
    assert worst_units < worst <= units


def check_one_hot_rows(product, k, units):
    """What they pick of B is met to so many units in the last place, and exactly where it has 23 bits."""
    a, b = torch.eye(k)[-60:], torch.randn(k, 60)
    wrong_by = (product(a, b).cpu().view(torch.int32) - (a @ b).view(torch.int32)).abs()
    assert wrong_by.max() == units
    b = (b.view(torch.int32) & -2).view(torch.float32)
    assert torch.equal(product(a, b).cpu(), a @ b)


@pytest.mark.parametrize("order, worst_units", [("split_chunks", 8.8), ("mfma_split_sums", 9.7)])
def test_a_single_product_of_the_model_is_within_its_bound_and_near_it(order, worst_units):
    torch.manual_seed(16)
    check_single_products(SIMULATED[order], MIN_K, ONE_PRODUCT[order], worst_units)
    check_one_hot_rows(SIMULATED[order], MIN_K, 1)


# ---- on a GPU


def split(a, b):
    return matmul(a, b, algorithm="split")


def check(a, b, out=None, bound=None):
    """Compares with float64, on the CPU's copy of the operands."""
    a, b, out = a.cpu(), b.cpu(), (split(a, b) if out is None else out).cpu()
    expected = a.double() @ b.double()
    difference = (out.double() - expected).abs()
    bound = error_bound(a, b) if bound is None else bound
    worst = (difference / bound.clamp_min(2.0**-1000)).max().item() if difference.numel() else 0
    assert worst <= 1, f"{worst} times the bound"


def same_bits(out, expected):
    """Whether they are equal in every bit, but for those of nans."""
    bits = (torch.where(x.isnan(), torch.nan, x).view(torch.int32) for x in (out, expected))
    return torch.equal(*bits)


def strided(x):
    """The same values where no stride is 1."""
    base = torch.full((2 * x.shape[0], 3 * x.shape[1]), torch.nan, device=x.device)
    base[::2, ::3] = x
    return base[::2, ::3]


def row_padded(x):
    """The same values with rows that begin at multiples of 16 bytes, whatever their length."""
    base = torch.full((x.shape[0], x.shape[1] + 8 - x.shape[1] % 4), torch.nan, device=x.device)
    base[:, : x.shape[1]] = x
    return base[:, : x.shape[1]]


@on_chip
def test_the_kernel_has_the_models_terms():
    torch.manual_seed(3)
    for name, make in DATA.items():
        x = make(70, 640)
        first, second, scale, is_flagged = fp16_terms(x)
        expected = joined(first, second, scale, 640)
        eye = torch.eye(640, device="cuda")
        for operand in (x.cuda(), x.cuda().mT.contiguous().mT, strided(x.cuda())):
            out = split(operand, eye).cpu()
            exact = torch.where(is_flagged[:, None], x, expected.float())
            assert torch.equal(out, exact), name
            assert torch.equal(split(eye, operand.mT).cpu(), exact.mT), name
            few = slice(30, 94)  # those split after the load
            assert torch.equal(split(operand, eye[:, few]).cpu(), exact[:, few]), name
            assert torch.equal(split(eye[few], operand.mT).cpu(), exact.mT[few]), name


@on_chip
@pytest.mark.parametrize("k", [MIN_K, 700])
def test_a_single_product_is_within_its_bound_and_near_it(k):
    torch.manual_seed(17)

    def on_gpu(a, b):
        return split(a.cuda(), b.cuda())

    own, worst_units = ("mfma_split_sums", 8.0) if IS_AMD else ("split_chunks", 8.8)
    check_single_products(on_gpu, k, ONE_PRODUCT[own], worst_units)
    check_one_hot_rows(on_gpu, k, 1)
    check_one_hot_rows(lambda a, b: on_gpu(b.mT, a.mT).mT, k, 1)  # columns of B pick rows of A


@on_chip
@pytest.mark.parametrize("name", DATA)
def test_data_in_every_layout(name):
    torch.manual_seed(4)
    for m, n, k in [(1, 1, 64), (5, 3, 0), (33, 47, 29), (65, 130, 70), (129, 127, 577), (300, 264, 1088)]:
        a, b = DATA[name](m, k).cuda(), DATA[name](k, n).cuda()
        expected = split(a, b)
        check(a, b, expected)
        ways_a = (a.mT.contiguous().mT, strided(a), row_padded(a), row_padded(a.mT).mT)
        ways_b = (b.mT.contiguous().mT, strided(b), row_padded(b), row_padded(b.mT).mT)
        for way_a in ways_a:
            assert torch.equal(split(way_a, b), expected)
        for way_b in ways_b:
            assert torch.equal(split(a, way_b), expected)
        for out in (torch.empty(n, m, device="cuda").mT, strided(torch.zeros(m, n, device="cuda"))):
            torch.ops.tiledmm.matmul_out(a, b, out, algorithm="split")
            assert torch.equal(out, expected)


@on_chip
@pytest.mark.skipif(IS_AMD, reason="mfma_split takes fp32 alone")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["normal", "signed lognormal 3", "lognormal 8", "sparse"])
def test_16_bits_beside_fp32(name, dtype):
    """Values, the bits of three products of the same in fp32, layouts, rows alone, and what "auto" takes."""
    torch.manual_seed(21)
    for m, n, k in [(1, 1, MIN_K), (65, 130, 100), (300, 264, 1088), (70, 20, 577), (17, 300, GROUP_K + 100)]:
        narrow, wide = DATA[name](m, k).clamp(-6e4, 6e4).to(dtype).cuda(), DATA[name](n, k).cuda()
        narrow[0, k // 2] = torch.nan if name == "normal" else narrow[0, 0]
        for a, b in ((narrow, wide.mT), (wide, narrow.mT)):
            out = split(a, b)
            check(a[1:], b[:, 1:], out[1:, 1:])
            if name in ("normal", "sparse"):  # no row has too wide a range for one term
                assert same_bits(out, split(a.float(), b.float()))
            for way in (strided, lambda x: row_padded(x.mT).mT, lambda x: x.mT.contiguous().mT):
                assert same_bits(split(way(a), b), out) and same_bits(split(a, way(b.mT).mT), out)
            for count in (1, 9, 16, 33, 64, 65):
                assert same_bits(split(a[-count:], b), out[-count:])
                assert same_bits(split(a, b[:, :count]), out[:, :count])
            bias = torch.randn(b.shape[1], device="cuda")
            layer = linear(a, b.mT, bias, activation="relu", algorithm="split")
            assert same_bits(layer, torch.relu(out + bias))
            if b.shape[1] >= 128:
                assert same_bits(matmul(a, b), out)


@on_chip
@pytest.mark.takes_long
def test_random_products_of_wide_range():
    generator = torch.Generator().manual_seed(5)

    def draw(*shape):
        spread = torch.randint(0, 44, (), generator=generator)
        exponents = torch.randint(-30, 31, (1, 1), generator=generator) + torch.randint(
            -spread // 2, spread // 2 + 1, shape, generator=generator
        )
        return torch.ldexp(torch.randn(shape, generator=generator), exponents)

    for _ in range(NUM_RANDOM):
        m, n, k = (int(2 ** (9 * torch.rand((), generator=generator))) for _ in range(3))
        k *= 1 + 3 * int(torch.randint(0, 2, (), generator=generator))
        a, b = draw(m, k), draw(k, n)
        check(a.cuda(), b.cuda())


@on_chip
@pytest.mark.skipif(IS_AMD, reason="its total is one sum of all k")
def test_a_long_sum_of_positive_numbers_is_not_biased():
    torch.manual_seed(6)
    a, b = torch.rand(8, 1 << 18, device="cuda"), torch.rand(1 << 18, 8, device="cuda")
    expected = a.double() @ b.double()
    assert ((split(a, b).double() - expected).abs() / expected).max() < 32 * U


@on_chip
def test_cancellation():
    k = 4096
    a = torch.full((9, k), 1 + 2**-8 + 2**-20, device="cuda")
    a[:, 1::2] *= -1
    assert (split(a, torch.ones(k, 7, device="cuda")) == 0).all()


@on_chip
def test_rows_do_not_know_their_neighbours():
    torch.manual_seed(7)
    a, b = torch.randn(700, 1000, device="cuda"), torch.randn(1000, 300, device="cuda")
    whole = split(a, b)
    for first, rows in ((0, 1), (3, 2), (127, 130), (640, 60)):
        assert torch.equal(split(a[first : first + rows], b), whole[first : first + rows])
    for first, cols in ((0, 1), (130, 7), (44, 256)):
        assert torch.equal(split(a, b[:, first : first + cols]), whole[:, first : first + cols])
    items = a[:600].reshape(3, 200, 1000)
    batch = split(items, torch.stack([b, b * 2, b]))
    assert torch.equal(batch[0], whole[:200]) and torch.equal(batch[2], whole[400:600])
    assert torch.equal(batch[1], 2 * whole[200:400])
    # A batch that repeats one operand, with strides of its own.
    repeated = split(items[:, None], b.expand(3, 2, 1000, 300))
    assert torch.equal(repeated, whole[:600].reshape(3, 1, 200, 300).expand(3, 2, 200, 300))
    assert torch.equal(split(items.transpose(0, 1), b), whole[:600].reshape(3, 200, 300).transpose(0, 1))


FEW = (1, 2, 8, 9, 16, 17, 33, 64, 65, 128)


@on_chip
@pytest.mark.parametrize(
    "lanes, k", [(1, 64), (63, 65), (64, 512), (65, 577), (200, 1000), (300, 5000), (1153, 11008), (9001, 768)]
)
def test_few_rows_and_columns_have_the_bits_of_many(lanes, k):
    """Few of them are computed by a kernel of their own where that is faster, however the large operand lies."""
    torch.manual_seed(12)
    a, b = torch.randn(300, k), torch.randn(k, max(lanes, 65))
    a[:, : k // 2] *= torch.exp(2 * torch.randn(300, k // 2))
    # The largest of a chunk grows, so that few rows of the other operand are split with scales that turn out too small.
    b[:: k // 9 + 1] *= 2.0**-20
    b[k // 3 : k // 2] *= 2.0**9
    a[7, k - 1], a[200, 0] = 2.0**-70, torch.inf
    b[0, 0], b[k // 2, lanes // 2] = 2.0**-45, torch.nan
    a, b = a.cuda(), b.cuda()
    whole = split(a, b)
    for operand in (row_padded(b), row_padded(b.mT).mT, b, strided(b)):
        for first, rows in [(0, rows) for rows in FEW] + [(5, 3), (193, 64), (299, 1)]:
            out = torch.full((rows, lanes), torch.nan, device="cuda")
            torch.ops.tiledmm.matmul_out(a[first : first + rows], operand[:, :lanes], out, algorithm="split")
            assert same_bits(out, whole[first : first + rows, :lanes]), (first, rows)
    # The same with the roles exchanged, whose corrections come in the other order: C^T is another product.
    whole = split(b.mT, a.mT)
    for operand in (row_padded(b.mT), row_padded(b).mT, b.mT, strided(b).mT):
        for first, cols in [(0, cols) for cols in FEW] + [(5, 3), (193, 64), (299, 1)]:
            out = torch.full((cols, lanes), torch.nan, device="cuda").mT
            torch.ops.tiledmm.matmul_out(operand[:lanes], a[first : first + cols].mT, out, algorithm="split")
            assert same_bits(out, whole[:lanes, first : first + cols]), (first, cols)


@on_chip
def test_few_rows_of_a_batch():
    torch.manual_seed(13)
    a, b = torch.randn(3, 2, 100, 600, device="cuda"), torch.randn(2, 600, 132, device="cuda")
    a[1, 1, 4, 5], b[1, 599, 131] = 2.0**-80, torch.inf
    whole = split(a, b)
    for rows in (1, 10, 40):
        few = a[:, :, :rows]
        assert same_bits(split(few, b), whole[:, :, :rows])
        assert same_bits(split(few, b.mT.contiguous().mT), whole[:, :, :rows])
        assert same_bits(split(few.transpose(0, 1), b[:, None]), whole[:, :, :rows].transpose(0, 1))
        assert same_bits(split(few[:, 0], b[1]), split(a[:, 0], b[1])[:, :rows])
    assert same_bits(split(a, b[..., 100:104]), whole[..., 100:104])


@on_chip
@pytest.mark.parametrize("m, n", [(3, 140), (150, 7), (150, 140), (1600, 1500)])
def test_long_k_is_summed_in_groups(m, n):
    torch.manual_seed(15)
    k = 2 * GROUP_K + 100
    x, w, bias = (torch.randn(*shape, device="cuda") for shape in ((2, m, k), (n, k), (n,)))
    x[0, 1, 7], w[2, GROUP_K] = 2.0**70, 2.0**-70  # flagged in the first group and in the second
    total = torch.zeros((), device="cuda")
    for first in range(0, k, GROUP_K):
        group = slice(first, first + GROUP_K)
        total = total + split(x[..., group], w[:, group].mT)
    assert torch.equal(split(x, w.mT), total)
    assert torch.equal(linear(x, w, bias, activation="relu", algorithm="split"), torch.relu(total + bias))
    check(x[1], w.mT, split(x[1], w.mT))


@on_chip
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_few_rows_with_bias_and_activation(activation):
    torch.manual_seed(14)
    x, w, bias = (torch.randn(*shape, device="cuda") for shape in ((150, 520), (140, 520), (140,)))

    def layer(x, w, bias):
        return linear(x, w, bias, activation=activation, algorithm="split")

    whole = layer(x, w, bias)
    for count in (1, 13, 64):
        assert same_bits(layer(x[:count], w, bias), whole[:count])
        assert same_bits(layer(x, w[:count], bias[:count]), whole[:, :count])


@on_chip
def test_flagged_rows_leave_the_others_unchanged():
    torch.manual_seed(8)
    a, b = torch.randn(300, 700, device="cuda"), torch.randn(700, 290, device="cuda")
    clean = split(a, b)
    wrong_a, wrong_b = a.clone(), b.clone()
    wrong_a[5, 600], wrong_a[131, 1], wrong_a[132, 3], wrong_a[299, 0] = torch.inf, torch.nan, 2.0**100, 2.0**-70
    wrong_b[0, 7], wrong_b[699, 289] = 3e38, -torch.inf
    out = split(wrong_a, wrong_b)
    rows, cols = torch.ones(300, dtype=torch.bool), torch.ones(290, dtype=torch.bool)
    rows[[5, 131, 132, 299]] = False
    cols[[7, 289]] = False
    assert torch.equal(out[rows][:, cols], clean[rows][:, cols])
    plain = matmul(wrong_a, wrong_b, algorithm="native")
    for index in ((5,), (131,), (slice(None), 7), (slice(None), 289)):
        assert torch.equal(out[index].isnan(), plain[index].isnan())
        assert torch.equal(out[index].isinf(), plain[index].isinf())
    for row in (132, 299):
        check(wrong_a[row : row + 1], wrong_b[:, cols], out[row : row + 1, cols])


@on_chip
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_linear_with_bias_and_activation(activation):
    torch.manual_seed(9)
    x, w, bias = torch.randn(150, 520), torch.randn(140, 520) / 20, torch.randn(140)
    x[3, 3], w[9, 9] = 2.0**-70, 2.0**-70  # computed by the last kernel
    out = linear(x.cuda(), w.cuda(), bias.cuda(), activation=activation, algorithm="split")
    sums = x.double() @ w.double().mT + bias
    functions = {
        "none": lambda v: v,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    torch.testing.assert_close(out.cpu().double(), functions[activation](sums), rtol=1e-5, atol=2e-5)


@on_chip
def test_backward_is_split_too():
    torch.manual_seed(10)
    layer = TiledLinear(256, 192, device="cuda", algorithm="split")
    x = torch.randn(300, 256, device="cuda", requires_grad=True)
    grad = torch.randn(300, 192, device="cuda")
    layer(x).backward(grad)
    assert torch.equal(x.grad, split(grad, layer.weight))
    assert torch.equal(layer.weight.grad, split(grad.mT, x))
    torch.testing.assert_close(layer.bias.grad, grad.sum(0), rtol=1e-4, atol=1e-4)


@on_chip
def test_graph_capture():
    torch.manual_seed(11)
    a, b = torch.randn(300, 300, device="cuda"), torch.randn(300, 300, device="cuda")
    split(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = split(a, b)
    for scale in (1, 2.0**70):  # the second time all rows are flagged
        a.copy_(torch.randn(300, 300) * scale)
        graph.replay()
        assert torch.equal(out, split(a, b))
        check(a, b, out)


@on_chip
@pytest.mark.parametrize("dtype", [dtype for name, dtype in DTYPES.items() if name != "fp32"], ids=str)
def test_other_dtypes_are_refused_on_the_gpu(dtype):
    a = torch.ones(64, 64, dtype=dtype, device="cuda")
    with pytest.raises(NotImplementedError, match=f"'split' cannot serve this call on {CHIP}: it serves fp32"):
        split(a, a)
