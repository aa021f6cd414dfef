"""The documents: links and commands that work, code that runs, tables and pictures that say what the results say.

A command in a fence marked `sh`, or in the text of README and docs, is run as it is where it is cheap (CHEAP). Of the
others (EXPENSIVE), scripts parse their options and stop, and make says what it would do. One of neither kind fails.

Planted bugs that these tests caught: a link to a file and one to a heading that are not there, an option that a script
lacks, a make target that the Makefile lacks, a command of neither kind, a fence without a language, code that raises, a
line of 121 characters, an order of summation and a rung that no document names, a count, a table and a picture that the
results do not say.
"""

import argparse
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_tiledmm.testing import ladder, parse_shape

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
WRITTEN = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])  # by people
DOCUMENTS = [*WRITTEN, ROOT / "CONTRIBUTING.md", *sorted(BENCHMARKS.glob("results/*/README.md"))]
CHEAP = (
    r"python -m torch_tiledmm info",
    r"python -m torch_tiledmm explain( \d+){3} .*",
    r"python -m torch_tiledmm ladder --count( \d{1,3}){3}( .*)?",
)
EXPENSIVE = (
    r"make [a-z-]+",
    r"pip install --no-build-isolation \.",  # tests/test_install.py installs
    r"python -m torch_tiledmm (bench|ladder|run)( .*)?",
    r"python (benchmarks|examples)/\w+\.py( .*)?",
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fences(path: Path) -> list[tuple[str, str]]:
    """(language, text) of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    found = [
        line for path in DOCUMENTS for language, text in fences(path) if language == "sh" for line in text.split("\n")
    ]
    for path in WRITTEN:
        found += re.findall(r"`((?:make|pip|python) [^`]+)`", prose(path))
    return sorted({shlex.join(words) for line in found if (words := shlex.split(line, comments=True))})


def is_one_of(kinds: tuple[str, ...], command: str) -> bool:
    return any(re.fullmatch(kind, command) for kind in kinds)


def run_python(monkeypatch, words: list[str]) -> None:
    """What `python WORDS` does, in this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", words[words[0] == "-m" :])
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")


@pytest.mark.parametrize("command", commands())
def test_command(command, monkeypatch):
    words = shlex.split(command)
    if is_one_of(CHEAP, command):
        run_python(monkeypatch, words[1:])
        return
    assert is_one_of(EXPENSIVE, command), f"{command}: add it to CHEAP or to EXPENSIVE"
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    elif words[0] == "python":
        parse = argparse.ArgumentParser.parse_args

        def parse_and_stop(*args, **kwargs):
            parse(*args, **kwargs)
            raise KeyboardInterrupt  # which no script catches

        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run_python(monkeypatch, words[1:])


@pytest.mark.parametrize("path", [p for p in WRITTEN if any(lang == "python" for lang, _ in fences(p))], ids=name_of)
def test_code_of_a_document_runs(path):
    precision = torch.backends.cuda.matmul.fp32_precision
    # All that is no code becomes empty lines, so that an error names the document's own line.
    code, language = [], ""
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            language = "" if language else line
        code.append(line if language == "```python" and line != language else "")
    try:
        exec(compile("\n".join(code), str(path), "exec"), {"__name__": "document"})
    finally:
        torch.backends.cuda.matmul.fp32_precision = precision


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_a_fence_names_its_language(path):
    assert {language for language, _ in fences(path)} <= {"sh", "python", "text"}
    assert path.read_text().count("```") == 2 * len(fences(path))


def headings(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", prose(path)):
        place = path.parent / target if target else path
        assert place.exists(), f"{name_of(path)} links to {target}"
        if anchor:
            assert anchor in headings(place), f"{name_of(path)} links to {target}#{anchor}"


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_lines_are_short(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


def test_documents_are_short():
    most = {"README.md": 150, "CONTRIBUTING.md": 100, "docs/ladder.md": 317}
    for name, lines in most.items():
        assert (ROOT / name).read_text().count("\n") <= lines, name


def test_ci_calls_targets_of_the_makefile():
    targets = re.findall(r"^(?:exec )?make ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert targets == ["check", "test", "test-ecosystem"]
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_order_and_every_rung_is_documented():
    enum = re.search(r"enum class Order[^{]*\{(.*?)\};", (ROOT / "csrc/core/rung.h").read_text(), re.DOTALL)
    orders = re.findall(r"^\s*(\w+),", enum[1], re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/numerics.md").read_text(), re.MULTILINE)
    assert rows == ["Order", *orders]
    rungs = re.findall(r"TILEDMM_RUNG\(\w+, (\w+)", (ROOT / "csrc/kernels/rungs.def").read_text())
    rungs = {re.sub(r"^(register_tiled|block_tiled|few_rows)_.*", r"\1", name).rstrip("_") for name in rungs}
    for document in ("README.md", "docs/ladder.md"):
        text = (ROOT / document).read_text()
        assert [name for name in sorted(rungs) if not re.search(rf"\b{name}\b", text)] == [], document


@pytest.mark.parametrize("script", ["benchmarks/readme_table.py", "benchmarks/plot_results.py"])
def test_tables_and_pictures_come_from_the_results(script, monkeypatch):
    run_python(monkeypatch, [script, "--check"])  # leaves by SystemExit where they differ


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("results/host_executor/*.json")), ids=name_of)
def test_counts_are_those_of_the_kernels(path):
    shape, warp_size = re.fullmatch(r"(\d+x\d+x\d+)_wave(32|64)", path.stem).groups()
    counted = ladder.count(parse_shape(shape), torch.float32, int(warp_size))
    assert json.loads(path.read_text()) == counted
