"""mfma_split: the machine code of its three kernels as clang compiles it for gfx942 and gfx950, started by its
own host code (launch_split.cpp) and run by the interpreter.

Results are compared with the reference's bounds, terms and flags with the model (torch_tiledmm/testing/split_model.py);
memory outside of the operands, a missing wait and a race in shared memory are errors of the interpreter. Workspaces
start as nan.

Planted bugs that these tests caught, each as a mutant below: products of terms that are left out or have no factor;
scales of another block, or that are left out; barriers and a wait that hand tiles over; flags that are not set, of one
chunk or one operand alone, of other rows; the same terms for each item of a batch.
"""

import ctypes
import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from amd_interpreter.code_object import load
from amd_interpreter.count import count_loop, resources
from amd_interpreter.cycles import UNITS, matrix_busy
from amd_interpreter.instructions import fma_f32
from amd_interpreter.interpreter import Fault, run
from amd_interpreter.launches import Record, host_side, launches_of
from products import Product, compile_mutant, gpu_objects, need_compiler

from torch_tiledmm.testing.split_model import fp16_terms

sys.path.insert(0, str(Path(__file__).parents[1] / "torch_tiledmm"))
from test_split import joined  # noqa: E402

FOLDER = gpu_objects.CSRC / "kernels/hip/mfma_split"
ARCHS = ("gfx942", "gfx950")
LARGE, SMALL = 0, 1  # shapes, as in plan.h


@pytest.fixture(scope="module")
def launcher(built_once):
    need_compiler()

    def build(folder: Path) -> None:
        host_side(folder, Path(__file__).with_name("launch_split.cpp"))

    library = ctypes.CDLL(str(built_once("launch_mfma_split", build) / "launch.so"))
    library.launch.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, Record]
    return library.launch


@pytest.fixture(scope="module")
def kernels_of(amd_object, launcher):
    return functools.cache(lambda arch: load(amd_object(arch, FOLDER / "launch.cu")[0]).kernels)


def multiply(kernels, launcher, product, shape=SMALL, seed=1, num_cus=3):
    """What was launched, and the trace of the kernel with the matrix instructions."""

    def start(executor, record):
        return launcher(ctypes.byref(product.problem), shape, num_cus, executor, record)

    launches, traces = launches_of(start, kernels, product.memory, num_cus), []
    for launch in launches:
        is_main = "mfma_split" in launch[0].name
        run(*launch, product.memory, seed, traces=traces if is_main else None)
    return launches, traces


def wide(rows, k, seed):
    """Chunks of k whose largest are up to 2^40 apart, elements that are up to 2^27 apart in them."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, k, generator=random) + 0.5
    x *= torch.randint(0, 2, x.shape, generator=random) * 2 - 1
    x *= 2.0 ** -torch.randint(0, 27, x.shape, generator=random)
    return x * 2.0 ** torch.randint(-20, 21, (rows, -(-k // 512)), generator=random).repeat_interleave(512, 1)[:, :k]


CASES = {
    "kk": ("gfx942", SMALL, dict(m=70, n=45, k=130, has_bias=True, activation="relu")),
    "mn": ("gfx942", SMALL, dict(m=33, n=67, k=200, a_close="m", b_close="n", c_close="m")),
    "mk": ("gfx950", SMALL, dict(m=65, n=30, k=192, a_close="m", offset=1, has_bias=True, activation="silu")),
    "kn, whole blocks of 16 bytes": ("gfx950", SMALL, dict(m=20, n=70, k=256, b_close="n", pads=(4, 2, 4))),
    "large": ("gfx942", LARGE, dict(m=140, n=131, k=104, pads=(2, 3, 1))),
    "large, gfx950": ("gfx950", LARGE, dict(m=131, n=20, k=330, a_close="m", pads=(1, 2, 3))),
    "batch": ("gfx942", SMALL, dict(m=5, n=34, k=104, batch=3, b_close="n")),
    "two chunks": ("gfx942", SMALL, dict(m=3, n=2, k=700)),
    "one block and a half": ("gfx942", SMALL, dict(m=40, n=33, k=96, b_close="n", has_bias=True, activation="gelu")),
    "two groups": ("gfx942", SMALL, dict(m=3, n=2, k=1064, has_bias=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_products_are_right(case, kernels_of, launcher):
    arch, shape, sizes = CASES[case]
    product = Product("fp32", **sizes)
    launches, _ = multiply(kernels_of(arch), launcher, product, shape)
    # By the lowered constants: a group of k has up to 1024, a launch two items.
    assert len(launches) == (8 if sizes["k"] > 1024 else 4 if sizes.get("batch", 1) > 2 else 3)
    product.check()


def repeated(product):
    """All items of the batch have the first one's B."""
    product.b[1:] = product.b[0]
    product.problem.batch_dims[0].stride_b = 0
    return product


def test_a_repeated_operand_is_split_once(kernels_of, launcher):
    product = repeated(Product("fp32", 4, 40, 100, batch=3))
    launches, _ = multiply(kernels_of("gfx942"), launcher, product)
    assert launches[0][1][0] == 3 * 16 + 16  # tiles of 8 rows, padded to 128
    product.check()


@pytest.mark.parametrize("arch", ARCHS)
def test_terms_scales_and_flags_are_those_of_the_model(arch, kernels_of, launcher):
    """A product with the identity has what the terms stand for; flagged rows have the numbers themselves."""
    k = 128
    a = wide(40, k, seed=2)
    a[3, 5], a[4, 70], a[5, :64] = 2.0**60, 2.0**-90, 0
    a[6, :64], a[7, :64] = a[6, :64] * 2.0**-62, 2.0**-130
    a[8, 1], a[9, 1] = a[8, 2:].abs().max() * 2.0**-39, a[9, 2:].abs().max() * 2.0**-42
    *terms, is_flagged = fp16_terms(a)
    assert is_flagged.nonzero()[:, 0].tolist() == [3, 4, 6, 7, 9]
    product = Product("fp32", 40, k, k, a=a[None], b=torch.eye(k)[None])
    multiply(kernels_of(arch), launcher, product)
    expected = torch.where(is_flagged[:, None], a, joined(*terms, k).float())
    assert torch.equal(product.result()[0], expected)
    assert not torch.equal(joined(*terms, k).float()[is_flagged], a[is_flagged])


@pytest.mark.parametrize("arch", ARCHS)
def test_sums_have_their_order(arch, kernels_of, launcher):
    """docs/numerics.md, `mfma_split_sums`; what an instruction of the interpreter adds is exact and rounded once."""
    m, n, k = 3, 5, 550
    a, b = wide(m, k, seed=3), wide(n, k, seed=4)
    product = Product("fp32", m, n, k, a=a[None], b=b[None])
    multiply(kernels_of(arch), launcher, product)
    (*of_a, scale_a, flags_a), (*of_b, scale_b, flags_b) = fp16_terms(a), fp16_terms(b)
    assert not flags_a.any() and not flags_b.any()
    groups = np.arange(32).reshape(4, 8)  # elements of the lanes of an instruction
    steps = [groups.ravel()] if arch == "gfx950" else [groups[:, :4].ravel(), groups[:, 4:].ravel()]
    total = np.full((m, n), -0.0, np.float32)
    for start in range(0, 576, 32):
        terms_a, terms_b = (
            [t[:, start // 512, start % 512 :][:, :32].double().numpy() for t in x] for x in (of_a, of_b)
        )
        acc = np.zeros((m, n), np.float32)
        for i, j in ((1, 0), (0, 1), (0, 0)):
            if i == j:
                acc *= np.float32(2.0**-11)
            for step in steps:
                acc = (acc + terms_a[i][:, step] @ terms_b[j][:, step].T).astype(np.float32)
        scales = scale_a[:, start // 512, None].numpy(), scale_b[None, :, start // 512].numpy()
        total = fma_f32(acc * scales[0], np.broadcast_to(scales[1], (m, n)), total)
    assert np.array_equal(product.result()[0].numpy(), total)


def test_bits_do_not_depend_on_m_tiles_layouts_or_the_batch(kernels_of, launcher):
    n, k = 40, 150
    a, b = wide(140, k, seed=5), wide(n, k, seed=6)
    a[130, 7] = torch.inf
    whole = Product("fp32", 140, n, k, a=a[None], b=b[None])
    multiply(kernels_of("gfx942"), launcher, whole, LARGE)
    expected = whole.result()[0]
    assert expected[130].isnan().any() or expected[130].isinf().all()
    for rows, shape, how in ((slice(70, 140), SMALL, dict(a_close="m", c_close="m")),
                             (slice(139, 140), SMALL, dict(b_close="n", offset=3)),
                             (slice(128, 133), LARGE, {})):  # fmt: skip
        few = Product("fp32", len(a[rows]), n, k, a=a[None, rows], b=b[None], **how)
        multiply(kernels_of("gfx942"), launcher, few, shape)
        assert torch.equal(few.result()[0].view(torch.int32), expected[rows].view(torch.int32)), rows
    items = Product("fp32", 3, n, k, a=torch.stack([a[:3], a[130:133]]), b=b[None].repeat(2, 1, 1), batch=2)
    multiply(kernels_of("gfx942"), launcher, items)
    for item, rows in enumerate((slice(0, 3), slice(130, 133))):
        assert torch.equal(items.result()[item].view(torch.int32), expected[rows].view(torch.int32))


def flagged_product(**how):
    """Rows and columns that break a condition of the scheme, among others. Where the row's large elements meet zeros,
    its small ones are all that there is."""
    m, n, k = 9, 6, 130
    a, b = wide(m, k, seed=7), wide(n, k, seed=8)
    a[1, 129], a[2, 3], a[3, :60] = torch.inf, torch.nan, 2.0**100
    a[4] = 2.0**-45
    a[4, ::64], b[0, ::64] = 1, 0
    a[5] = torch.linspace(1, 2, k) * 2.0**-99
    b[5, 128], b[3, 100] = 3e38, 2.0**-100
    return Product("fp32", m, n, k, a=a[None], b=b[None], **how)


def late_product():
    """A row that is flagged in the last chunk of k alone."""
    a, b = wide(5, 515, seed=11), wide(2, 515, seed=12)
    a[3, 514] = 2.0**70
    return Product("fp32", 5, 2, 515, a=a[None], b=b[None])


@pytest.mark.parametrize("arch, how", [("gfx942", {}), ("gfx950", dict(a_close="m", b_close="n", has_bias=True))])
def test_flagged_rows_and_columns_are_right_and_leave_the_others_unchanged(arch, how, kernels_of, launcher):
    product = flagged_product(**how)
    multiply(kernels_of(arch), launcher, product)
    product.check()
    clean_a, clean_b = product.a[0].clone(), product.b[0].clone()
    rows, cols = ~fp16_terms(clean_a)[3], ~fp16_terms(clean_b)[3]
    assert (~rows).nonzero()[:, 0].tolist() == [1, 2, 3, 4, 5] and (~cols).nonzero()[:, 0].tolist() == [3, 5]
    clean_a[~rows], clean_b[~cols] = 1, 1
    clean = Product("fp32", 9, 6, 130, a=clean_a[None], b=clean_b[None], **how)
    multiply(kernels_of(arch), launcher, clean)
    assert torch.equal(product.result()[0][rows][:, cols], clean.result()[0][rows][:, cols])


# ---- What the loop asks of a compute unit


@pytest.mark.parametrize("arch, most, busy", [("gfx942", 3.3, 0.85), ("gfx950", 5.6, 0.7)])
def test_what_the_main_loop_takes(arch, most, busy, kernels_of, launcher):
    """Of a block of 64 of k: the products of both terms, by the model with two blocks on a unit."""
    product = Product("fp32", 128, 128, 9 * 64)
    launches, traces = multiply(kernels_of(arch), launcher, product, LARGE)
    kernel, _, (threads, _, _), _ = launches[1]
    counts, depth = count_loop(kernel, traces), 32 if arch == "gfx950" else 16
    assert counts.kinds["matrix"] == 3 * 128 * 128 * 64 / (16 * 16 * depth) / (threads // 64)
    assert counts.instructions_per_matrix <= most, counts
    assert counts.conflicts["LDS reads"] == counts.conflicts["LDS writes"] == 0
    assert matrix_busy(kernel, traces, UNITS[arch], 2).share >= busy
    product.check()


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_suffice(arch, kernels_of):
    """With 20 to spare for other compilers; two warps on each SIMD. No kernel has scratch memory."""
    for name, kernel in kernels_of(arch).items():
        found = resources(kernel, kernel.metadata[".max_flat_workgroup_size"])
        assert kernel.metadata[".private_segment_fixed_size"] == 0, name
        if "fix_up" not in name:
            assert found.spills == 0 and kernel.metadata[".sgpr_spill_count"] == 0, name
            assert found.registers <= 236 and found.waves_per_simd >= 2, (name, found)


# ---- Mistakes that must be found
MAIN = ("kernels/hip/mfma_split/kernel.h", "mfma_split<SplitConfig<1>>")
PASS = ("kernels/split/operands.h", "split_operands<SplitPlaces::side_by_side>")
FIX_UP = ("kernels/split/fix_up.h", "fix_up<false>")


def batch_product():
    a, b = wide(2 * 20, 192, seed=9), wide(2 * 34, 192, seed=10)
    return Product("fp32", 20, 34, 192, a=a.view(2, 20, 192), b=b.view(2, 34, 192), batch=2)


def chunks_product():
    return Product("fp32", 7, 9, 540, a=wide(7, 540, seed=13)[None], b=wide(9, 540, seed=14)[None])


# Chip, header and kernel, text, what it becomes; and a product that shows it.
MUTANTS = {
    "second by first is left out": ("gfx942", MAIN, "multiply(i, first_b, second);", "", batch_product),
    "first by second is left out": ("gfx942", MAIN, "multiply(i, second_b, first);", "", batch_product),
    "corrections without their factor": ("gfx942", MAIN, "* (1.0f / 2048)", "* 1.0f", batch_product),
    "rows' scales of the first chunk": (
        "gfx942",
        MAIN,
        "scales_a += work.padded_m, scales_b",
        "scales_b",
        chunks_product,
    ),
    "columns without scales": ("gfx942", MAIN, "scales.of_cols[j], total", "Floats(1.0f), total", batch_product),
    "a tile that is overwritten": (
        "gfx942",
        MAIN,
        "block_barrier();  // nobody reads the tile any more",
        "",
        batch_product,
    ),
    "a tile that is not whole": ("gfx942", MAIN, "block_barrier();  // the next tile is whole", "", batch_product),
    "copies that are not waited for": ("gfx950", MAIN, "moves.wait();\n      } else", "} else", batch_product),
    "items that have the first one's terms": (
        "gfx942",
        MAIN,
        "work.terms_b + item.b *",
        "work.terms_b + 0 *",
        batch_product,
    ),
    "small elements are not flagged": (
        "gfx942",
        PASS,
        "scale.is_flagged(range.smallest)",
        "!scale.is_in_range",
        flagged_product,
    ),
    "chunks are not flagged": (
        "gfx942",
        PASS,
        "scale.is_flagged(range.smallest)",
        "is_below(range.smallest, scale.exponent - scale.rule.range)",
        flagged_product,
    ),
    "a row's flag and scale are those of half of it": (
        "gfx942",
        PASS,
        "step < kSplitLanes;",
        "step < kSplitLanes / 2;",
        flagged_product,
    ),
    "flags of the first chunk": (
        "gfx942",
        FIX_UP,
        "any |= flags[int64_t(chunk) * own.padded_rows];",
        "if (chunk == 0) any |= flags[int64_t(chunk) * own.padded_rows];",
        late_product,
    ),
    "flags of rows alone": (
        "gfx942",
        FIX_UP,
        "if (flags[thread_row + i] | flags[kSplitBlock + col_of(j)])",
        "if (flags[thread_row + i])",
        flagged_product,
    ),
}


def is_wrong(kernels, launcher, make_product, num_orders=3) -> bool:
    """Whether the interpreter or the reference finds a mistake, in one of a few orders of the waves."""
    for seed in range(num_orders):
        product = make_product()
        try:
            multiply(kernels, launcher, product, seed=seed)
            product.check()
        except (Fault, AssertionError):
            return True
    return False


@pytest.mark.parametrize(
    "arch, make_product", [("gfx942", batch_product), ("gfx942", late_product), ("gfx950", batch_product)]
)
def test_the_products_of_the_mutants_are_right(arch, make_product, kernels_of, launcher):
    assert not is_wrong(kernels_of(arch), launcher, make_product, num_orders=1)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, kernels_of, launcher, tmp_path):
    arch, (header, kernel), old, new, make_product = MUTANTS[name]
    mutant = load(compile_mutant(tmp_path, arch, header, kernel, header, old, new)).kernels
    assert len(mutant) == 1 and set(mutant) < set(kernels_of(arch))
    assert is_wrong({**kernels_of(arch), **mutant}, launcher, make_product)
