"""Main loops of machine code for AMD's chips, executed, counted and modelled without a GPU (docs/amd_evidence.md).

python benchmarks/amd_loops.py --chips gfx942 --rungs mma_output_cached
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from amd_interpreter.evidence import main  # noqa: E402

if __name__ == "__main__":
    main()
