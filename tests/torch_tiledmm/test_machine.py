"""Which device a program takes. What `info` says of the machine: test_main.py.

Planted bugs that these tests caught: a GPU that cannot be used is picked, "cpu" starts the GPUs' runtime; CUs
of RDNA counted in pairs, code with target features taken for another chip's.
"""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from torch_tiledmm.dispatch import build_info
from torch_tiledmm.machine import Cpu

GPUS = {
    0: SimpleNamespace(name="old", major=7, minor=5, multi_processor_count=40, total_memory=2**34),
    1: SimpleNamespace(name="new", major=9, minor=0, multi_processor_count=132, total_memory=2**37),
}


@pytest.fixture
def info(monkeypatch):
    """Of a build for sm_90a on a machine with two GPUs, the second of which it serves."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    monkeypatch.setattr(torch.cuda, "get_device_properties", GPUS.__getitem__)
    found = build_info()
    return dataclasses.replace(found, compiled={"cpu": found.compiled["cpu"], "cuda": ("9.0a",)})


def test_auto_is_the_first_gpu_that_a_call_can_use(info):
    assert info.pick("auto").device == info.pick("cuda").device == "cuda:1"
    assert info.pick("auto").row == "sm_90" and info.gpus[0].problem


def test_without_a_gpu_that_serves_auto_is_the_cpu_and_cuda_says_why(info):
    cpu_only = dataclasses.replace(info, compiled={"cpu": info.compiled["cpu"]})
    assert isinstance(cpu_only.pick("auto"), Cpu)
    with pytest.raises(ValueError, match="device: got 'cuda', but .*this build has no kernels for cuda"):
        cpu_only.pick("cuda")
    with pytest.raises(ValueError, match="device: got 'tpu', expected one of auto, cpu, cuda"):
        cpu_only.pick("tpu")


def test_the_cpu_is_picked_without_a_look_at_gpus(info, monkeypatch):
    monkeypatch.delattr(torch.cuda, "get_device_properties")
    assert info.pick("cpu").device == "cpu"


def test_amd(info, monkeypatch):
    """HIP counts RDNA's CUs in pairs. Code may ask for features of its chip."""
    gpus = {
        0: SimpleNamespace(name="cdna", gcnArchName="gfx90a:sramecc+:xnack-", warp_size=64, multi_processor_count=104),
        1: SimpleNamespace(name="rdna", gcnArchName="gfx1100", warp_size=32, multi_processor_count=48),
    }
    for gpu in gpus.values():
        gpu.total_memory = 2**35
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    built = dataclasses.replace(info, compiled={"cpu": info.compiled["cpu"], "hip": ("gfx90a:xnack-", "gfx1201")})
    assert [(gpu.chip, gpu.num_cus) for gpu in built.gpus] == [("hip:gfx90a", 104), ("hip:gfx1100", 96)]
    assert [gpu.problem for gpu in built.gpus] == ["", "this build was compiled for other chips"]
