"""cuBLASLt's search against a library that multiplies on the CPU what the descriptors say (fake_cublaslt.cpp).

Planted bugs that these tests caught: the transposes of A and B exchanged, a leading dimension of the other side, one of
a column that lies in a row, a batch's stride that is that of C, a scale of the wrong width, tf32 computed as fp32, a
result without success among the offered ones, a workspace that is too large, a refused algorithm taken for the fastest,
a wrong result among the finalists, neighbours of the offered ones alone.
"""

import ctypes
import math
import subprocess
from pathlib import Path

import pytest
import torch

from torch_tiledmm.testing import LAYOUTS, make_operands, parse_shape
from torch_tiledmm.testing.timing import Timing

FAKE = Path(__file__).with_name("fake_cublaslt.cpp")


@pytest.fixture
def cublaslt(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import cublaslt

    monkeypatch.setattr(cublaslt.CublasLt, "stream", lambda self: 0)
    return cublaslt


@pytest.fixture
def library(built_once):
    def build(folder: Path) -> None:
        subprocess.run(["g++", "-shared", "-fPIC", "-o", folder / "fake.so", FAKE], check=True)

    return built_once("fake_cublaslt", build) / "fake.so"


@pytest.fixture
def lt(cublaslt, library):
    return cublaslt.CublasLt(library, device="cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", ["5x7x11", "1x7x11", "5x1x11", "5x7x1", "1x1x3", "3x5x7x11"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_layouts_are_those_of_the_tensors(cublaslt, lt, layout, sizes, dtype):
    precision = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}[dtype]
    a, b = make_operands(parse_shape(f"{sizes}:{layout}"), dtype)
    product = cublaslt.Product(lt, a, b, precision)
    result = product.run(product.offered()[0])
    torch.testing.assert_close(result, torch.matmul(a.double(), b.double()).to(dtype), atol=2e-2, rtol=2e-2)


def test_padded_rows_have_a_leading_dimension(cublaslt, lt):
    a, b = torch.randn(5, 16)[:, 1:12], torch.randn(9, 20)[:7, :11].T
    product = cublaslt.Product(lt, a, b, "fp32")
    torch.testing.assert_close(product.run(product.offered()[0]), a @ b)
    with pytest.raises(cublaslt.LibraryError, match="leading dimension"):
        cublaslt.Product(lt, torch.randn(5, 22)[:, ::2], b, "fp32")


def test_types_alignments_and_workspace_are_those_of_the_product(cublaslt, lt, library):
    fake = ctypes.CDLL(str(library))
    a, b = torch.randn(8 * 16 + 1)[1:].view(8, 16), torch.empty(16 * 8 + 64)
    b = b[(256 - b.data_ptr() % 256) % 256 // 4 :][: 16 * 8].view(16, 8)
    for precision, compute_type in (("fp32", 68), ("tf32", 77)):
        product = cublaslt.Product(lt, a, b, precision)
        assert fake.fake_compute_type(product._desc.pointer) == compute_type
    product.offered()
    assert (fake.fake_alignment(0), fake.fake_alignment(1)) == (256, 4)  # the first operand is B
    assert fake.fake_workspace() == 32 << 20


def test_the_library_is_asked_for_what_it_can_run(cublaslt, lt):
    product = cublaslt.Product(lt, torch.randn(3, 4), torch.randn(4, 5), "fp32")

    def numbers(algorithms):
        configs = [product.config(algorithm) for algorithm in algorithms]
        return [tuple(config[name] for name in ("id", "tile", "stages", "split_k")) for config in configs]

    offered = product.offered()
    assert numbers(offered) == [(66, 20, 0, 1), (66, 22, 0, 1)]
    assert numbers(product.others()) == [(id, tile, 36, 1) for id in (66, 67) for tile in (20, 21, 22)]
    changed = {numbers for numbers in numbers(product.neighbours(offered[0])) if numbers != (66, 20, 0, 1)}
    assert changed == {(66, 20, 35, 1), (66, 20, 36, 1), (66, 20, 0, 2), (66, 21, 0, 1), (66, 22, 0, 1)}


def test_a_search_climbs_to_the_fastest_and_leaves_refused_ones_out(cublaslt, lt):
    product = cublaslt.Product(lt, torch.randn(3, 4), torch.randn(4, 5), "fp32")

    def seconds_of(algorithm):
        config = product.config(algorithm)
        if config["id"] == 67 or config["tile"] == 22:
            return math.inf
        return 10 - (config["tile"] == 21) - 2 * (config["stages"] == 36) - (config["split_k"] == 2)

    tried = cublaslt.search(product, seconds_of, 60)
    fastest = product.config(tried[0][1])
    assert (tried[0][0], fastest["tile"], fastest["stages"], fastest["split_k"]) == (6, 21, 36, 2)
    assert [t for t, _ in tried] == sorted(t for t, _ in tried) and tried[-1][0] == math.inf
    assert len({bytes(algorithm) for _, algorithm in tried}) == len(tried)
    assert len(cublaslt.search(product, seconds_of, 0)) == 2  # what is offered is tried in any case


def test_the_call_is_of_the_fastest_finalist_with_a_right_result(cublaslt, lt, monkeypatch):
    def time_on_gpu(arms, **_):
        for call in arms.values():
            call()
        seconds = {name: 0.5 if len(arms) > 1 and name == "2" else 1.0 for name in arms}
        return {name: Timing(seconds[name], seconds[name], 0, 1) for name in arms}

    monkeypatch.setattr(cublaslt, "time_on_gpu", time_on_gpu)
    run = cublaslt.Product.run

    def run_wrongly(self, algorithm):
        return run(self, algorithm) * (0.5 if self.config(algorithm)["tile"] == 22 else 1)

    monkeypatch.setattr(cublaslt.Product, "run", run_wrongly)
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    call, notes = cublaslt.fastest_call(lt, a, b, "fp32", 60)
    torch.testing.assert_close(call(), a @ b)
    assert notes["tried"] > 6 and notes["refused"] == 3 and notes["algorithm"]["tile"] != 22

    monkeypatch.setattr(cublaslt.Product, "run", lambda self, algorithm: run(self, algorithm) * 0.5)
    with pytest.raises(cublaslt.LibraryError, match="none of"):
        cublaslt.fastest_call(lt, a, b, "fp32", 0)


def test_a_torch_without_cuda_has_no_library(cublaslt, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(cublaslt.LibraryError, match="has no cuBLASLt"):
        cublaslt.find_library()
