"""The house: which file may know which. Documents: test_documents.py.

Planted bugs that these checks caught: torch/ included from dispatch/, one rung included by another, a source of more
than 600 lines, one of five, a function of more than 80, instances by hand; in dispatch/ a kernel's name in quotes, a
comparison with a rung's number and with a chip's, a chip's name in a message; an entry that includes another folder's
header, one that asks another one's; a launcher that orders tiles or picks cache policies.
"""

import re
from pathlib import Path

import pytest

from torch_tiledmm import algorithms, build_info

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".inc"))
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# What each folder may include; arrows only go down.
MAY_INCLUDE = {
    "core": {"core"},
    "platform": {"platform", "core"},
    "kernels": {"kernels", "platform", "core"},
    "dispatch": {"dispatch", "kernels", "platform", "core"},
    "api": {"api", "dispatch", "platform", "core"},
    "torch": {"torch", "api", "core"},
    "python": {"python", "torch"},
}


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def rung_of(path: str) -> str:
    """kernels/cpu/register_tiled/plan.h -> cpu/register_tiled, kernels/gpu/01_naive.cu -> gpu/01; else empty."""
    found = re.search(r"kernels/((?:cpu|gpu)/\d\d|(?:cpu|cuda|hip)/(?!shared/)\w+)(?:_|/)", path)
    return found[1] if found else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_arrows_only_go_down(path):
    folder = path.relative_to(CSRC).parts[0]
    for included in includes(path):
        if (CSRC / included).exists():
            assert included.split("/")[0] in MAY_INCLUDE[folder], f"{folder} must not include {included}"
            if folder == "kernels" and rung_of(included):
                assert rung_of(str(path)) == rung_of(included), f"a rung includes another: {included}"
        elif folder not in ("torch", "python"):
            assert not re.match(r"(torch|ATen|c10|Python|pybind11)\b", included), (
                f"torch header in {folder}: {included}"
            )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_sources_stay_readable(path):
    text = path.read_text()
    assert text.count("\n") <= 600
    assert text.startswith(("//", "#pragma once")), "a file begins by saying what it is"


# What is shorter than a reader's way to it belongs to a neighbour or into a table. Sources that may be short, and why.
MAY_BE_SHORT = {
    "torch/abi.cpp": "it needs nothing of torch: the build for ROCm is tested with this file alone",
    "kernels/cuda/shared/refuse.h": "what every entry refuses, as in hip/shared/refuse.h",
}
INSTANTIATES = re.compile(r"^template (?!<)\w.*", re.MULTILINE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_instances_come_from_a_table(path):
    """One source of a kernel's folder is compiled once for each row of its table; it says how many there are."""
    text, name = path.read_text(), str(path.relative_to(CSRC))
    found = INSTANTIATES.findall(text)
    assert len(found) <= 1, f"instances by hand: {found}"
    is_compiled_in_parts = "constexpr int kNumInstances = " in text
    assert is_compiled_in_parts or not found, f"{name} instantiates a template and does not say kNumInstances"
    assert text.count("\n") >= 15 or is_compiled_in_parts or name in MAY_BE_SHORT, "it is short: where does it belong?"


# Functions with more lines than MOST_LINES, by the files that have one. A main loop is unrolled around what its lambdas
# share, registers and addresses: as functions they would take ten arguments each.
MOST_LINES = 80
LONG_LOOPS = {f"kernels/cuda/{name}" for name in ("mma_async/kernel.h", "wgmma_split/few_rows.h")}
LONG_LOOPS |= {f"kernels/cuda/simt_pipelined/{name}" for name in ("kernel.h", "few_rows.h")}
LONG_LOOPS |= {"kernels/hip/few_rows/kernel.h", "kernels/hip/mfma/kernel.h"}


def lengths_of_functions(code: str) -> list[int]:
    """Lines from brace to brace of what lies in namespaces and types alone."""
    code = re.sub(r"""//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", "", code)
    lengths, are_functions, start, line, head = [], [], 0, 1, ""
    for character in code:
        line += character == "\n"
        if character == "{":
            is_scope = re.search(r"\b(?:namespace|struct|class|union|enum|extern)\b[^()]*$", head)
            start = start if any(are_functions) else line
            are_functions.append(any(are_functions) or not is_scope)
        elif character == "}" and are_functions.pop() and not any(are_functions):
            lengths.append(line - start + 1)
        head = "" if character in "{};" else head + character
    return lengths


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_functions_stay_readable(path):
    lengths = lengths_of_functions(path.read_text())
    assert str(path.relative_to(CSRC)) in LONG_LOOPS or max(lengths, default=0) <= MOST_LINES


# What dispatch may include of kernels.
OF_THE_KERNELS = {"kernels/rungs.h", "kernels/rungs.def"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_a_kernel_is_its_own_folder(path):
    """It includes platform/, core/, its folder, kernels/<device>/shared and what both makers' kernels for split share;
    dispatch includes the list of entries."""
    name = path.relative_to(CSRC)
    for included in map(Path, includes(path)):
        if included.parts[0] != "kernels" or not (CSRC / included).exists() or str(included) in OF_THE_KERNELS:
            continue
        is_near = included.parent in (name.parent, Path(*name.parts[:2], "shared"), Path("kernels/split"))
        is_allowed = name.parts[0] == "kernels" and is_near
        assert is_allowed, f"{name} must not include {included}"


# Kernels and chips are known by name or number in a kernel's own folder, in platform/, which picks instructions by the
# compiler's macros for each architecture, and here: the table of chips, and the type of what stands in its rows.
KNOW_CHIPS = ("dispatch/chips.cpp", "core/chip.h")
# "skinny" is a kind of shapes, too.
NO_KERNELS = ("torch_tiledmm/testing/shapes.py",)
KERNELS = {entry.name for entry in algorithms() if entry.order}
NAMED_AFTER_CHIPS = KERNELS & set(build_info().compiled["cpu"])
CHIP_OR_NUMBER = re.compile(
    r"\b(?:sm_\d+|gfx\d\w+)|\bIsa::\w+|\b(?:number|rung|arch)\s*[=!<>]=|[=!<>]=\s*\w+(?:\.|->)(?:number|arch)\b"
)


def code_of(path: Path) -> str:
    """Without comments."""
    comment = r"#[^\n]*" if path.suffix == ".py" else r"//[^\n]*"
    return re.sub(comment, "", path.read_text())


@pytest.mark.parametrize("folder", ["core", "dispatch", "api", "torch", "python"])
def test_no_kernel_and_no_chip_is_known_outside_of_its_folder(folder):
    for path in SOURCES:
        name = str(path.relative_to(CSRC))
        if not name.startswith(f"{folder}/"):
            continue
        found = set(re.findall(r'"([\w.]+)"', code_of(path))) & KERNELS
        found -= NAMED_AFTER_CHIPS if name in KNOW_CHIPS else set()
        assert not found, f"{name} names kernels: {found}"
        known = [] if name in KNOW_CHIPS else CHIP_OR_NUMBER.findall(code_of(path))
        assert not known, f"{name} knows chips or rungs: {known}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "torch_tiledmm").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_package_asks_for_the_kernels(path):
    if str(path.relative_to(ROOT)) not in NO_KERNELS:
        found = set(re.findall(r'"([\w.]+)"', code_of(path))) & KERNELS
        assert not found, f"names kernels: {found}"


# ---- The choice is pure, and launchers take a plan and make none.
OF_THIS_MACHINE = re.compile(r"\b__builtin_cpu_(?:is|supports|init)\b|\b__get_cpuid\w*")
MAKES_A_PLAN = re.compile(
    r"\b(?:plan|choose)_\w+\(|\bschedule_tiles\(|\bfor_each_\w*plan\w*\(|\bPlanSearch\b"
    r"|\b(?:tiles_at_once|num_square_groups|policy_of|start_of)(?:<\w+>)?\(|\bnum_sms\b"
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_plans_are_made_by_the_plan_of_a_kernel_for_a_chip(path):
    """What the processor is asked is asked where the chip is found, so that a plan is the same on every machine."""
    name = str(path.relative_to(CSRC))
    assert name == "dispatch/chips.cpp" or not OF_THIS_MACHINE.findall(code_of(path)), "it asks the machine that runs"
    if name.startswith("kernels/") and not re.search(r"(?:plan|tile_order)\.h$|/rungs?\.cpp$", name):
        found = MAKES_A_PLAN.findall(code_of(path))
        assert not found, f"{name} makes a plan: {found}"


# ---- A rung names no other one's entry: where another kernel has a product, the choice says so.
ENTRIES = set(re.findall(r"TILEDMM_RUNG\(\w+, (\w+)\)", (CSRC / "kernels/rungs.def").read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_a_rung_names_no_other_entry(path):
    name = str(path.relative_to(CSRC))
    if name.startswith("kernels/"):
        folder = "".join(file.read_text() for file in path.parent.glob("*rung*.cpp"))
        own = set(re.findall(r"const Rung (\w+)_rung\b", folder))
        others = set(re.findall(r"\b(\w+)_rung\b", code_of(path))) & ENTRIES - own
        assert not others, f"{name} names entries of other rungs: {others}"


# ---- What is called of torch. The bits of its products, reductions and transcendental functions depend on threads or
# sizes on some device, so the operators use none of them. What is listed allocates, is exact element by element, or is
# of integers.
CALLED_OF_TORCH = {"empty", "ones", "zeros_like", "_neg_view", "in_parallel_region", "arange", "searchsorted"}
CALLED_OF_TORCH |= {"get_num_threads", "set_num_threads", "empty_like", "zeros", "maybe_wrap_dim"}
CALLED_OF_TORCH |= {"dim_list_to_bitset", "cat", "result_type"}
# Of the mode alone, which is tested for what it calls (tests/torch_tiledmm/test_mode.py): attention of rows, and what
# the mode serves itself.
CALLED_BY_ATTENTION = {"scaled_dot_product_attention", "softmax", "_safe_softmax"}
SERVED_BY_FUNCTIONS = {"exp", "log"}
BITS_MAY_VARY = (
    "sum|sum_to_size|mean|prod|cumsum|var|std|norm|mm|addmm|bmm|baddbmm|matmul|linear|dot|mv|einsum|softmax|log_softmax|"
    "gelu|gelu_backward|silu|silu_backward|sigmoid|softplus|tanh|exp|expm1|log|erf|erfc|sqrt|rsqrt|pow|layer_norm"
)
# On request: ONNX, which has no operators of ours, and weights with products of their own.
LEFT_TO_TORCH = ("torch.matmul(*_alike(a, b, out_dtype))", "functional.")


def test_no_function_of_torch_is_called_whose_bits_vary():
    for path in CSRC.glob("torch/*"):
        code = re.sub(r"//.*", "", path.read_text())
        called = set(re.findall(r"\bat::([a-z_]+)\(", code)) | set(re.findall(r"<ATen/ops/(\w+)\.h>", code))
        if path.name == "mode_attention.cpp":
            called -= CALLED_BY_ATTENTION
        assert called <= CALLED_OF_TORCH, f"{path.name} calls {called - CALLED_OF_TORCH} of torch"
        methods = set(re.findall(rf"(?:\.|->)({BITS_MAY_VARY})_?(?:_symint)?\(", code))
        if path.name == "mode_functions.cpp":
            methods -= SERVED_BY_FUNCTIONS
        assert not methods, f"{path.name} calls {methods} of a tensor"
    for name in ("ops.py", "modules.py"):
        for line in (ROOT / "torch_tiledmm" / name).read_text().splitlines():
            found = re.search(rf"(?:\btorch|functional|aten|F)\.({BITS_MAY_VARY})\(|\w\.(sum|mean|softmax)\(", line)
            assert not found or any(text in line for text in LEFT_TO_TORCH), f"{name}: {line.strip()}"
