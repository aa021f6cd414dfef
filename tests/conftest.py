"""For all tests: every test starts from one seed and leaves the number of threads as it was.

What several tests need compiled is compiled once, in whichever of pytest-xdist's processes asks for it first.
"""

import os

# An idle thread of OpenMP sleeps. By default it spins until the next parallel loop: beside other processes on the same
# cores the sweeps then take ten times as long. Read when torch is imported, here and in the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hashlib  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
from pathlib import Path  # noqa: E402

import compilers  # noqa: E402
import device_sources  # noqa: E402
import gpu_objects
import pytest  # noqa: E402
import torch  # noqa: E402
from filelock import FileLock  # noqa: E402


@pytest.fixture(autouse=True)
def same_start():
    num_threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    if torch.get_num_threads() != num_threads:  # setting it starts the pool anew
        torch.set_num_threads(num_threads)
    torch.set_default_dtype(dtype)


@pytest.fixture(scope="session")
def num_jobs() -> int:
    """Compilations at a time, so that all processes of pytest-xdist together have one for each core."""
    return max(1, min(os.cpu_count() or 1, 8) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """built_once(name, build) -> the folder of this name, filled by build(folder) in whichever process came first."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def find(name: str, build) -> Path:
        folder, is_whole = base / name, base / f"{name}.is_whole"
        with FileLock(base / f"{name}.lock"):
            if not is_whole.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                build(folder)
                is_whole.touch()
        return folder

    return find


@pytest.fixture(scope="session")
def csrc_of_devices(built_once):
    """The sources that are compiled for devices: an edited copy of csrc, all of it on request."""
    if compilers.IS_WHOLE:
        return gpu_objects.CSRC

    def build(folder: Path) -> None:
        device_sources.copy_edited(gpu_objects.CSRC, folder, device_sources.EDITS)

    return built_once("csrc_of_devices", build) / "csrc"


@pytest.fixture(scope="session")
def amd_object(built_once, csrc_of_devices):
    """compile(arch, source, instance) -> the device code that clang makes of a rung, and its resource report."""
    clang = compilers.find_clang()
    if clang is None or not shutil.which(Path(clang).name.replace("clang++", "llvm-objdump")):
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang 20 or later with llvm-objdump")

    def compile_once(arch: str, source: Path, instance: int | None = None) -> tuple[Path, str]:
        one = gpu_objects.Source(source, instance)

        def build(folder: Path) -> None:
            command = [*gpu_objects.hip_command(clang, [arch], standalone=True, werror=True), "--cuda-device-only"]
            # AMD's own kernels choose layouts in the same way, and the tests execute all of them.
            is_of_ladder = source.is_relative_to(gpu_objects.CSRC / "kernels/gpu")
            csrc = csrc_of_devices if is_of_ladder else gpu_objects.CSRC
            own = csrc / source.relative_to(gpu_objects.CSRC) if is_of_ladder else source
            command += ["--no-gpu-bundle-output", "-Rpass-analysis=kernel-resource-usage", f"-I{csrc}"]
            command += [] if compilers.IS_WHOLE else device_sources.MACROS_FOR_AMD.get((arch, source.stem), [])
            done = subprocess.run(
                [*command, "-c", *one.arguments(own), "-o", folder / "code"], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            (folder / "report").write_text(done.stderr)

        # Files of one name are told apart by what is in them: those that tests write have another folder each time.
        folder = built_once(f"{one.name}.{hashlib.sha1(source.read_bytes()).hexdigest()[:8]}.{arch}", build)
        return folder / "code", (folder / "report").read_text()

    return compile_once


def pytest_collection_modifyitems(items):
    """What takes longest comes first: at the end no process of pytest-xdist waits for another.

    Of tests that have the same program built (takes_long("name"), and their warp size) the first one does it, before
    all others. The rest of them come behind all that takes long: beside it they would wait.
    """
    builds = set()

    def place(item) -> int:
        marker = item.get_closest_marker("takes_long")
        if marker is None:
            return 3
        if not marker.args:
            return 1
        build = (marker.args[0], getattr(item, "callspec", None) and item.callspec.params.get("warp_size"))
        is_first = build not in builds
        builds.add(build)
        return 0 if is_first else 2

    items.sort(key=place)
