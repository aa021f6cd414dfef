"""Installing: wheel, source distribution, and what is said when something is missing.

Planted bugs that these checks caught: headers left out of MANIFEST.in, the rpath of _ops dropped, no look at the C++
runtime before the compilations, one at the flags of CXX alone; objects that are up to date whatever changed, or never;
no comparison of the two libraries' interfaces; a wheel for one Python.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import torch

import torch_tiledmm

ROOT = Path(__file__).parents[1]
PACKAGE = Path(torch_tiledmm.__file__).parent
SOURCES = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile"]
SOURCES += ["csrc", "torch_tiledmm", "tests", "tools", "docs"]
MINOR = ".".join(torch.__version__.split(".")[:2])
OPS = f"_ops_{MINOR}.so"
PYTHON_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
HAS_HEADERS = (Path(sysconfig.get_path("include")) / "Python.h").exists()
CALLS = f"_calls_{MINOR}{PYTHON_SUFFIX}"


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
    # In place of g++: what the build made of the same file is not compiled again. To unpack a wheel is to install it.
    wrapper, made = tmp_path / "g++", ROOT / "build" / "objects"
    wrapper.write_text(
        f"""#!/bin/sh
        for word; do
            case "$before" in -o) target=$word ;; -MF) depends=$word ;; esac
            case "$word" in {tree}/csrc/*.cpp) source=$word ;; esac
            before=$word
        done
        [ "$source" ] || exec g++ "$@"
        object={made}${{target#{tree}/build/objects}}
        [ "$object" -nt "{ROOT}${{source#{tree}}}" ] || exec g++ "$@"
        cp "$object" "$target" && echo "$target: $source" >"$depends"
        """
    )
    wrapper.chmod(0o755)
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
    done = run(command, tree, timeout=400, MAX_JOBS="2", CXX=str(wrapper), TILEDMM_CUDA="0")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("torch_tiledmm-*-py3-none-*.whl")
    assert not wheel.name.endswith("-any.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    held = {p.name for p in (site / "torch_tiledmm").iterdir()}
    assert {"_kernels.so", OPS, "_build_info.json", "py.typed"} <= held
    assert (CALLS in held) == HAS_HEADERS
    for library in (site / "torch_tiledmm" / name for name in ("_kernels.so", OPS)):  # they are for every Python
        names = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        assert " Py" not in names.stdout and " _Py" not in names.stdout
    code = """if True:
        import torch, torch_tiledmm, torch_tiledmm.testing
        print(torch_tiledmm.__file__)
        a, b = torch.randn(5, 7), torch.randn(7, 3)
        torch.testing.assert_close(torch_tiledmm.matmul(a, b), a @ b)
        print(torch_tiledmm.direct.is_here)
    """
    for is_here in dict.fromkeys([HAS_HEADERS, False]):
        done = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(site))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(site)) and done.stdout.split()[-1] == str(is_here)
        # As for another Python.
        (site / "torch_tiledmm" / CALLS).unlink(missing_ok=True)


def test_sdist_holds_all_that_a_build_needs(tree, tmp_path):
    done = run([sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)], tree, CXX="/nonexistent/g++")
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("torch_tiledmm-*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    suffixes = (".h", ".def", ".cpp", ".cu", ".py", ".toml", ".typed", ".md")
    needed = {str(p.relative_to(tree)) for p in tree.rglob("*") if p.suffix in suffixes}
    assert needed | {"LICENSE", "Makefile", "MANIFEST.in"} <= held
    assert not any(name.endswith(".so") for name in held)


def test_only_what_changed_is_compiled_again(tmp_path):
    spec = importlib.util.spec_from_file_location("gpu_objects", ROOT / "tools/gpu_objects.py")
    objects = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(objects)
    objects.CSRC = tmp_path
    (tmp_path / "shared.h").write_text("int shared();\n")
    (tmp_path / "used.h").write_text("int used();\n")
    sources = [objects.Source(tmp_path / name) for name in ("a.cpp", "b.cpp")]
    sources[0].path.write_text('#include "shared.h"\n#include "used.h"\nint used() { return 1; }\n')
    sources[1].path.write_text('#include "shared.h"\nint shared() { return 2; }\n')

    def made_anew(*flags: str) -> list[str]:
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "objects").glob("*")}
        (made,) = objects.compile_objects(
            [objects.Sources(sources, ["g++", "-fPIC", *flags], tmp_path / "objects")], 2, is_quiet=True
        )
        library = tmp_path / "objects" / "library.so"
        objects.link_library(["g++"], made, library)
        return sorted(
            path.name.split("_")[-1] for path in [*made, library] if before.get(path) != path.stat().st_mtime_ns
        )

    def change(name: str) -> None:
        os.utime(tmp_path / name)
        time.sleep(0.02)  # an object is to be newer than what it was made from

    assert made_anew() == ["a.cpp.o", "b.cpp.o", "library.so"]
    assert made_anew() == []
    change("used.h")
    assert made_anew() == ["a.cpp.o", "library.so"]
    change("shared.h")
    assert made_anew() == ["a.cpp.o", "b.cpp.o", "library.so"]
    change("b.cpp")
    assert made_anew() == ["b.cpp.o", "library.so"]
    assert made_anew("-DOTHER") == ["a.cpp.o", "b.cpp.o", "library.so"]
    (tmp_path / "used.h").unlink()
    with pytest.raises(RuntimeError, match="used.h"):
        made_anew("-DOTHER")
    (tmp_path / "used.h").write_text("int used();\n")
    time.sleep(0.02)
    assert made_anew("-DOTHER") == ["a.cpp.o", "library.so"]


def fake_torch(folder: Path, version: str) -> Path:
    """A torch that can be found, not imported."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise ImportError('no torch here')")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\nhip = None\n")
    return folder / "torch"


def test_the_operators_are_compiled_for_each_torch_that_is_given(tree, tmp_path):
    folders = [fake_torch(tmp_path / version, version) for version in ("2.13.1", "2.97.0+cu130")]
    # In place of g++: it makes empty files, and says of what it was asked to.
    log, wrapper = tmp_path / "log", tmp_path / "g++"
    wrapper.write_text(
        f'#!/bin/sh\necho "$@" >>{log}\ncase "$*" in *probe*) exec g++ "$@";; esac\n'
        'while [ $# -gt 0 ]; do case "$1" in -o) : >"$2";; -MF) echo "x: $0" >"$2";; esac; shift; done\n'
    )
    wrapper.chmod(0o755)
    environment = {"CXX": str(wrapper), "TILEDMM_CUDA": "0", "TILEDMM_TORCHES": ":".join(map(str, folders))}
    done = run([sys.executable, "setup.py", "build_ext", "--inplace"], tree, **environment)
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (tree / "torch_tiledmm").glob("*.so")}
    calls = {f"_calls_{minor}{PYTHON_SUFFIX}" for minor in ("2.13", "2.97") if HAS_HEADERS}
    assert made == {"_kernels.so", "_ops_2.13.so", "_ops_2.97.so"} | calls
    assert json.loads((tree / "torch_tiledmm" / "_build_info.json").read_text())["torch_versions"] == ["2.13", "2.97"]
    lines = log.read_text().splitlines()
    for folder, version in zip(folders, ("2.13.1", "2.97.0+cu130"), strict=True):
        of_torch = [line for line in lines if f"-isystem{folder}/include" in line]
        assert len(of_torch) == len(list((tree / "csrc" / "torch").glob("*.cpp"))) + HAS_HEADERS
        assert all(f'-DTILEDMM_TORCH="{version}"' in line for line in of_torch)
    assert sum("rung.cpp" in line and " -c " in line for line in lines) == len(list(tree.glob("csrc/**/rung.cpp")))
    # On a machine without Python's headers.
    code = """if True:
        import runpy, sys, sysconfig
        get_path = sysconfig.get_path
        sysconfig.get_path = lambda name, *rest: "/none" if "include" in name else get_path(name, *rest)
        sys.argv = ["setup.py", "build_ext", "--inplace"]
        runpy.run_path("setup.py", run_name="__main__")
    """
    done = run([sys.executable, "-c", code], tree, **environment)
    assert done.returncode == 0, done.stderr
    assert "calls  by torch.ops: there is no Python.h" in done.stdout
    made = {path.name for path in (tree / "torch_tiledmm").glob("*.so")}
    assert made == {"_kernels.so", "_ops_2.13.so", "_ops_2.97.so"}


def test_a_build_with_pythons_headers_has_direct_calls():
    assert torch_tiledmm.direct.is_here == HAS_HEADERS


def test_build_without_torch_says_what_to_do(tree, tmp_path):
    # A path on which there is no torch, with setuptools alone.
    site = tmp_path / "site"
    site.mkdir()
    for name in ("setuptools", "pkg_resources", "_distutils_hack"):
        if found := importlib.util.find_spec(name):
            (site / name).symlink_to(Path(found.origin).parent)
    done = run([sys.executable, "-S", "setup.py", "build_ext"], tree, PYTHONPATH=str(site))
    assert done.returncode == 1
    assert "the build needs torch" in done.stderr
    assert "pip install --no-build-isolation ." in done.stderr
    assert "Traceback" not in done.stderr


def test_build_with_an_old_torch_says_so(tree, tmp_path):
    done = run([sys.executable, "setup.py", "build_ext"], tree, PYTHONPATH=str(fake_torch(tmp_path, "2.4.1").parent))
    assert done.returncode == 1
    assert "torch 2.4.1 is too old" in done.stderr
    assert "install torch >= 2.11" in done.stderr


def test_build_with_an_old_setuptools_says_so(tree, tmp_path):
    (tmp_path / "setuptools").mkdir()
    (tmp_path / "setuptools" / "__init__.py").write_text("__version__ = '65.5.0'\nExtension = setup = None\n")
    (tmp_path / "setuptools" / "command").mkdir()
    (tmp_path / "setuptools" / "command" / "build_ext.py").write_text("build_ext = None\n")
    done = run([sys.executable, "setup.py", "build_ext"], tree, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "setuptools 65.5.0 is too old" in done.stderr and "pip install 'setuptools>=77'" in done.stderr
    assert "Traceback" not in done.stderr


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


def with_libraries(tree: Path, *names: str) -> Path:
    """The tree's package, with some of this package's libraries."""
    for name in names:
        shutil.copy2(PACKAGE / name, tree / "torch_tiledmm")
    return tree / "torch_tiledmm"


def test_import_under_another_torch_says_how_to_build(tree):
    package = with_libraries(tree, "_kernels.so", OPS)
    info = json.loads((PACKAGE / "_build_info.json").read_text())
    (package / "_build_info.json").write_text(json.dumps(info | {"torch_versions": ["2.3", "2.4"]}))
    message = import_error(tree)
    assert message.startswith("ImportError: torch_tiledmm was built for torch 2.3, 2.4")
    assert torch.__version__ in message
    assert "pip install --no-build-isolation" in message


def test_import_without_one_of_the_libraries_says_which(tree):
    with_libraries(tree, "_build_info.json", "_kernels.so")
    message = import_error(tree)
    assert message.startswith("ImportError: torch_tiledmm is not whole") and f"{OPS} is missing" in message
    assert "pip install --no-build-isolation" in message


def test_libraries_of_different_interfaces_are_refused(tree, tmp_path):
    package = with_libraries(tree, "_build_info.json", OPS)
    names = subprocess.run(["nm", "-D", "--undefined-only", PACKAGE / OPS], capture_output=True, text=True, check=True)
    functions = {word for word in names.stdout.split() if word.startswith("tiledmm_")} - {"tiledmm_abi_version"}
    other = "".join(f"void {name}() {{}}\n" for name in sorted(functions))
    (tmp_path / "other.c").write_text(f"{other}int tiledmm_abi_version() {{ return -5; }}\n")
    command = ["g++", "-x", "c", "-shared", "-fPIC", tmp_path / "other.c", "-o", package / "_kernels.so"]
    subprocess.run(command, check=True)
    message = import_error(tree)
    assert message.startswith("ImportError") and "has version -5" in message
    assert "pip install --no-build-isolation" in message


def test_host_executor_without_a_compiler_says_what_to_do(tmp_path):
    code = "import torch\nfrom torch_tiledmm import host_gpu\n"
    code += "host_gpu.matmul(torch.ones(2, 2), torch.ones(2, 2), algorithm='naive')"
    done = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(ROOT), CXX="/nonexistent/g++")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: there is no C++ compiler '/nonexistent/g++'") and "apt install g++" in last
