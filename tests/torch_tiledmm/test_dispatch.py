"""What can compute a product, what auto picks, and the plans of a kernel.

Planted bugs that the tests caught: an A100 with the costs of an H200, not scaled; of plans the number one off, taken
where it is too large; plans that the kernel's own choice is not among.
"""

import collections
import ctypes
import functools
import itertools
import json
import random
import re
from pathlib import Path

import pytest
import torch

import torch_tiledmm
from torch_tiledmm import host_gpu
from torch_tiledmm.dispatch import DTYPES, LAYOUTS, build_info
from torch_tiledmm.testing.timing import matmul_precision


def test_algorithms_name_the_cpu_rungs_and_say_why_one_is_missing():
    entries = {entry.name: entry for entry in torch_tiledmm.algorithms("cpu")}
    assert {"auto", "naive", "block_tiled", "register_tiled", "native"} <= set(entries)
    assert all(entries[name].available for name in ("auto", "naive", "block_tiled", "register_tiled", "native"))
    for entry in entries.values():
        assert entry.device == "cpu" and set(entry.dtypes) <= set(DTYPES)
        assert entry.available != bool(entry.reason), entry
        assert entry.name in str(entry)


def test_algorithms_of_all_devices_are_the_default():
    assert set(torch_tiledmm.algorithms("cpu")) <= set(torch_tiledmm.algorithms())
    assert torch_tiledmm.algorithms(torch.device("cpu")) == torch_tiledmm.algorithms("cpu")
    with pytest.raises(ValueError, match="device.*nonsense.*cpu"):
        torch_tiledmm.algorithms("nonsense")


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_available_algorithms_run_and_others_raise(dtype_name):
    a = torch.ones(3, 4, dtype=DTYPES[dtype_name])
    for entry in torch_tiledmm.algorithms("cpu"):
        if entry.available and dtype_name in entry.dtypes:
            assert torch.ops.tiledmm.matmul(a, a.t(), algorithm=entry.name).eq(4).all()
        else:
            with pytest.raises(RuntimeError, match=entry.name):
                torch.ops.tiledmm.matmul(a, a.t(), algorithm=entry.name)


def test_build_info_is_complete():
    info = build_info()
    assert info.version and info.compiler and info.num_cores >= 1
    assert info.isa["cpu"] in info.compiled["cpu"]
    assert "portable" in info.compiled["cpu"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_explain_chooses_a_legal_candidate(dtype_name, layout):
    answer = torch_tiledmm.explain(100, 30, 70, dtype_name, layout=layout, num_threads=2)
    assert {key: answer.problem[key] for key in ("m", "n", "k", "dtype", "layout")} == {
        "m": 100,
        "n": 30,
        "k": 70,
        "dtype": dtype_name,
        "layout": layout,
    }
    assert answer.num_threads == 2 and answer.reason
    legal = {c.algorithm: c.cost_us for c in answer.candidates if c.legal}
    assert answer.choice in legal
    assert all(cost is not None and cost >= 0 for cost in legal.values())
    assert all(c.reason for c in answer.candidates if not c.legal)


@pytest.mark.parametrize(
    "algorithm, device, reason",
    [
        ("mfma", "cuda:sm_80", "it is for AMD's chips"),
        ("wmma_rdna", "cuda:sm_80", "it is for AMD's chips"),
        ("wmma_rdna", "hip:gfx942", "it is for RDNA 3 and 4"),
        ("wgmma", "hip:gfx942", "it is for NVIDIA's chips"),
        ("wgmma", "cuda:sm_80", "the chip has no wgmma instruction"),
        ("wgmma", "cuda:sm_90", "it serves fp16, bf16 and fp32 rounded to tf32"),
        ("amx", "cpu:avx2", "the CPU lacks AMX, or the system does not let this process use it"),
        ("amx", "cpu:amx", "the tile instructions multiply bf16 and fp16"),
    ],
)
def test_a_chip_is_refused_before_a_dtype(algorithm, device, reason):
    """All of these kernels refuse fp64, but for mfma, which has it on its own chips."""
    answer = torch_tiledmm.explain(64, 64, 64, "fp64", device=device)
    assert {c.algorithm: c.reason for c in answer.candidates}[algorithm] == reason


@pytest.mark.parametrize("device", ["cpu", "cpu:portable", "cpu:amx_fp16", "cuda:sm_80", "cuda:sm_90", "hip:gfx942"])
def test_explain_takes_sizes_from_0_to_the_largest(device):
    sizes = (0, 1, 2**24, 2**48)
    for m, n, k in itertools.product(sizes, repeat=3):
        if max(m * n, n * k, m * k) > 2**48:
            continue
        for layout in LAYOUTS:
            answer = torch_tiledmm.explain(m, n, k, "bf16", layout=layout, device=device, num_threads=3)
            assert answer.choice and answer.problem["layout"] == layout


def test_explain_of_a_batch_shows_the_tiles_of_a_batch():
    """Each of many products is one task; by itself it is shared out, in at least as many tasks as threads."""
    answers = (torch_tiledmm.explain(1024, 1024, 1024, "fp32", num_threads=2, batch=n) for n in (0, 32))
    alone, batched = ({c.algorithm: c.config for c in answer.candidates}[answer.choice] for answer in answers)
    rows, columns = alone["tasks"].split("x")
    assert int(rows) * int(columns) >= 2
    assert batched["tasks"] == "1x1"
    assert str(torch_tiledmm.explain(512, 512, 512, "fp32", batch=8)).startswith("batch=8 m=512")


def test_explain_takes_torch_dtypes_and_torch_s_number_of_threads():
    answer = torch_tiledmm.explain(8, 8, 8, torch.bfloat16)
    assert answer == torch_tiledmm.explain(8, 8, 8, "bf16", layout="NT", num_threads=torch.get_num_threads())


def test_explain_prints_a_table_with_the_choice_marked():
    answer = torch_tiledmm.explain(1000, 768, 3072, "fp32")
    lines = str(answer).splitlines()
    assert lines[0].startswith("m=1000 n=768 k=3072 fp32 NT on cpu")
    assert all(any(c.algorithm in line for line in lines) for c in answer.candidates)
    marked = [line for line in lines if line.startswith("->")]
    assert len(marked) == 1 and answer.choice in marked[0]
    answer = torch_tiledmm.explain(5, 6, 7, "e4m3", device="cpu:avx2")
    assert not answer.choice and "\nchoice: none (no kernel reads both operands in 8 bits here" in str(answer)


def test_explain_serves_an_instruction_set_that_is_asked_for():
    answer = torch_tiledmm.explain(100, 100, 100, "fp32", device="cpu:portable")
    assert answer.isa == "portable"
    assert answer.choice != "register_tiled.avx2"


CHIPS = [f"cpu:{isa}" for isa in ("portable", "neon", "avx2", "avx512", "avx512_bf16", "amx", "amx_fp16")]
CHIPS += [f"{chip['device']}:{name}" for name, chip in build_info().chips.items() if name != "host"]


@pytest.mark.parametrize("chip", CHIPS)
def test_the_order_of_summation_does_not_depend_on_m(chip):
    """For every dtype, tf32 and layout; over m, the batch and the number of threads. Kernels of one order give the same
    bits (test_property.py, test_host_execution.py), so neither do a row's bits.

    Planted bugs that this caught: the order picked by the cost for the m that is asked for, and by the cost at as many
    rows as the batch has.
    """
    for precision, layout in itertools.product((*DTYPES, *["tf32"] * chip.startswith("cuda")), LAYOUTS):
        dtype_name = "fp32" if precision == "tf32" else precision
        with matmul_precision(precision):
            for n, k in ((4096, 4096), (512, 512), (640, 100), (64, 65536), (1, 700), (1, 1), (7, 1), (640, 0)):
                orders = {
                    torch_tiledmm.explain(
                        m, n, k, dtype_name, layout=layout, device=chip, batch=batch, num_threads=threads
                    ).order
                    for m, batch, threads in (
                        *((m, 0, 1) for m in (1, 2, 8, 17, 32, 33, 64, 65, 300, 5000, 100_000)),
                        *((m, batch, 3) for m in (1, 64, 300) for batch in (1, 2, 96)),
                    )
                }
                assert len(orders) == 1, (chip, dtype_name, precision, layout, n, k, orders)


@functools.cache
def kernel_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(torch_tiledmm.__file__).with_name("_kernels.so")))
    library.tiledmm_explain.restype = ctypes.c_size_t
    return library


def order_of(chip: str, dims: list[tuple[int, ...]], **fields: int) -> str:
    """As the C interface says: of a batch of any dimensions (size, strides of A, B, C), of any strides."""
    batch_dims = (host_gpu._BatchDim * len(dims))(*dims)
    problem = host_gpu._GemmProblem(batch_dims=batch_dims, num_batch_dims=len(dims), **fields)
    text, plans_of = ctypes.create_string_buffer(1 << 16), None
    size = kernel_library().tiledmm_explain(
        ctypes.byref(problem), chip.encode(), 2, plans_of, text, ctypes.c_size_t(len(text))
    )
    return json.loads(text.raw[:size])["order"]


@pytest.mark.parametrize("chip", CHIPS)
def test_the_order_of_summation_does_not_depend_on_a_batch_that_folds(chip):
    """A batch that one operand has alone makes more rows or columns of one product; the caller's n chooses the order.
    Strides beyond 2^31 leave the kernels of the ladder, whose two orders compete by their cost for that n.

    Planted bug that this caught: the ladder's order chosen by the n that the batch was folded into.
    """
    rng, num_beyond = random.Random(7), 0
    far = (2**31 + 1, 2**33, 2**40 + 1)
    for number in range(60 if chip.startswith("cpu") else 200):
        m, n = rng.choice((1, 1, 2, 7, 17, 64, 300)), rng.choice((1, 2, 7, 16, 64, 100, 512))
        k, size = rng.choice((1, 5, 64, 512, 1000, 4096, 20_000, 2**17)), rng.choice((2, 3, 64, 600, 70_000))
        a = rng.choice(((k, 1), (1, m), (k + 3, 1), (2 * k, 2), (rng.choice(far), 1), (k, rng.choice(far)), (0, 1)))
        b = rng.choice(((1, k), (n, 1), (1, k + 5), (2, 2 * k), (rng.choice(far), 1), (1, rng.choice(far))))
        if number == 0:
            m, n, k, size, a, b = 1, 7, 1000, 600, (1000, 2**31 + 1), (1, 1000)
        fields = dict(m=m, n=n, k=k, dtype=rng.randrange(4), allow_tf32=chip.startswith("cuda") and rng.random() < 0.5)
        fields |= dict(stride_am=a[0], stride_ak=a[1], stride_bk=b[0], stride_bn=b[1], stride_cm=n, stride_cn=1)
        if number == 0:
            fields["dtype"] = 0
        columns, rows = (size, 0, n * b[1], m * n), (size, m * a[0], 0, m * n)
        neither = (size, m * a[0] + 1, n * b[1] + 1, m * n)
        alone = order_of(chip, [], **fields)
        num_beyond += alone in ("chain", "mma_chain")
        for dims in ([columns], [rows], [neither], [(3, 5, 7, size * m * n), columns]):
            assert order_of(chip, dims, **fields) == alone, (fields, dims)
    assert num_beyond > 10 or not chip.startswith("hip:gfx9")


@pytest.mark.parametrize("chip", CHIPS)
def test_so_many_dimensions_of_a_batch_are_served(chip):
    """Of those that do not fold into fewer: six on a GPU, whose kernels have them as parameters; on a CPU all."""
    fields = dict(m=4, n=5, k=70, stride_am=70, stride_ak=1, stride_bk=5, stride_bn=1, stride_cm=5, stride_cn=1)
    alone = order_of(chip, [], **fields)
    assert alone != "none"
    for count in (1, 5, 6, 7, 63):
        dims = [(2, 3 * i + 1, 5 * i + 2, 7 * i + 3) for i in range(count)]
        served = count <= 6 or chip.startswith("cpu")
        assert order_of(chip, dims, **fields) == (alone if served else "none"), count
        # Dimensions that follow each other in memory are one.
        assert order_of(chip, [(2, 0, 0, 20 << i) for i in reversed(range(count % 40))], **fields) == alone


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_on_nvidia_the_production_kernels_compete_alone(dtype_name):
    for chip in ("cuda:sm_80", "cuda:sm_90"):
        for m in (1, 17, 64, 300, 5000):
            for n, k, batch in ((640, 4096, 0), (64, 65536, 0), (1, 1, 0), (640, 0, 0), (128, 64, 96)):
                choice = torch_tiledmm.explain(m, n, k, dtype_name, device=chip, batch=batch).choice
                production = ("simt_pipelined", "mma_async", "wgmma", "skinny", "direct", "direct_fma")
                assert choice in production, (chip, m, n, k, batch, choice)


@pytest.mark.parametrize("out_dtype", [None, "fp32"])
def test_scores_of_few_queries_are_for_direct_where_rows_of_c_are_not_aligned(out_dtype):
    """Threads store what the copy engine cannot take, and slower than it would."""
    for m, n, kernel in ((1, 1023, "direct"), (8, 1023, "direct"), (1, 1024, "wgmma"), (8, 1024, "wgmma")):
        answer = torch_tiledmm.explain(m, n, 64, "bf16", device="cuda:sm_90", batch=512, out_dtype=out_dtype)
        assert answer.choice == kernel and answer.order == "mma_chunks", answer


@pytest.mark.parametrize("chip", CHIPS)
def test_explain_shows_the_tile_of_every_candidate(chip):
    for dtype_name in DTYPES:
        for candidate in torch_tiledmm.explain(300, 200, 700, dtype_name, device=chip).candidates:
            if candidate.legal and candidate.algorithm != "naive":
                by_threads = candidate.algorithm == "direct_fma" or dtype_name == "fp64"
                key = ("thread" if by_threads else "warp") if candidate.algorithm.startswith("direct") else "block"
                assert re.fullmatch(r"\d+x\d+", candidate.config[key]), candidate


def test_plans_fit_the_shared_memory_of_their_chip():
    """sm_80 has less than sm_90: a plan of skinny takes fewer stages there."""
    stages = {
        chip: {c.algorithm: c.config for c in torch_tiledmm.explain(64, 8192, 4096, "bf16", device=chip).candidates}
        for chip in ("cuda:sm_80", "cuda:sm_90")
    }
    assert stages["cuda:sm_80"]["skinny"] != stages["cuda:sm_90"]["skinny"]


def test_devices_of_torch_stand_for_what_this_machine_has():
    if torch.cuda.is_available():
        answer = torch_tiledmm.explain(64, 64, 64, "bf16", device="cuda")
        assert answer.device.startswith(("cuda:sm_", "hip:gfx"))
        assert torch_tiledmm.explain(64, 64, 64, "bf16", device=torch.device("cuda", 0)).isa == answer.isa
    else:
        for device in ("cuda", "cuda:0", "hip", torch.device("cuda")):
            with pytest.raises(ValueError, match="torch sees no such GPU; a chip can be named"):
                torch_tiledmm.explain(64, 64, 64, "bf16", device=device)
    assert {entry.name for entry in torch_tiledmm.algorithms("hip")} >= {"auto", "native", "mma_output_cached"}
    assert "wgmma" not in {entry.name for entry in torch_tiledmm.algorithms("hip")}
    assert torch_tiledmm.explain(64, 64, 64, "fp32", device="cuda:sm_89").isa == "sm_80"  # its kernels, its model


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"m": -1}, ValueError, "m: got -1"),
        ({"n": 2**63}, ValueError, "n: got"),
        ({"m": 2**30, "n": 2**30}, ValueError, "m and n: got 1073741824 and 1073741824, expected at most"),
        ({"k": 2**40, "batch": 2**10}, ValueError, "m and k: got 4 and 1099511627776 in a batch of 1024"),
        ({"k": 2.5}, TypeError, "k: got 2.5"),
        ({"dtype": "int8"}, ValueError, "dtype: got 'int8', expected one of fp32"),
        ({"dtype": torch.int8}, ValueError, "dtype: got torch.int8"),
        ({"dtype": "e4m3", "batch": 3}, ValueError, "batch: got 3 with operands of 8 bits, expected 0"),
        ({"b_dtype": torch.float8_e5m2, "batch": 4}, ValueError, "batch: got 4 with operands of 8 bits"),
        ({"layout": "NX"}, ValueError, "layout: got 'NX', expected one of NN"),
        ({"device": "abacus"}, ValueError, "device.*abacus"),
        ({"device": "cuda:sm_999"}, ValueError, "device.*sm_999.*known are cpu"),
        ({"device": "cuda:sm_90a"}, ValueError, "device.*sm_90a.*known are cpu"),
        ({"device": "host:host2"}, ValueError, "device.*host2"),
        ({"num_threads": 0}, ValueError, "num_threads: got 0"),
        ({"num_threads": 2**64}, ValueError, "num_threads: got"),
        ({"num_threads": "2"}, TypeError, "num_threads: got '2', expected an integer"),
    ],
)
def test_explain_refuses_wrong_arguments(change, error, message):
    arguments = {"m": 4, "n": 5, "k": 6, "dtype": "fp32", **change}
    with pytest.raises(error, match=message):
        torch_tiledmm.explain(**arguments)


@pytest.mark.parametrize("shape", [(8, 301, 7016), (1, 264, 15856), (3000, 301, 7016), (64, 64, 64), (5, 8, 0)])
def test_tf32_is_summed_by_matrix_instructions_whatever_m_is(shape):
    with matmul_precision("tf32"):
        for layout in LAYOUTS:
            answer = torch_tiledmm.explain(*shape, "fp32", layout=layout, device="cuda:sm_90")
            assert answer.choice in ("mma_async", "wgmma", "direct"), answer
            assert "simt_pipelined" in {c.algorithm for c in answer.candidates if c.legal}  # for who asks for it


@pytest.mark.parametrize(
    "m, n, k, dtype_name, layout",
    [
        (6304, 768, 3072, "bf16", "NT"),
        (3072, 768, 1501, "fp16", "TN"),
        (1, 11008, 4096, "bf16", "TN"),
        (300, 200, 32768, "bf16", "NN"),
        (900, 1200, 777, "fp32", "NN"),
        (8, 4096, 4096, "fp32", "NT"),
        (768, 768, 5000, "fp64", "TN"),
    ],
)
def test_the_plan_of_each_kernel_is_among_its_plans(m, n, k, dtype_name, layout):
    explain = functools.partial(torch_tiledmm.explain, m, n, k, dtype_name, layout=layout, device="cuda:sm_90")
    for kernel in explain().candidates:
        plans = explain(plans_of=kernel.algorithm).candidates
        if not kernel.legal:
            assert not plans
            continue
        assert [plan.algorithm for plan in plans] == [f"{kernel.algorithm}:{i}" for i in range(len(plans))]
        texts = [str(plan.config) for plan in plans]
        assert len(set(texts)) == len(texts) or kernel.algorithm != "wgmma"
        assert (kernel.config, kernel.cost_us) in [(plan.config, plan.cost_us) for plan in plans]
    assert {plan.algorithm.split(":")[0] for plan in explain(plans_of="auto").candidates} == {explain().choice}


@pytest.mark.parametrize(("precision", "block_k", "most"), [("bf16", 64, (4, 3, 2, 2)), ("tf32", 32, (3, 3, 2, 2))])
def test_blocks_of_a_small_tile_share_a_multiprocessor_where_k_is_short(precision, block_k, most):
    """Two at least, and two at most where threads store C, whose rows are no whole units."""
    with matmul_precision(precision) as dtype:
        for n, k_tiles in itertools.product((64, 63), range(1, 6)):
            k = k_tiles * block_k
            plans = torch_tiledmm.explain(64, n, k, dtype, batch=500, device="cuda:sm_90", plans_of="wgmma").candidates
            found = {(plan.config["block"], plan.config.get("blocks_per_cu")) for plan in plans}
            counts = [None] if k_tiles > len(most) else [2] if n == 63 else range(2, most[k_tiles - 1] + 1)
            assert {tile for tile in found if tile[0] in ("64x64", "64x32")} == {
                *itertools.product(("64x64", "64x32"), counts)
            }
            assert {block for block, count in found if count} <= {"64x64", "64x32"}


def test_a_plan_is_an_algorithm_by_its_number():
    a = torch.ones(3, 4)
    assert torch.equal(torch_tiledmm.matmul(a, a.mT, algorithm="naive:0"), a @ a.mT)
    with pytest.raises(NotImplementedError, match="'naive' cannot serve this call .* it has no plan of this number"):
        torch_tiledmm.matmul(a, a.mT, algorithm="naive:1")
    for name in ("naive:", "naive:x", "naive:0x", "naive:-1", "naive:0:0", "nobody:0", ":0", "naive:65536"):
        with pytest.raises(ValueError, match=f"algorithm '{name}' is not known"):
            torch_tiledmm.matmul(a, a.mT, algorithm=name)
    with pytest.raises(ValueError, match="algorithm: got 'nobody'"):
        torch_tiledmm.explain(3, 4, 5, "fp32", plans_of="nobody")


@pytest.mark.parametrize("name", build_info().chips)
def test_no_predicted_time_beats_the_chip(name):
    """Nor does a model say so, but for one product of a thousand: a time that had to be raised is the least possible
    one to the last digit."""
    rng, chip = random.Random(name), build_info().chips[name]
    sizes = [(4096, 4096, 4096), (1, 16384, 16384), (16384, 1, 16384)]
    sizes += [tuple(int(2 ** rng.uniform(0, 14)) for _ in range(3)) for _ in range(2000)]
    counts, raised = collections.Counter(), collections.Counter()
    for dtype, (m, n, k) in itertools.product(DTYPES, sizes):
        layout = rng.choice(("NT", "NN", "TN", "TT"))
        answer = torch.ops.tiledmm._explain(m, n, k, DTYPES[dtype], layout, f"{chip['device']}:{name}", 1)
        bytes_ = (m * k + k * n + m * n) * DTYPES[dtype].itemsize
        for candidate in json.loads(answer)["candidates"]:
            if candidate["legal"]:
                of = "fp16" if "split" in candidate["order"] else dtype
                peak = max(chip["simt_tflops"][of], chip["mma_tflops"][of])
                least = max(2 * m * n * k / (peak * 1e6), bytes_ / (chip["tbytes_per_second"] * 1e6))
                assert candidate["cost_us"] > least - 0.001, (dtype, m, n, k, layout, candidate)
                counts[candidate["algorithm"]] += 1
                raised[candidate["algorithm"]] += candidate["cost_us"] < least + 0.001
    for kernel, count in counts.items():
        assert raised[kernel] <= 0.001 * count, (kernel, raised[kernel], count)


def test_a_chip_that_borrows_costs_says_of_which_one():
    for device, other in (("cuda:sm_80", "NVIDIA H200"), ("cuda:sm_120", "NVIDIA H200"), ("cuda:sm_90", "")):
        explained = torch_tiledmm.explain(512, 512, 512, "bf16", device=device)
        assert explained.modelled_after == other
        assert str(explained).count("modelled after NVIDIA H200") == bool(other)
    assert not torch_tiledmm.explain(512, 512, 512, "bf16").modelled_after


@pytest.mark.parametrize("name", ("auto", "native"))
def test_no_product_in_16_bits_where_nobody_asked_for_it(name):
    """Of fp32 on any chip, where kernels of the group `split` are legal."""
    devices = [f"{chip['device']}:{chip['name']}" for chip in build_info().chips.values()] + ["cpu:amx", "cpu:amx_fp16"]
    for device in devices:
        plans = torch_tiledmm.explain(2048, 2048, 2048, "fp32", device=device, plans_of=name).candidates
        assert plans and not any("split" in plan.order for plan in plans), (device, plans[0].algorithm)
