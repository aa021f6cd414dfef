"""Installing: wheel, source distribution, and what is said when something is missing.

Planted bugs that these checks caught: headers left out of MANIFEST.in, testing/ left out of the packages, the
rpath of _ops dropped, no look at the C++ runtime before the compilations, one at the flags of CXX alone.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import torch_tiledmm

ROOT = Path(__file__).parents[1]
PACKAGE = Path(torch_tiledmm.__file__).parent
SOURCES = ["setup.py", "gpu_objects.py", "pyproject.toml", "MANIFEST.in", "README.md", "csrc", "torch_tiledmm"]


def run(command, cwd, timeout=60, **env):
    """The finished process; nothing of this test's own environment says where torch_tiledmm is."""
    full_env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | env
    return subprocess.run(command, cwd=cwd, env=full_env, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def tree(tmp_path):
    """A source tree as in a fresh clone: without libraries."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("*.so", "_build_info.json", "__pycache__")
            shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=ignore)
        else:
            (tmp_path / "tree").mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "tree" / name)
    return tmp_path / "tree"


@pytest.mark.takes_long
def test_wheel_installs_and_computes(tree, tmp_path):
    # Without optimisation, and with one of the two libraries of the host executor: both take most of the time of a
    # build. To unpack a wheel is to install it.
    for name, text, replacement in (
        ("setup.py", '"-O3"', '"-O0"'),
        ("gpu_objects.py", '"-O1"', '"-O0"'),
        ("gpu_objects.py", "WARP_SIZES = (32, 64)", "WARP_SIZES = (64,)"),
    ):
        source = (tree / name).read_text()
        assert source.count(text) == 1
        (tree / name).write_text(source.replace(text, replacement))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        str(tmp_path),
        ".",
    ]
    done = run(command, tree, timeout=400, MAX_JOBS="2")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("torch_tiledmm-*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert {"_kernels.so", "_ops.so", "_host_gpu_wave64.so", "_build_info.json", "py.typed"} <= {
        p.name for p in (site / "torch_tiledmm").iterdir()
    }
    code = """if True:
        import torch, torch_tiledmm, torch_tiledmm.testing
        print(torch_tiledmm.__file__)
        a, b = torch.randn(5, 7), torch.randn(7, 3)
        torch.testing.assert_close(torch_tiledmm.matmul(a, b), a @ b)
    """
    done = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))


def test_sdist_holds_all_that_a_build_needs(tree, tmp_path):
    done = run([sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)], tree, CXX="/nonexistent/g++")
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("torch_tiledmm-*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    needed = {
        str(p.relative_to(tree)) for p in tree.rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".py", ".toml", ".typed")
    }
    assert needed <= held
    assert not any(name.endswith(".so") for name in held)


def test_another_torch_in_the_same_place_compiles_the_operators_anew(tree):
    code = """if True:
        import json, setuptools
        def show(ext_modules, **options):
            print(json.dumps([[module.extra_compile_args, module.depends] for module in ext_modules]))
        setuptools.setup = show
        exec(open("setup.py").read(), {"__file__": "setup.py"})
    """
    done = run([sys.executable, "-c", code, "build_ext"], tree)
    (_, kernels_depend), (command, depends) = json.loads(done.stdout.splitlines()[-1])
    assert any(torch.__version__ in word for word in command)
    assert torch.version.__file__ in depends and torch.version.__file__ not in kernels_depend


def test_build_without_torch_says_what_to_do(tree, tmp_path):
    # A folder that comes first on the path and whose torch cannot be imported.
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    done = run([sys.executable, "setup.py", "build_ext"], tree, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "the build needs torch" in done.stderr
    assert "pip install --no-build-isolation ." in done.stderr
    assert "Traceback" not in done.stderr


def test_build_with_an_old_torch_says_so(tree, tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '2.4.1'")
    done = run([sys.executable, "setup.py", "build_ext"], tree, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "torch 2.4.1 is too old" in done.stderr
    assert "install torch >= 2.11" in done.stderr


def test_build_without_a_compiler_says_what_to_do(tree):
    done = run([sys.executable, "setup.py", "build_ext"], tree, CXX="/nonexistent/g++")
    assert done.returncode == 1
    assert "no C++ compiler '/nonexistent/g++'" in done.stderr
    assert "apt install g++" in done.stderr
    assert "Traceback" not in done.stderr


def test_build_with_an_old_compiler_says_so(tree, tmp_path):
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\necho '#define __GNUC__ 11'\n")
    old.chmod(0o755)
    done = run([sys.executable, "setup.py", "build_ext"], tree, CXX=str(old))
    assert done.returncode == 1
    assert "is g++ 11" in done.stderr
    assert "install g++ 12" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("static_in", ("CXX", "LDFLAGS", "nothing"))
def test_build_with_a_static_runtime_stops_before_it_compiles(tree, tmp_path, static_in):
    flags = dict.fromkeys(("CXX", "LDFLAGS"), "") | {static_in: "-static-libstdc++ -static-libgcc"}
    wrapper, log = tmp_path / "g++", tmp_path / "log"
    # It compiles nothing of ours, so that no build takes longer than the check.
    refuse = 'case "$*" in *csrc*) exit 1;; esac'
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{log}\n{refuse}\nexec g++ {flags["CXX"]} "$@"\n')
    wrapper.chmod(0o755)
    environment = {"CXX": str(wrapper), "LDFLAGS": flags["LDFLAGS"], "TILEDMM_CUDA": "0"}
    done = run([sys.executable, "setup.py", "build_ext"], tree, **environment)
    assert done.returncode == 1
    assert "probe.cpp" in log.read_text()
    is_static = static_in != "nothing"
    assert ("csrc" in log.read_text()) != is_static
    assert (f"CXX={wrapper} links the C++ runtime statically" in done.stderr) == is_static
    assert ("CXX=/usr/bin/g++" in done.stderr and "Traceback" not in done.stderr) == is_static


def import_error(folder: Path) -> str:
    done = run([sys.executable, "-c", "import torch_tiledmm"], folder, PYTHONPATH=str(folder))
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def test_import_without_libraries_says_how_to_build(tree):
    message = import_error(tree)
    assert message.startswith("ImportError: torch_tiledmm is not built")
    assert "pip install --no-build-isolation" in message


def test_import_under_another_torch_says_how_to_build(tree):
    for name in ("_kernels.so", "_ops.so"):
        (tree / "torch_tiledmm" / name).symlink_to(PACKAGE / name)
    info = json.loads((PACKAGE / "_build_info.json").read_text())
    (tree / "torch_tiledmm" / "_build_info.json").write_text(json.dumps(info | {"torch_version": "2.11"}))
    message = import_error(tree)
    assert message.startswith("ImportError: torch_tiledmm was built for torch 2.11")
    assert torch.__version__ in message
    assert "pip install --no-build-isolation" in message
