"""matmul against torch and numpy over the table of shapes, arms interleaved in one process. For example:

    python benchmarks/bench_matmul.py --dtype bf16 --json benchmarks/results/amd_epyc_2_cores/matmul_bf16.json
    python benchmarks/bench_matmul.py --rows square,8x64x64x64:NT --threads 1 --algorithm block_tiled

The arms, the peaks and the columns are described in torch_tiledmm/testing/bench.py.
"""

import argparse

import torch_tiledmm  # noqa: F401  registers the ops
from torch_tiledmm.testing.bench import add_matmul_arguments, run_matmul


def main() -> None:
    parser = argparse.ArgumentParser(description="matmul against torch and numpy over the table of shapes")
    add_matmul_arguments(parser, default_rows="all")
    try:
        run_matmul(parser.parse_args())
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
