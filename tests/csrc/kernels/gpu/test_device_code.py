"""Device code of every rung without a device: clang compiles it for AMD, nvcc for NVIDIA, their reports are checked.

In CI (CI=true) the compilers must be there; elsewhere this runs if they are and TILEDMM_DEVICE_CODE=1, since it takes
minutes. Set it in CI, too, and the largest kernels are optimised for sm_80 as well as for sm_90a, fp16's for sm_90a as
well as bf16's, tiles with all layouts of operands and all dtypes of results (device_sources.py), more sizes of them, 06
and 07 for sm_90a, most rungs for sm_80 as well as for sm_90a, and every rung is compiled for every chip of AMD.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import compilers
import gpu_objects
import pytest
from compilers import IS_WHOLE
from device_sources import WITHOUT_F16, copy_edited
from gpu_objects import Source

ROOT = Path(__file__).parents[4]

# For sm_80, whose registers are those of sm_90a, what takes long is not optimised, or ends with PTX, whose
# instructions others assemble: 05, elementwise and mma_async/unaligned. What is compiled for sm_90a, too, has the same
# source and would show nothing else: it is left to a request.
UNOPTIMISED_FOR_SM_80 = ("mma_async/unaligned",)
PTX_FOR_SM_80 = ("06_mma_cached", "07_mma_double_buffered", "direct/mma")
NOT_FOR_SM_80 = (
    *("01_naive", "02_block_tiled", "03_row_register_tiled", "04_register_tiled", "08_mma_output_cached"),
    *("simt_pipelined", "mma_async/instances", "mma_async/launch", "skinny/kernel", "direct/fma"),
    *("quantize", "softmax", "reduce", "running_sums", "device"),
)
# fp16's kernels for sm_90a, which differ from bf16's in the name of an instruction: instances of their own, and parts
# of others. And tiles that lie between others in size, or below them, and rungs that lie between 05 and 08. Instances:
# the tables kWgmmaInstances, kGroupedInstances, kFp8Instances, kFp8GroupedInstances, kFp8BInstances, kSimtInstances,
# kMmaAsyncInstances.
LIKE_OTHERS = (
    *("06_mma_cached", "07_mma_double_buffered"),
    *(f"wgmma/instances_sm90a.{i}" for i in range(18) if i not in (2, 4, 8, 14, 16)),
    *(f"wgmma/grouped_instances_sm90a.{i}" for i in (1, 3)),
    *(f"wgmma/fp8_instances_sm90a.{i}" for i in (1, 5, 7, 8, 9, 10, 11)),  # other dtypes of operands and of C
    *(f"wgmma/fp8_grouped_instances_sm90a.{i}" for i in range(3, 10)),
    *(f"wgmma/fp8_b_instances_sm90a.{i}" for i in (0, 1, 3, 5, 6, 7)),  # the largest and the smallest tiles are left
    *(f"simt_pipelined/instances.{i}" for i in (1, 2)),  # the last one has kernels for groups
    *(f"mma_async/instances.{i}" for i in (1, 2, 3, 5, 8)),
)
# A layout of operands, of two unlike ones (device_sources.py), where another dtype, result or chip has the other one.
LAYOUTS = {
    ("9.0a", "08_mma_output_cached"): 2,
    ("9.0a", "direct/fma"): 1,
    ("9.0a", "direct/mma"): 2,
    ("9.0a", "mma_async/instances.4"): 1,
    ("9.0a", "mma_async/instances.6"): 2,
    ("9.0a", "mma_async/instances.7"): 2,
    ("9.0a", "mma_async/unaligned"): 2,
    ("8.0", "mma_async/unaligned"): 1,
    ("9.0a", "simt_pipelined/instances.3"): 2,
}
# For sm_90a: file, text, what takes its place.
EDITS_FOR_HOPPER = [
    (
        "kernels/cuda/skinny/kernel.cu",
        "dtype == DType::f16 ? launch<Half>(problem, work, executor)\n                               : ",
        "",
    ),
    ("kernels/cuda/direct/mma.cu", "    case DType::f16:\n      return launch<Half>(problem, plan, executor);\n", ""),
    # Tiles that lie between others of their instance; those of wgmma's wide results, too.
    (
        "kernels/cuda/simt_pipelined/few_rows.h",
        "    if (plan.rows == 2) return launch(std::integral_constant<int, 2>{});\n",
        "",
    ),
    (
        "kernels/cuda/simt_pipelined/few_rows.h",
        """plan.num_stages == kFewStagesDeep ? launch_few_rows<kFewCols, kFewStagesDeep>(plan, problem, executor)
                                           : launch_few_rows<kFewCols, kFewStages>(plan, problem, executor)""",
        "launch_few_rows<kFewCols, kFewStagesDeep>(plan, problem, executor)",
    ),
    ("kernels/cuda/mma_async/fp8.cu", "visit_number<0, kNumMmaFp8Shapes>", "visit_number<1, 2>"),  # sm_80 has all
    ("kernels/cuda/wgmma/task.h", "{DType::bf16, 0, 2}", "{DType::bf16, 0, 1}"),
    ("kernels/cuda/wgmma/task.h", "hold_all(kWgmmaInstances, DType::bf16, kNumTileShapes)", "true"),
    (
        "kernels/cuda/wgmma/plan.h",
        "shape.block_n <= 128 && shape.block_n != 96",
        "shape.block_n == 128 || shape.block_n == 32",
    ),
    ("kernels/cuda/wgmma/plan.h", "shape.block_m == 128 && shape.block_n % 64 == 0", "shape.block_n % 128 == 0"),
    (
        "kernels/cuda/wgmma_split/few_rows_sm90a.cu",
        ": width == 16 ? launch_sources<16>(task)\n         : width == 32 ? launch_sources<32>(task)\n",
        "",
    ),
    # A pair of unlike layouts for each tile, the other one where C has another dtype.
    (
        "kernels/cuda/wgmma/kernel.h",
        "const char* launch_layout(const Task& task) {\n",
        """const char* launch_layout(const Task& task) {
  constexpr bool kIsOfN = (TILE + std::is_same_v<T, C>) % 2 == 0 && serves_layout(kTileShapes[TILE], false);
  return launch_kernel_of<ConfigOf<T, C, TILE, !kIsOfN, kIsOfN, CLUSTERS>, SHARES>(task);
}

template <class T, class C, int TILE, bool CLUSTERS, bool SHARES>
const char* launch_all_layouts(const Task& task) {
""",
    ),
    (
        "kernels/cuda/wgmma/grouped.h",
        """  const bool is_k_major = task.plan.b.is_k_major;
  if (p.gated_b) {
    if (is_k_major) return launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, false, true>>(task);
    if constexpr (serves_gated(kShape, false))
      return launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, true, true>>(task);
    return "this tile has no box for each B";
  }
  return is_k_major ? launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, false>>(task)
                    : launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, true>>(task);
""",
        """  constexpr bool kIsGatedOfN = TILE % 2 == 0 && serves_gated(kShape, false);
  return p.gated_b ? launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, kIsGatedOfN, true>>(task)
                   : launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, !kIsGatedOfN>>(task);
""",
    ),
    # Every other tile of 8 bits; the first and the last one where dtypes differ.
    *(
        (
            f"kernels/cuda/wgmma/{name}.h",
            f"if constexpr ({serves}(kFp8Tiles[kTile], ",
            f"if constexpr (kTile % (TYPE_A == TYPE_B ? 2 : 6) == 0 && {serves}(kFp8Tiles[kTile], ",
        )
        for name, serves in (("fp8", "serves"), ("fp8_grouped", "serves_groups"))
    ),
    # The large operand is A in one of two widths, and B in the other.
    (
        "kernels/cuda/wgmma_split/few_rows_sm90a.cu",
        "task.is_a ? launch<ROWS, SOURCE, true>(task) : launch<ROWS, SOURCE, false>(task)",
        "launch<ROWS, SOURCE, ROWS == 8>(task)",
    ),
]
IN_CI = os.environ.get("CI") == "true"
OBJDUMP = next((found for name in ("22", "21", "20") if (found := shutil.which(f"llvm-objdump-{name}"))), None)
NVCC = gpu_objects.find_nvcc()
TRITON = importlib.util.find_spec("triton")  # brings NVIDIA's disassembler
CUOBJDUMP = shutil.which("cuobjdump") or (
    TRITON and shutil.which(Path(TRITON.origin).parent / "backends/nvidia/bin/cuobjdump")
)
RUNGS = gpu_objects.gpu_sources()


def name_of(value: object) -> str:
    """A source as "08_mma_output_cached", "mma_async/instances.3": a rung of the ladder begins with its number."""
    if not isinstance(value, gpu_objects.Source):
        return value
    folder, name = value.path.parent.name, value.name.replace(".cu", "")
    return name if folder in ("gpu", "platform") else f"{folder}/{name}"


pytestmark = pytest.mark.skipif(not IN_CI and not IS_WHOLE, reason="minutes long: set TILEDMM_DEVICE_CODE=1")

# Warps of one SIMD that the registers leave room for: of CDNA (at most 8), of RDNA (at most 16).
OCCUPANCY = {
    "01": (8, 16),
    "02": (8, 16),
    "03": (3, 10),
    "04": (1, 8),
    "05": (2, 7),
    "06": (1, 7),
    "07": (1, 5),
    "08": (2, 5),
}
# Scalar registers that do not fit go to lanes of a vector register, not to memory.
MOST_SGPR_SPILLS = 64
# A group's sizes and addresses are in registers, not among the kernel's parameters; a warp less may fit.
MOST_SGPR_SPILLS_OF_GROUPS = 80
# 07 keeps sums, staged tiles and both halves' copies of the operands alive: two of its 28 kernels spill on gfx1100. So
# do some of those of 8 bits of 08, which have two sets of sums.
MAY_SPILL = {("07", "gfx1100")}
MOST_SPILLS_OF_8_BITS = {"gfx1100": 8}
INSTRUCTIONS = {
    "gfx90a": {
        "04": ["v_pk_fma_f32", "ds_read_b128"],
        "08": [
            "v_mfma_f32_16x16x4f32",
            "v_mfma_f32_16x16x16f16",
            "v_mfma_f32_16x16x16bf16_1k",
            "v_mfma_f64_16x16x4f64",
        ],
    },
    "gfx942": {
        "04": ["v_pk_fma_f32", "ds_read_b128"],
        "08": [
            "v_mfma_f32_16x16x4_f32",
            "v_mfma_f32_16x16x16_f16",
            "v_mfma_f32_16x16x16_bf16",
            "v_mfma_f64_16x16x4_f64",
        ],
    },
    "gfx1100": {
        "04": ["v_dual_fmac_f32", "ds_load_b128"],
        "08": ["v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16"],
    },
}
INSTRUCTIONS["gfx950"] = INSTRUCTIONS["gfx942"]
INSTRUCTIONS["gfx1201"] = INSTRUCTIONS["gfx1100"]
# What CI leaves out. Rungs between 04 and 08 have gfx1100's instructions in common with gfx942. Chips of a generation
# have each other's: the others are compiled as far as it shows that they have what 08 multiplies by
# (test_other_chips_have_the_instructions), and AMD's own kernels, compiled for them, are executed in tests/amd.
# What is no rung is asked for no number: for gfx1100 it goes through the front end alone.
NO_RUNGS = [source for source in RUNGS if name_of(source)[:2] not in OCCUPANCY]
LEFT_OUT = {"gfx942": (), "gfx1100": ("06", "07", *(name_of(source)[:2] for source in NO_RUNGS))}
OTHERS = tuple(arch for arch in gpu_objects.HIP_ARCHS if arch not in LEFT_OUT)
AMD = [
    (source, arch)
    for source in RUNGS
    for arch in gpu_objects.HIP_ARCHS
    if IS_WHOLE or (arch in LEFT_OUT and name_of(source)[:2] not in LEFT_OUT[arch])
]


def kernels_of(report: str) -> list[dict[str, int]]:
    """One dictionary for each kernel of clang's remarks."""
    kernels = []
    for part in report.split("Function Name: ")[1:]:
        found = {name.strip(): int(value) for name, value in re.findall(r"remark:\s+([^:\[]+)[^:]*: (\d+)", part)}
        kernels.append({"name": part.split()[0], **found})
    return kernels


def unsafe_barriers(text: str) -> list[str]:
    """What precedes each barrier that follows an access to shared memory without a jump and without a wait for it."""
    is_wait = re.compile(r"s_waitcnt .*\blgkmcnt\(0\)|s_wait_(?:\w+_)?dscnt 0x0")
    touches = re.compile(r"\bds_(?:read|write|load|store)")
    unsafe, has_pending = [], False
    code = [line.split("//")[0].strip() for line in text.splitlines()]
    for at, line in enumerate(code):
        if touches.search(line):
            has_pending = True
        elif is_wait.search(line) or line.endswith(":") or re.search(r"\bs_c?branch", line):
            has_pending = False
        elif re.match(r"s_barrier(?:_signal)?\b", line) and has_pending:
            unsafe.append("; ".join(code[max(0, at - 3) : at + 1]))
    return unsafe


@pytest.mark.takes_long
@pytest.mark.parametrize("source, arch", AMD, ids=name_of)
def test_amd(source, arch, amd_object):
    code, report = amd_object(arch, *source)
    rung, kernels = name_of(source)[:2], kernels_of(report)
    if rung not in OCCUPANCY:
        return
    assert len(kernels) >= 4
    for kernel in kernels:
        if "AnyFloat8" in kernel["name"] and arch in MOST_SPILLS_OF_8_BITS:
            assert kernel["VGPRs Spill"] <= MOST_SPILLS_OF_8_BITS[arch], kernel
        elif (rung, arch) not in MAY_SPILL:
            assert kernel["ScratchSize"] == 0 and kernel["VGPRs Spill"] == 0, kernel
        is_grouped = "Lb1EEEvNS_13FoldedProblem" in kernel["name"]
        assert kernel["SGPRs Spill"] <= (MOST_SGPR_SPILLS_OF_GROUPS if is_grouped else MOST_SGPR_SPILLS), kernel
        assert kernel["LDS Size"] <= 64 << 10, kernel
        assert kernel["Occupancy"] >= OCCUPANCY[rung][arch.startswith("gfx1")] - is_grouped, kernel
    text = subprocess.run([OBJDUMP, "-d", code], capture_output=True, text=True, timeout=120, check=True).stdout
    for instruction in INSTRUCTIONS[arch].get(rung, []):
        assert re.search(rf"\b{instruction}\b", text), f"there is no {instruction}"
    # Loads from global memory go on across a barrier, and what the nearest cache holds stays there.
    assert not re.findall(r"\b(?:buffer_gl0_inv|global_inv)\b", text)
    assert not unsafe_barriers(text)


def front_end(arch: str, csrc: Path, name: str | Path) -> str:
    """A source of csrc as the compiler begins to optimise it, without an error or a warning."""
    command = [*gpu_objects.hip_command(compilers.find_clang(), [arch], standalone=True, werror=True), "-O0"]
    command += ["--cuda-device-only", "-Xclang", "-disable-llvm-passes", "-S", "-emit-llvm", "-o", "-"]
    done = subprocess.run([*command, f"-I{csrc}", csrc / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("source", [] if IS_WHOLE else NO_RUNGS, ids=name_of)
def test_the_front_end_takes_what_is_no_rung_for_rdna(source):
    code = front_end("gfx1100", gpu_objects.CSRC, source.path.relative_to(gpu_objects.CSRC))
    assert ("amdgpu_kernel" in code) == (source.path.stem != "device")


@pytest.mark.parametrize("arch", OTHERS)
def test_other_chips_have_the_instructions(arch, csrc_of_devices):
    """The compiler's front end refuses what a chip lacks, before it optimises."""
    code = front_end(arch, csrc_of_devices, "kernels/gpu/08_mma_output_cached.cu")
    instructions = set(re.findall(r"@llvm\.amdgcn\.(?:mfma|wmma)[\w.]+", code))
    assert len(instructions) >= (2 if arch.startswith("gfx1") else 4)


NVIDIA = [(arch, source) for source in gpu_objects.cuda_sources() + RUNGS for arch in ("9.0a", "8.0")]
NVIDIA = [("9.0a", source) for source in gpu_objects.hopper_sources()] + NVIDIA
NVIDIA = [(arch, source) for arch, source in NVIDIA if IS_WHOLE or arch == "8.0" or name_of(source) not in LIKE_OTHERS]
NVIDIA = [one for one in NVIDIA if IS_WHOLE or one[0] != "8.0" or not name_of(one[1]).startswith(NOT_FOR_SM_80)]
# Launchers are the same on all platforms, and g++ compiles them for the host executor, but for these. Those of a file's
# instances differ in numbers alone: one of them is compiled.
HAS_HOST_PART = gpu_objects.hopper_sources()
if not IS_WHOLE:
    HAS_HOST_PART = {one.path: one for _, one in reversed(NVIDIA) if one in HAS_HOST_PART}.values()


@pytest.fixture(scope="module")
def csrc_for_hopper(built_once, csrc_of_devices):
    """The sources without the kernels that are compiled for sm_90a on request alone."""
    if IS_WHOLE:
        return csrc_of_devices

    def build(folder: Path) -> None:
        copy_edited(csrc_of_devices, folder, EDITS_FOR_HOPPER)

    return built_once("csrc_for_hopper", build) / "csrc"


@pytest.mark.takes_long
@pytest.mark.parametrize("arch, source", NVIDIA, ids=name_of)
def test_nvidia(arch, source, tmp_path, csrc_of_devices, csrc_for_hopper):
    if not NVCC:
        pytest.skip("there is no nvcc")
    csrc = csrc_of_devices if arch == "8.0" else csrc_for_hopper
    command = [*gpu_objects.nvcc_command(NVCC, [arch], werror=True), "-Xptxas", "-v"]
    has_host_part = source.path.stem == "device" or source in HAS_HOST_PART
    ends_with_ptx = not IS_WHOLE and arch == "8.0" and name_of(source) in PTX_FOR_SM_80
    command += ["-Xcompiler", "-O0", "-c"] if has_host_part else ["-ptx"] if ends_with_ptx else ["-cubin"]
    if not IS_WHOLE:
        command += [WITHOUT_F16] if arch != "8.0" else []
        command += [f"-DTILEDMM_LAYOUTS={LAYOUTS[key]}"] if (key := (arch, name_of(source))) in LAYOUTS else []
    is_optimised = IS_WHOLE or arch != "8.0" or name_of(source) not in UNOPTIMISED_FOR_SM_80
    if ends_with_ptx:
        command = [part.replace("code=sm_80", "code=compute_80") for part in command] + ["-Xcicc", "-O0"]
    elif not is_optimised:
        command += ["-Xcicc", "-O1", "-Xptxas", "-O0"]
    command += [f"-I{csrc}", *source.arguments(csrc / source.path.relative_to(gpu_objects.CSRC))]
    command += ["-o", tmp_path / "code"]
    done = subprocess.run(command, capture_output=True, text=True)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert "are serialized" not in report  # wgmma that wait for each other: C7510, C7515
    entries = re.split(r"Compiling entry function '\w+' for 'sm_(\w+)'", report)
    kernels = list(zip(entries[1::2], entries[2::2], strict=True))
    if source.path.stem != "device" and not ends_with_ptx:
        assert {of for of, _ in kernels} == {arch.replace(".", "")}
    for _, kernel in kernels:
        assert re.search(r"Used \d+ registers", kernel), kernel
        # register_tiled trades a few spilled bytes for two blocks of each SM (docs/worklog/simt.md), most where its
        # operands or its result have other dtypes, whose number is kept beside the sums; mma_async spills
        # addresses: beside the sums of its largest tile in fp64 it holds two sets of fragments, and, outside of the
        # loop, the places of the chunks' totals.
        # Two blocks of 1024 threads leave block_tiled 32 registers, too few in fp64. wgmma's tiles of 192 columns
        # that sum rows keep numbers in memory from before their consumers get more registers, and read them once. Where
        # consumers take turns, they keep numbers of a tile beside the sums of 128 rows, most where threads store them.
        # quantize spills one address on sm_80, of a view across k with an activation.
        # wgmma_fp8's with factors of blocks keep up to 14 numbers beside sums and totals: two stages in one piece of
        # code are faster than one without them (docs/worklog/fp8.md).
        # wgmma_split's 64 few rows beside a large operand that is read element by element keep numbers of before their
        # loop there, too.
        spills = {
            "02": 24,
            "04": 148,
            "mma_async": 448,
            "wgmma/fp8": 64,
            "wgmma/": 64,
            "wgmma_split": 24,
            "quantize": 4,
        }
        allowed = next((num_bytes for name, num_bytes in spills.items() if name_of(source).startswith(name)), 0)
        spilled = [int(stores) for stores in re.findall(r"(\d+) bytes spill stores", kernel)]
        assert spilled and (max(spilled) <= allowed or not is_optimised), f"sm_{arch}: {kernel}"


def unsafe_sums(sass: str) -> tuple[int, list[str]]:
    """Loops with m16n8k8 of fp64, and their instructions that may read sums before they are written.

    Sums are there 50 cycles after their instruction started; the next one of the warp starts 32 cycles after it, in
    order. So two instructions between the writing and the reading one are enough, and so is a wait for the writing one
    or any behind it.
    """
    line = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* 0x\w+ \*/\s+/\* 0x(\w+) \*/")
    num_loops, unsafe = 0, []
    for function in sass.split("Function : ")[1:]:
        code = [(int(at, 16), text, int(control, 16) >> 41) for at, text, control in line.findall(function)]
        ends = [
            (int(to[1], 16), at) for at, text, _ in code if (to := re.search(r"BRA.* (0x[0-9a-f]+)$", text.strip()))
        ]
        loops = [(first, last) for first, last in ends if first < last]
        for first, last in loops:
            body = [instruction for instruction in code if first <= instruction[0] <= last]
            is_outer = any(first <= other[0] and other[1] <= last for other in loops if other != (first, last))
            if is_outer or not any("DMMA.16x8x8" in text for _, text, _ in body):
                continue
            num_loops += 1
            pending = []  # sum and scoreboard of the instructions that nobody waited for, in their order
            for at, text, control in body * 2:
                for idx, (_, board) in reversed(list(enumerate(pending))):
                    if board < 6 and control >> 11 + board & 1:
                        pending = pending[idx + 1 :]
                        break
                if counted := re.match(r"DEPBAR\.LE SB(\d), 0x(\w+)", text):  # all but so many of a board's last ones
                    done = [idx for idx, (_, board) in enumerate(pending) if board == int(counted[1])]
                    done = done[: max(len(done) - int(counted[2], 16), 0)]
                    pending = pending[done[-1] + 1 :] if done else pending
                if found := re.match(r"DMMA\.16x8x8 (R\d+), R\w+, R\w+, (R\w+)", text.replace(".reuse", "")):
                    if found[2] in [to for to, _ in pending[-2:]]:
                        unsafe.append(f"{function.split()[0]} {at:#x}")
                    pending.append((found[1], control >> 5 & 7))
    return num_loops, unsafe


def test_sums_of_fp64_are_written_before_they_are_read(tmp_path):
    if not NVCC or not CUOBJDUMP:
        pytest.skip("there is no nvcc or no cuobjdump")
    command = [*gpu_objects.nvcc_command(NVCC, ["9.0a"], werror=True), f"-I{gpu_objects.CSRC}", "-c"]
    kernels, sass = gpu_objects.CSRC / "kernels/cuda", ""
    of_fp64 = [Source(kernels / "mma_async/instances.cu", i) for i in range(4)]
    for source in [*of_fp64, Source(kernels / "skinny/kernel.cu")]:
        target = tmp_path / source.object_name
        subprocess.run([*command, *source.arguments(), "-o", target], check=True)
        sass += subprocess.run([CUOBJDUMP, "-sass", target], capture_output=True, text=True, check=True).stdout
    num_loops, unsafe = unsafe_sums(sass)
    assert num_loops >= 100 and not unsafe, (num_loops, unsafe)
