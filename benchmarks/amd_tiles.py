"""The tiles that `auto` chooses on AMD's chips beside those of Origami, AMD's analytical model (docs/amd_evidence.md).

python benchmarks/amd_tiles.py rocm_origami-0.0.3 FOLDER
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from torch_tiledmm.dispatch import explain
from torch_tiledmm.testing.shapes import SHAPES, Shape, gpu_shapes

BLOCKS = {"mfma": ("256x256", "128x128", "64x64", "32x32"), "wmma_rdna": ("128x128", "64x64", "32x64")}
# Loads that not all blocks have: how explain() names them, and the block that is left out.
LEFT_OUT = {"odd rows": "256x256", "by element": "32x64"}
START_US = {"mfma": 5.8, "wmma_rdna": 4}  # of a kernel, as in plan.h
# Compute units, bytes of LDS, KiB of second-level cache and kHz by the data sheets of csrc/dispatch/chips.cpp's GPUs.
CHIPS = {
    "gfx90a": (110, 64 << 10, 8192, 1_700_000),
    "gfx942": (304, 64 << 10, 4096, 2_100_000),
    "gfx950": (256, 160 << 10, 4096, 2_400_000),
    "gfx1100": (96, 64 << 10, 6144, 2_500_000),
    "gfx1201": (64, 64 << 10, 8192, 2_970_000),
}
# Reads problems, writes for each block the least time over its k tiles, matrix instructions and hints for caches: with
# Origami's split of k, and where k is computed as a whole or in our chunks.
PROGRAM = r"""
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include "origami/gemm.hpp"
extern "C" hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t*, int) { return hipErrorUnknown; }
extern "C" const char* hipGetErrorString(hipError_t) { return "there is no device"; }
using namespace origami;
int main() {
  std::string chip;
  size_t cus, lds, cache, m, n, k, batch, chunks;
  int khz, has_a_t, has_b_t;
  while (std::cin >> chip >> cus >> lds >> cache >> khz >> m >> n >> k >> batch >> has_a_t >> has_b_t >> chunks) {
    const auto hardware =
        hardware_t::get_hardware_for_arch(hardware_t::arch_name_to_enum(chip), cus, lds, cache, khz);
    problem_t p;
    p.size = {m, n, k}, p.batch = batch;
    p.a_transpose = has_a_t ? transpose_t::T : transpose_t::N;
    p.b_transpose = has_b_t ? transpose_t::T : transpose_t::N;
    p.a_dtype = p.b_dtype = p.c_dtype = p.d_dtype = p.mi_dtype = data_type_t::Half;
    for (size_t bm : {16, 32, 64, 128, 256}) for (size_t bn : {16, 32, 64, 128, 256}) {
      double best = 1e300, best_ours = 1e300;  // more means: refused
      for (size_t bk : {16, 32, 64, 128, 256}) for (int hints : {0, 1, 2})
        for (const dim3_t& mi : hardware.get_valid_matrix_instructions(p.mi_dtype)) {
          config_t c;
          c.mt = {bm, bn, bk}, c.mi = mi;
          c.occupancy = bm * bn > 16384 ? 1 : bm * bn > 4096 ? 2 : 4;
          c.cache_hints_a = hints == 1 ? 4 : 0, c.cache_hints_b = hints == 2 ? 4 : 0;
          const bool is_legal = mi.m <= bm && mi.n <= bn && mi.k <= bk;
          if (!is_legal || !check_lds_capacity(hardware, c.mt, p.a_dtype, p.b_dtype)) continue;
          const double clocks = compute_total_latency(p, hardware, c, hardware.N_CU);
          if (clocks >= 1e300) continue;
          best = std::min(best, clocks);
          c.workgroup_mapping =  // as compute_total_latency has it
              batch > 1 ? 1 : std::max(1, int(std::ceil(std::sqrt(hardware.N_CU / hardware.NUM_XCD))));
          for (size_t splits : {size_t(1), chunks}) {
            const auto [groups, active_cus, rounds, split] =
                compute_cu_occupancy(p, hardware, c, c.grid_selection, hardware.N_CU, splits);
            best_ours = std::min(best_ours, rounds * compute_timestep_latency(p, hardware, c, active_cus, split));
          }
        }
      if (best < 1e300) printf("%zux%zu=%.9g=%.9g ", bn, bm, best, best_ours);
    }
    puts("");
  }
}
"""


def predict(origami: Path, headers: Path, problems: list[str]) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Clocks by Origami of every block for each problem: with k split as it likes, and as we do."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "main.cpp").write_text(PROGRAM)
        program = f"{folder}/tiles"
        command = ["g++", "-std=c++20", "-O2", "-w", "-D__HIP_PLATFORM_AMD__", f"-I{origami}/include", f"-I{headers}"]
        subprocess.run([*command, f"{folder}/main.cpp", *origami.glob("src/**/*.cpp"), "-o", program], check=True)
        done = subprocess.run([program], input="\n".join(problems), check=True, stdout=subprocess.PIPE, text=True)
    lines = [[item.split("=") for item in line.split()] for line in done.stdout.splitlines()]
    return [tuple({item[0]: float(item[column]) for item in line} for column in (1, 2)) for line in lines]


@dataclass
class Row:
    """A shape on a chip: the block that `auto` chooses, and Origami's clocks of all."""

    chip: str
    shape: Shape
    rung: str
    block: str
    loads: str
    chunks: int

    def problem(self) -> str:
        """Origami's matrices are stored by columns: what it multiplies are our transposes, B first."""
        shape = self.shape
        sizes = f"{shape.n} {shape.m} {shape.k} {max(shape.batch, 1)}"
        transposed = f"{int(shape.layout[1] == 'T')} {int(shape.layout[0] == 'T')}"
        return f"{self.chip} {' '.join(map(str, CHIPS[self.chip]))} {sizes} {transposed} {self.chunks}"

    def judge(self, free: dict[str, float], split: dict[str, float]) -> None:
        """Sets the time over that of the best block, of all and of the kernel's own, and the reason if it is not within
        10 % of the best of all: what has to be counted, one after the other, until it is."""
        start = START_US[self.rung] * CHIPS[self.chip][-1] / 1000
        own = {block: clocks for block, clocks in split.items() if block in BLOCKS[self.rung]}
        steps = {
            "": (free, 0),
            "start": (free, start),
            "split": (split, start),
            "no such block": (own, start),
            "loads": ({block: clocks for block, clocks in own.items() if block != LEFT_OUT.get(self.loads)}, start),
        }
        self.best = min(free, key=free.get)
        self.best_own = min((block for block in free if block in BLOCKS[self.rung]), key=free.get)
        self.ratio, self.ratio_own = (free[self.block] / free[best] for best in (self.best, self.best_own))
        reasons = (
            reason for reason, (of, more) in steps.items() if of[self.block] + more <= 1.1 * (min(of.values()) + more)
        )
        self.reason = next(reasons, "cost model")


def rows_of(chip: str) -> list[Row]:
    rows = []
    for shape in {str(shape): shape for shape in (*gpu_shapes(), *SHAPES)}.values():
        found = explain(shape.m, shape.n, shape.k, "fp16", layout=shape.layout, device=f"hip:{chip}", batch=shape.batch)
        chosen = next(one for one in found.candidates if one.algorithm == found.choice)
        if chosen.algorithm in BLOCKS:
            config = chosen.config
            rows.append(
                Row(chip, shape, chosen.algorithm, config["block"], config.get("loads", "wide"), config["chunks"])
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("origami", type=Path, help="the unpacked source distribution of rocm-origami")
    parser.add_argument("headers", type=Path, help="the folder that has hip/hip_runtime.h")
    parser.add_argument("--all", action="store_true", help="print every shape, too")
    args = parser.parse_args()
    rows = [row for chip in CHIPS for row in rows_of(chip)]
    predicted = predict(args.origami, args.headers, [row.problem() for row in rows])
    of_chips = defaultdict(list)
    for row, (free, split) in zip(rows, predicted, strict=True):
        if row.block not in free:
            continue
        row.judge(free, split)
        of_chips[row.chip].append(row)
        if args.all:
            what = f"{row.shape.kind:12} {row.shape!s:24} {row.block:8} {row.best:8} {row.best_own:8}"
            print(f"{row.chip:8} {row.ratio:5.2f} {row.ratio_own:5.2f} {what} {row.reason}")
    for chip, found in of_chips.items():
        for name, column, best in (
            ("all of Origami's", "ratio", "best"),
            ("the kernel's own", "ratio_own", "best_own"),
        ):
            values = [getattr(row, column) for row in found]
            within = sum(value <= 1.1 for value in values) / len(values)
            worst = max(found, key=lambda row: getattr(row, column))
            print(f"{chip} beside {name}: {len(values)} shapes, median {statistics.median(values):.2f}, ", end="")
            print(f"{within:.0%} within 10 %, ", end="")
            print(f"worst {max(values):.2f} ({worst.shape} {worst.block}, best {getattr(worst, best)})")
        reasons = Counter(row.reason for row in found if row.reason)
        print(f"{chip} not within 10 %: {', '.join(f'{reason} {count}' for reason, count in reasons.items())}")


if __name__ == "__main__":
    main()
