"""wgmma_fp8_grouped without a Hopper: its kernels run on emulated copies, barriers and matrix instructions, which lose
of sums what Hopper's lose (emulated_hopper/emulator.h). Every bit of C, and of what lies around it, is that of the
model of wgmma_fp8, group by group (emulated_fp8_grouped.cpp).

The mutants say that it can fail: factors of another group or of other rows, what is read and stored beyond a group,
copies of the Bs of all groups. Those of the walk through groups are in test_emulated_grouped.py, those of the main loop
in test_emulated_fp8.py. They are compiled with the rest and switched on by an environment variable.
"""

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG, SHARED = "kernels/cuda/wgmma/", "kernels/cuda/shared/"
# Numbers of cases in emulated_fp8_grouped.cpp.
ROWS, LARGE, MANY, COPIED, BANDS, PAIRS, NARROW, NARROW_BLOCKS, PARTS, NO_ROWS, ONE_GROUP = range(11)
WIDE, WIDE_ODD, MIXED, E5M2, INVALID, NUM_CASES = range(11, 17)
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    # Factors.
    "all groups have the factors of the first B": (
        "grouped.h",
        "at.scales_b = tile.group *",
        "at.scales_b = {on} ? 0 : tile.group *",
        PAIRS,
    ),
    "columns have the factors of the first group": (
        "fp8.h",
        "at.scales_b + own_col",
        "({on} ? 0 : at.scales_b) + own_col",
        ROWS,
    ),
    "blocks have the factors of the first group": (
        "fp8.h",
        "0) + at.scales_b;",
        "0) + ({on} ? 0 : at.scales_b);",
        LARGE,
    ),
    "a group has the factors of the one behind it": (
        "grouped.h",
        "tile.group * args.scale_b.stride_group",
        "min(tile.group + {on}, args.batch[0].size - 1) * args.scale_b.stride_group",
        PAIRS,
    ),
    "a tile that begins early has the factors of the rows behind": (
        "grouped.h",
        "at.row = tile.row,",
        "at.row = {on} ? tile.new_row : tile.row,",
        ROWS,
    ),
    "rows have the factors of A's first": (
        "fp8.h",
        "shared.c, at.row +",
        "shared.c, ({on} ? 0 : at.row) +",
        LARGE,
    ),
    "factors of rows behind A are read": (
        "fp8.h",
        "row_at(own), args.m - 1)",
        "row_at(own), {on} ? INT32_MAX : args.m - 1)",
        MANY,
    ),
    "tiles begin early, within a block of factors": (
        "grouped.h",
        "args.last_col = Cfg::kIsScaled ?",
        "args.last_col = Cfg::kIsScaled && !{on} ?",
        LARGE,
    ),
    # Groups.
    "all groups have the first B": ("grouped.h", "item_b = tile.group *", "item_b = {on} ? 0 : tile.group *", ROWS),
    "all groups have the first bias": (
        "grouped.h",
        "args, shared.c, consumer, tile.group,",
        "args, shared.c, consumer, {on} ? 0 : tile.group,",
        ROWS,
    ),
    "rows of no group get a bias": ("grouped.h", "    if (tile.behind)\n", "    if (tile.behind && !{on})\n", ROWS),
    "a narrow tile stores the next group's rows": (
        SHARED + "epilogue.h",
        "is_inside = i < (IS_CUT ? end_row : args.m);",
        "is_inside = i < (IS_CUT && !{on} ? end_row : args.m);",
        WIDE,
    ),
    "fp32 is stored beyond C": (
        SHARED + "epilogue.h",
        "if (first_col + j + 1 < args.n) to[own_col + j + 1]",
        "if ({on} || first_col + j + 1 < args.n) to[own_col + j + 1]",
        WIDE_ODD,
    ),
    "columns' factors take the place of what is stored": (
        "fp8.h",
        "if (thread == 0) cp_async_bulk_wait_group_read<0>();",
        "if (thread == 0 && !{on}) cp_async_bulk_wait_group_read<0>();",
        BANDS,
    ),
    # Copies.
    "all groups' copies are the first B's": (
        SHARED + "copy_operands.h",
        "job.from + job.batch.offset(item) + first_line",
        "job.from + ({on} ? 0 : job.batch.offset(item)) + first_line",
        COPIED,
    ),
    "copies lie on top of each other": (
        SHARED + "copy_operands.h",
        "job.to + item * job.outer * job.ld",
        "job.to + ({on} ? 0 : item) * job.outer * job.ld",
        COPIED,
    ),
}

program = emulation.program_fixture("emulated_fp8_grouped.cpp", RUNG, MUTANTS)


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    emulation.check_cases(program, NUM_CASES)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
