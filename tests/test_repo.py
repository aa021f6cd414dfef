"""The house: which file may know which. Documents: test_documents.py.

Planted bugs that these checks caught: torch/ included from dispatch/, one rung included by another, a source of more
than 600 lines.
"""

import re
from pathlib import Path

import pytest

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
}


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def rung_of(path: str) -> str:
    """The rung's number: kernels/cpu/04_register_tiled/avx2.cpp -> cpu/04, kernels/gpu/01_naive.cu -> gpu/01; else
    empty."""
    found = re.search(r"kernels/(cpu|gpu|cuda|hip)/(\d\d)_", path)
    return f"{found[1]}/{found[2]}" if found else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_arrows_only_go_down(path):
    folder = path.relative_to(CSRC).parts[0]
    for included in includes(path):
        if (CSRC / included).exists():
            assert included.split("/")[0] in MAY_INCLUDE[folder], f"{folder} must not include {included}"
            if rung_of(included):
                assert rung_of(str(path)) == rung_of(included), f"a rung includes another: {included}"
        elif folder != "torch":
            assert not re.match(r"(torch|ATen|c10|Python|pybind11)\b", included), (
                f"torch header in {folder}: {included}"
            )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_sources_stay_readable(path):
    text = path.read_text()
    assert text.count("\n") <= 600
    assert text.startswith(("//", "#pragma once")), "a file begins by saying what it is"
