"""Which clang is here; what compiles entries, dispatch and the GPU's kernels for the host executor with sanitizers.

That is clang: it takes a third of the time of g++. CXX links its objects, with the runtime of its own sanitizers, as
Debian's clang comes without one. Both compilers have the names and versions of that runtime's functions in common.
Whether these two fit is tried out once; where they do not, CXX compiles, too. Kernels for CPUs stay with g++: what
clang makes of their vectors takes more than twice as long to run.
"""

import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

# Whether all device code is compiled, and run on every chip: CI has no time for that.
IS_WHOLE = os.environ.get("TILEDMM_DEVICE_CODE") == "1"
CXX = tuple(shlex.split(os.environ.get("CXX", "g++")))
PROBE = """int main(int argc, char**) {
  int* memory = new int[3]{};
  const int read = memory[argc + 1];
  delete[] memory;
  return read;
}
"""


def find_clang() -> str | None:
    return next((found for name in ("clang++-22", "clang++-21", "clang++-20") if (found := shutil.which(name))), None)


@functools.cache
def sanitizing_command() -> tuple[str, ...]:
    """Compiles for -fsanitize=address,undefined, or for one of them."""
    clang = find_clang()
    # A call through a pointer to a function of another type stops the program: the runtime of g++ has no words for it.
    command = (clang or "", "-fsanitize-trap=function")
    return command if clang and finds_bugs(command) else CXX


def finds_bugs(command: tuple[str, ...]) -> bool:
    """Whether a program compiled by the command and linked by CXX runs, and says so where it reads out of bounds."""
    sanitize = "-fsanitize=address,undefined"
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(PROBE)
        compile_it = [*command, "-O0", sanitize, "-fno-sanitize-recover=all", "-c", source, "-o", f"{program}.o"]
        link_it = [*CXX, sanitize, f"{program}.o", "-o", program]
        if any(subprocess.run(step, capture_output=True).returncode for step in (compile_it, link_it)):
            return False
        done = [subprocess.run([program, *bug], capture_output=True, text=True) for bug in ([], ["out of bounds"])]
        return done[0].returncode == 0 and "heap-buffer-overflow" in done[1].stderr
