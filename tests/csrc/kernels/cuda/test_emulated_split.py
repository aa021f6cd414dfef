"""Rung 15, wgmma_split, without a Hopper: its three kernels run on emulated copies, barriers and matrix instructions
(emulated_hopper/emulator.h), and every bit of C is that of a model of docs/numerics.md (emulated_split.cpp).

The mutants say that it can fail: terms, scales and flags, the order of sums, waits and stages. They are compiled with
the rest and switched on by an environment variable, as in ../gpu/test_host_execution.py.
"""

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG = "kernels/cuda/15_wgmma_split/"
# Numbers of cases in emulated_split.cpp.
ONE_TILE, MANY_TILES, WIDE, FLAGGED, MANY_CHUNKS, FEW_ROWS, FLAGGED_COLUMNS, CORRECTIONS = 0, 1, 3, 4, 5, 7, 12, 14
MANY_FLAGS, NUM_CASES = 16, 18
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    "second terms of one bit less": (
        "platform/split_terms.h",
        "constexpr float kFactor = 2048;",
        "const float kFactor = {on} ? 1024 : 2048;",
        ONE_TILE,
    ),
    "an element too small is not flagged": (
        "platform/split_terms.h",
        "return 2 * bits_of(x) - 1 <",
        "return !{on} && 2 * bits_of(x) - 1 <",
        FLAGGED,
    ),
    "two rows share a scale": (
        "platform/split_operands.h",
        "for (int step = 1; step < kSplitLanes; step *= 2)",
        "for (int step = 1; step < ({on} ? 2 : 1) * kSplitLanes; step *= 2)",
        WIDE,
    ),
    "the last block's flag is the chunk's": (
        "platform/split_operands.h",
        "is_flagged |= block.is_flagged;",
        "if ({on}) is_flagged = false;\n    is_flagged |= block.is_flagged;",
        FLAGGED,
    ),
    "columns' flags are not looked at": (
        "platform/fix_up.h",
        "b[i] = load(tile.flags_b, first + i * kStep);",
        "b[i] = {on} ? Vector16{} : load(tile.flags_b, first + i * kStep);",
        FLAGGED_COLUMNS,
    ),
    "flags of the first parts of k alone are looked for": (
        "platform/fix_up.h",
        "first < num_parts; first += kAtOnce",
        "first < num_parts; first += ({on} ? 1 << 20 : 0) + kAtOnce",
        MANY_FLAGS,
    ),
    "flags of the first part of k alone count": (
        "platform/fix_up.h",
        "any |= flags[part * padded_rows];",
        "if (part == 0 || !{on}) any |= flags[part * padded_rows];",
        FLAGGED,
    ),
    "the order of corrections is that of roles": (
        "few_rows.h",
        "(acc, IS_A ? taken.second : taken.first, IS_A ? first : second, true);\n"
        "    multiply_fragments<ROWS, 0, kSteps>(acc, IS_A ? taken.first : taken.second,"
        " IS_A ? second : first, false);",
        "(acc, IS_A != {on} ? taken.second : taken.first, IS_A != {on} ? first : second, true);\n"
        "    multiply_fragments<ROWS, 0, kSteps>(acc, IS_A != {on} ? taken.first : taken.second,"
        " IS_A != {on} ? second : first, false);",
        CORRECTIONS,
    ),
    "chunks of others are read before they are there": (
        "few_rows.h",
        "  cluster_sync();\n  const int log2_quads",
        "  if (!{on}) cluster_sync();\n  const int log2_quads",
        FEW_ROWS,
    ),
    "a warp's stage is filled while others read it": (
        "few_rows.h",
        "mbarrier_wait_parity(shared.empty + freed * 8,",
        "if (!{on}) mbarrier_wait_parity(shared.empty + freed * 8,",
        FEW_ROWS,
    ),
    "corrections in full size": ("kernel.h", "acc[i] *= 1.0f / 2048;", "acc[i] *= {on} ? 1 : 1.0f / 2048;", ONE_TILE),
    "both halves of the main products in one sum": (
        "kernel.h",
        "multiply_terms<kSplitSumK>(acc, a, b, true);",
        "multiply_terms<kSplitSumK>(acc, a, b, true);\n"
        "    if ({on}) multiply_terms<kSplitSumK>(acc, a + kSplitSumK / 8, b + kSplitSumK / 8, false);",
        ONE_TILE,
    ),
    "chunks of twice the length": (
        "kernel.h",
        "k_tile % kTilesOfChunk == 0",
        "k_tile % (({on} ? 2 : 1) * kTilesOfChunk) == 0",
        MANY_CHUNKS,
    ),
    "sums are read before they are there": (
        "kernel.h",
        "  load_scales(0);\n  wgmma_wait_group<0>();",
        "  load_scales(0);\n  if (!{on}) wgmma_wait_group<0>();",
        ONE_TILE,
    ),
    "terms are read before they are there": (
        "kernel.h",
        "mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);",
        "if (!{on}) mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);",
        MANY_TILES,
    ),
    "stages are filled while they are read": (
        "kernel.h",
        "mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);",
        "if (!{on}) mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);",
        MANY_TILES,
    ),
    "nobody begins": (
        "kernel.h",
        "if (consumer == 1) turns.pass();",
        "if (consumer == 1 && !{on}) turns.pass();",
        ONE_TILE,
    ),
}


program = emulation.program_fixture("emulated_split.cpp", RUNG, MUTANTS)


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    emulation.check_cases(program, NUM_CASES)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
