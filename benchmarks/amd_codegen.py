"""Registers, spills and LDS of kernels for AMD's chips by clang 22 and by two newer code generators, which read the
same bitcode: that of Triton 3.9.0, and that of the package rocm-bindings-compiler (docs/amd_evidence.md).

    pip install triton==3.9.0
    pip download --no-deps rocm-bindings-compiler==10.0.0.0.1.2 && unzip rocm_bindings_compiler-*.whl -d out/rocm
    python benchmarks/amd_codegen.py out/rocm --chips gfx942 gfx950 --rungs mfma mfma_split
"""

from __future__ import annotations

import argparse
import ctypes
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from gpu_objects import CSRC, HIP_ARCHS, hip_command, sources_of  # noqa: E402

# What libLLVM.so asks of libraries for compression that its package leaves out. It never calls them.
STUBS = {
    "z": "compress2 compressBound crc32 uncompress",
    "zstd": "CCtx_setParameter compress2 compressBound createCCtx decompress freeCCtx getErrorName isError",
}

Generator = Callable[[bytes, str], str]  # the assembly of a chip's bitcode


class Kernel(NamedTuple):
    """What a kernel's metadata says."""

    vgpr_count: int
    vgpr_spill_count: int
    sgpr_spill_count: int
    private_segment_fixed_size: int
    group_segment_fixed_size: int
    max_flat_workgroup_size: int


def kernels_of(assembly: str) -> dict[str, Kernel]:
    found = {}
    for entry in re.split(r"\n  - ", assembly.split("amdhsa.kernels:")[1])[1:]:
        fields = dict(re.findall(r"\.(\w+): +(?:>-\s+)?(\S+)", entry))
        if "symbol" in fields:
            found[fields["symbol"]] = Kernel(*(int(fields[name]) for name in Kernel._fields))
    return found


def triton_generator() -> Generator:
    from triton.backends.amd import compiler

    library = compiler._load_amd_codegen(compiler.get_amd_codegen_path())
    print("Triton's:", compiler.get_amd_codegen_revision())

    def generate(bitcode: bytes, chip: str) -> str:
        triple = compiler.get_amd_codegen_target_triple(chip).encode()
        options = compiler._AMDGPUCodegenOptions(1, triple, chip.encode(), b"", b"", b"", b"", 1, 0, 0, 0, 0)
        text, size, error = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
        out = (ctypes.byref(options), ctypes.byref(text), ctypes.byref(size), ctypes.byref(error))
        if library.triton_amdgpu_compile(bitcode, len(bitcode), *out):
            raise RuntimeError(f"Triton's code generator: {ctypes.string_at(error)}")
        return ctypes.string_at(text, size.value).decode()

    return generate


def rocm_generator(package: Path, folder: Path) -> Generator:
    """``package``: the unpacked rocm-bindings-compiler."""
    (folder / "map").write_text("AMDROCM_SYSDEPS_1.0 { global: *; };")
    for name, functions in STUBS.items():
        prefix = "ZSTD_" if name == "zstd" else ""
        (folder / "stub.c").write_text("".join(f"int {prefix}{one}() {{ return -1; }}\n" for one in functions.split()))
        stub = folder / f"librocm_sysdeps_{name}.so.1"
        link = ["-shared", "-fPIC", f"-Wl,-soname,{stub.name},--version-script,{folder / 'map'}"]
        subprocess.run(["gcc", *link, folder / "stub.c", "-o", stub], check=True)
        ctypes.CDLL(str(stub), ctypes.RTLD_GLOBAL)
    llvm = ctypes.CDLL(str(package / "rocm/bindings/llvm/libLLVM.so"))
    pointer, string = ctypes.c_void_p, ctypes.c_char_p
    for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
        getattr(llvm, f"LLVMInitializeAMDGPU{part}")()
    llvm.LLVMContextCreate.restype = pointer
    llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy.restype = pointer
    llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy.argtypes = [string, ctypes.c_size_t, string]
    llvm.LLVMParseBitcodeInContext2.argtypes = [pointer, pointer, pointer]
    llvm.LLVMGetTarget.restype, llvm.LLVMGetTarget.argtypes = string, [pointer]
    llvm.LLVMGetTargetFromTriple.argtypes = [string, pointer, pointer]
    llvm.LLVMCreateTargetMachine.restype = pointer
    llvm.LLVMCreateTargetMachine.argtypes = [pointer, string, string, string, *[ctypes.c_int] * 3]
    llvm.LLVMTargetMachineEmitToFile.argtypes = [pointer, pointer, string, ctypes.c_int, pointer]
    version = [ctypes.c_uint() for _ in range(3)]
    llvm.LLVMGetVersion(*map(ctypes.byref, version))
    print("ROCm's: LLVM", ".".join(str(part.value) for part in version))

    def generate(bitcode: bytes, chip: str) -> str:
        module, target, error = pointer(), pointer(), pointer()
        buffer = llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy(bitcode, len(bitcode), b"")
        if llvm.LLVMParseBitcodeInContext2(llvm.LLVMContextCreate(), buffer, ctypes.byref(module)):
            raise RuntimeError("ROCm's LLVM does not read the bitcode")
        triple = llvm.LLVMGetTarget(module)
        if llvm.LLVMGetTargetFromTriple(triple, ctypes.byref(target), ctypes.byref(error)):
            raise RuntimeError(f"ROCm's LLVM: {ctypes.string_at(error)}")
        speed, position_independent, default_model, assembly = 3, 2, 0, 0
        machine = llvm.LLVMCreateTargetMachine(
            target, triple, chip.encode(), b"", speed, position_independent, default_model
        )
        path = folder / "rocm.s"
        if llvm.LLVMTargetMachineEmitToFile(machine, module, str(path).encode(), assembly, ctypes.byref(error)):
            raise RuntimeError(f"ROCm's LLVM: {ctypes.string_at(error)}")
        return path.read_text()

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rocm", type=Path, help="the unpacked package rocm-bindings-compiler")
    parser.add_argument("--chips", nargs="+", choices=HIP_ARCHS, default=HIP_ARCHS)
    parser.add_argument("--rungs", nargs="+", default=["mfma"], help="folders of csrc/kernels/hip")
    parser.add_argument("--clang", default="clang++-22")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generators = triton_generator(), rocm_generator(args.rocm, folder)
        print("\nThe largest of a row's kernels, by clang, Triton's, ROCm's. vgpr, sgpr: vector, scalar registers.")
        for source in sources_of(path for rung in args.rungs for path in (CSRC / "kernels/hip" / rung).glob("*.cu")):
            for chip in args.chips:
                command = [*hip_command(args.clang, [chip], standalone=True), "--cuda-device-only", f"-I{CSRC}"]
                command += [*source.arguments(), "--no-gpu-bundle-output", "-w", "-o"]
                bitcode = folder / "bitcode"
                subprocess.run([*command, folder / "clang.s", "-S"], check=True)
                subprocess.run([*command, bitcode, "-emit-llvm", "-c"], check=True)
                of_clang = kernels_of((folder / "clang.s").read_text())
                others = [kernels_of(generate(bitcode.read_bytes(), chip)) for generate in generators]
                rows = defaultdict(list)
                for symbol, kernel in of_clang.items():
                    key = kernel.max_flat_workgroup_size, kernel.group_segment_fixed_size
                    rows[key].append((kernel, *(other[symbol] for other in others)))
                for (threads, lds), kernels in sorted(rows.items()):
                    figures = [
                        f"{label} {' / '.join(str(max(one[at] for one in by)) for by in zip(*kernels, strict=True))}"
                        for at, label in enumerate(("vgpr", "vgpr spilled", "sgpr spilled", "scratch bytes", "LDS"))
                    ]
                    name = f"{source.path.parent.name}/{source.name} {chip}"
                    print(f"{name}, {threads} threads, {lds} bytes: {len(kernels)} kernels,", end=" ")
                    print(", ".join(figures), flush=True)


if __name__ == "__main__":
    main()
