"""Compiles a plain Triton matmul for AMD's chips, without a GPU, to compare its machine code with ours.

    python tests/amd/triton_peer.py FOLDER    # with triton 3.9.0; writes FOLDER/CHIP_DTYPE_TILE.co and .json

C = A B for row-major A (m, k), B (n, k) transposed, C (m, n), sizes that are multiples of the tile: no masks, under
which Triton's own schedules for AMD apply. evidence.py runs and counts what is written here.
"""

import json
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def peer_matmul(a, b, c, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    tiles_n = n // BLOCK_N
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    from_a = a + rows[:, None] * k + depth[None, :]
    from_b = b + cols[None, :] * k + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, k, BLOCK_K):
        acc = tl.dot(tl.load(from_a), tl.load(from_b), acc)
        from_a += BLOCK_K
        from_b += BLOCK_K
    tl.store(c + rows[:, None] * n + cols[None, :], acc.to(c.dtype.element_ty))


# Chip: lanes; block_m, block_n, block_k, warps of each tile. Two stages: three do not fit into gfx950's LDS.
TILES = {
    "gfx942": (64, [(256, 256, 64, 8), (128, 128, 64, 4)]),
    "gfx950": (64, [(256, 256, 64, 8), (128, 128, 64, 4)]),
    "gfx1100": (32, [(128, 128, 32, 4)]),
    "gfx1201": (32, [(128, 128, 32, 4)]),
}


def main(folder: Path) -> None:
    for chip, (lanes, tiles) in TILES.items():
        for block_m, block_n, block_k, warps in tiles:
            source = ASTSource(
                peer_matmul,
                signature={"a": "*fp16", "b": "*fp16", "c": "*fp16", "n": "i32", "k": "i32"}
                | dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_K"), "constexpr"),
                constexprs={"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k},
                attrs={
                    (i,): [["tt.divisibility", 16], *([["tt.pointer_range", 32]] if i < 3 else [])] for i in range(5)
                },
            )
            options = {"num_warps": warps, "num_stages": 2, "matrix_instr_nonkdim": 16}
            compiled = triton.compile(source, target=GPUTarget("hip", chip, lanes), options=options)
            name = f"{chip}_fp16_{block_m}x{block_n}x{block_k}"
            (folder / f"{name}.co").write_bytes(compiled.asm["hsaco"])
            sizes = {"shared_bytes": compiled.metadata.shared, "threads": warps * lanes}
            (folder / f"{name}.json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
