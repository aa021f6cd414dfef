"""The house: which file may know which, README against the Makefile and the results.

Planted bugs that these checks caught: torch/ included from dispatch/, one rung included by another, a command
of README that the Makefile lacks, a source of more than 600 lines.
"""

import re
import subprocess
import sys
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


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z_-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_commands_of_the_documents_exist(document):
    text = (ROOT / document).read_text()
    commands = set(re.findall(r"(?:^|`|exec )make ([a-z]+)", text, re.MULTILINE))
    assert "test" in commands
    assert commands <= make_targets()
    for path in re.findall(r"python ((?:benchmarks|examples)/\w+\.py)", text):
        assert (ROOT / path).exists(), f"{document} names {path}"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/GLOSSARY.md"])
def test_links_lead_somewhere(document):
    path = ROOT / document
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), f"{document} links to {link}"


def test_documents_are_short():
    assert (ROOT / "README.md").read_text().split("<!-- results:begin -->")[0].count("\n") <= 150
    assert (ROOT / "CONTRIBUTING.md").read_text().count("\n") <= 60


def test_tables_of_readme_come_from_the_results():
    if not list((ROOT / "benchmarks" / "results").glob("*.json")):
        pytest.skip("no results are committed yet")
    command = [sys.executable, "benchmarks/readme_table.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
