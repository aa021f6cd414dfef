"""The tiles that `auto` chooses on AMD's chips beside those of Origami, AMD's analytical model (docs/amd_evidence.md).

python benchmarks/amd_tiles.py rocm_origami-0.0.3 FOLDER
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from torch_tiledmm.dispatch import explain
from torch_tiledmm.testing.shapes import SHAPES, gpu_shapes

BLOCKS = {"mfma": ("256x256", "128x128", "64x64", "32x32"), "wmma_rdna": ("128x128", "64x64", "32x64")}
# Compute units, bytes of LDS, KiB of second-level cache and kHz by the data sheets of csrc/dispatch/chips.cpp's GPUs.
CHIPS = {
    "gfx90a": (110, 64 << 10, 8192, 1_700_000),
    "gfx942": (304, 64 << 10, 4096, 2_100_000),
    "gfx950": (256, 160 << 10, 4096, 2_400_000),
    "gfx1100": (96, 64 << 10, 6144, 2_500_000),
    "gfx1201": (64, 64 << 10, 8192, 2_970_000),
}
# Reads problems, writes the least time of each block over its k tiles, matrix instructions and hints for caches.
PROGRAM = r"""
#include <cstdio>
#include <iostream>
#include <string>
#include "origami/gemm.hpp"
extern "C" hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t*, int) { return hipErrorUnknown; }
extern "C" const char* hipGetErrorString(hipError_t) { return "there is no device"; }
using namespace origami;
int main() {
  std::string chip;
  size_t cus, lds, cache, m, n, k, batch;
  int khz, has_a_t, has_b_t;
  while (std::cin >> chip >> cus >> lds >> cache >> khz >> m >> n >> k >> batch >> has_a_t >> has_b_t) {
    const auto hardware =
        hardware_t::get_hardware_for_arch(hardware_t::arch_name_to_enum(chip), cus, lds, cache, khz);
    problem_t p;
    p.size = {m, n, k}, p.batch = batch;
    p.a_transpose = has_a_t ? transpose_t::T : transpose_t::N;
    p.b_transpose = has_b_t ? transpose_t::T : transpose_t::N;
    p.a_dtype = p.b_dtype = p.c_dtype = p.d_dtype = p.mi_dtype = data_type_t::Half;
    for (size_t bm : {16, 32, 64, 128, 256}) for (size_t bn : {16, 32, 64, 128, 256}) {
      double best = 1e300;  // more means: refused
      for (size_t bk : {16, 32, 64, 128, 256}) for (int hints : {0, 1, 2})
        for (const dim3_t& mi : hardware.get_valid_matrix_instructions(p.mi_dtype)) {
          config_t c;
          c.mt = {bm, bn, bk}, c.mi = mi;
          c.occupancy = bm * bn > 16384 ? 1 : bm * bn > 4096 ? 2 : 4;
          c.cache_hints_a = hints == 1 ? 4 : 0, c.cache_hints_b = hints == 2 ? 4 : 0;
          const bool is_legal = mi.m <= bm && mi.n <= bn && mi.k <= bk;
          if (!is_legal || !check_lds_capacity(hardware, c.mt, p.a_dtype, p.b_dtype)) continue;
          best = std::min(best, compute_total_latency(p, hardware, c, hardware.N_CU));
        }
      if (best < 1e300) printf("%zux%zu=%.9g ", bn, bm, best);
    }
    puts("");
  }
}
"""


def predict(origami: Path, headers: Path, problems: list[str]) -> list[dict[str, float]]:
    """Clocks by Origami of every block for each problem."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "main.cpp").write_text(PROGRAM)
        program = f"{folder}/tiles"
        command = ["g++", "-std=c++20", "-O2", "-w", "-D__HIP_PLATFORM_AMD__", f"-I{origami}/include", f"-I{headers}"]
        subprocess.run([*command, f"{folder}/main.cpp", *origami.glob("src/**/*.cpp"), "-o", program], check=True)
        done = subprocess.run([program], input="\n".join(problems), check=True, stdout=subprocess.PIPE, text=True)
    pairs = ((item.split("=") for item in line.split()) for line in done.stdout.splitlines())
    return [{block: float(clocks) for block, clocks in line} for line in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("origami", type=Path, help="the unpacked source distribution of rocm-origami")
    parser.add_argument("headers", type=Path, help="the folder that has hip/hip_runtime.h")
    parser.add_argument("--all", action="store_true", help="print every shape, too")
    args = parser.parse_args()
    rows, problems = [], []
    shapes = {str(shape): shape for shape in (*gpu_shapes(), *SHAPES)}.values()
    for chip in CHIPS:
        for shape in shapes:
            layout = shape.layout
            found = explain(shape.m, shape.n, shape.k, "fp16", layout=layout, device=f"hip:{chip}", batch=shape.batch)
            chosen = next(one for one in found.candidates if one.algorithm == found.choice)
            if chosen.algorithm in BLOCKS:
                rows.append((chip, shape, chosen.config["block"], BLOCKS[chosen.algorithm]))
                # Origami's matrices are stored by columns: what it multiplies are our transposes, B first.
                sizes = f"{shape.n} {shape.m} {shape.k} {max(shape.batch, 1)}"
                transposed = f"{int(layout[1] == 'T')} {int(layout[0] == 'T')}"
                problems.append(f"{chip} {' '.join(map(str, CHIPS[chip]))} {sizes} {transposed}")
    ratios = defaultdict(list)
    for (chip, shape, block, blocks), clocks in zip(rows, predict(args.origami, args.headers, problems), strict=True):
        if block not in clocks:
            continue
        best = min(clocks, key=clocks.get)
        ours = min((one for one in blocks if one in clocks), key=clocks.get)
        row = (clocks[block] / clocks[best], clocks[block] / clocks[ours], f"{shape} {block}", best, ours)
        ratios[chip].append(row)
        if args.all:
            print(f"{chip:8} {row[0]:5.2f} {row[1]:5.2f} {shape.kind:12} {shape!s:24} {block:8} {best:8} {ours}")
    for chip, of_chip in ratios.items():
        for column, beside in enumerate(("all of Origami's", "the kernel's own")):
            values = [row[column] for row in of_chip]
            within = sum(value <= 1.1 for value in values) / len(values)
            worst = max(of_chip, key=lambda row: row[column])
            print(f"{chip} beside {beside}: {len(values)} shapes, median {statistics.median(values):.2f}, ", end="")
            print(f"{within:.0%} within 10 %, worst {worst[column]:.2f} ({worst[2]}, best {worst[3 + column]})")


if __name__ == "__main__":
    main()
