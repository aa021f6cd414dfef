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
MANY_FLAGS, GROWING, LATE, NUM_CASES = 16, 18, 19, 23
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
        "|| is_below(nonzero, exponent - kSplitRange)",
        "|| (!{on} && is_below(nonzero, exponent - kSplitRange))",
        FLAGGED,
    ),
    "two rows share a scale": (
        "platform/split_operands.h",
        "for (int step = 1; step < LANES; step *= 2)",
        "for (int step = 1; step < ({on} ? 2 : 1) * LANES; step *= 2)",
        WIDE,
    ),
    "a scale is that of the chunk's first block": (
        "platform/split_operands.h",
        "largest = larger_of(largest, magnitude(x[block][i]));",
        "if (block == 0 || !{on}) largest = larger_of(largest, magnitude(x[block][i]));",
        WIDE,
    ),
    "a flag is that of the chunk's last block": (
        "platform/split_operands.h",
        "smallest = smaller_of(smallest, ",
        "smallest = smaller_of({on} && i == 0 ? ~0u : smallest, ",
        FLAGGED,
    ),
    "threads read a tile before it is there": (
        "platform/split_operands.h",
        "      block_barrier();\n",
        "      if (!{on}) block_barrier();\n",
        MANY_TILES,
    ),
    "columns' flags are not looked at": (
        "platform/fix_up.h",
        "b[i] = load(tile.flags_b, first + i * kStep);",
        "b[i] = {on} ? Vector16{} : load(tile.flags_b, first + i * kStep);",
        FLAGGED_COLUMNS,
    ),
    "flags of the first chunks alone are looked for": (
        "platform/fix_up.h",
        "first < tile.num_chunks; first += kAtOnce",
        "first < tile.num_chunks; first += ({on} ? 1 << 20 : 0) + kAtOnce",
        MANY_FLAGS,
    ),
    "flags of the first chunk alone count": (
        "platform/fix_up.h",
        "any |= flags[int64_t(chunk) * own.padded_rows];",
        "if (chunk == 0 || !{on}) any |= flags[int64_t(chunk) * own.padded_rows];",
        FLAGGED,
    ),
    "the order of corrections is that of roles": (
        "few_rows.h",
        "IS_A ? fragments.second : fragments.first,\n"
        "                                            IS_A ? first : second, is_first);\n"
        "        multiply_fragments<ROWS, 0, kSteps>(corrections, IS_A ? fragments.first : fragments.second,\n"
        "                                            IS_A ? second : first, false);",
        "IS_A != {on} ? fragments.second : fragments.first,\n"
        "                                            IS_A != {on} ? first : second, is_first);\n"
        "        multiply_fragments<ROWS, 0, kSteps>(corrections, IS_A != {on} ? fragments.first : fragments.second,\n"
        "                                            IS_A != {on} ? second : first, false);",
        CORRECTIONS,
    ),
    "corrections keep the scale that they had": (
        "few_rows.h",
        "if (!is_first) scale_rows(corrections, fragments.ratio);",
        "if (!is_first && !{on}) scale_rows(corrections, fragments.ratio);",
        GROWING,
    ),
    "sums keep the scale that they had": (
        "few_rows.h",
        "__fmaf_rn(chunk[j], fragments.ratio[j / 2 % 2], acc[j])",
        "__fmaf_rn(chunk[j], {on} ? 1 : fragments.ratio[j / 2 % 2], acc[j])",
        GROWING,
    ),
    "no chunk is computed again": (
        "few_rows.h",
        "if (!__syncthreads_or(of_chunk.is_inexact)) break;",
        "if (!__syncthreads_or(of_chunk.is_inexact) || {on}) break;",
        LATE,
    ),
    "a chunk is computed again in other stages": (
        "few_rows.h",
        "i < next_tile || ring.stage != first_stage;",
        "i < next_tile || (ring.stage != first_stage && !{on});",
        LATE,
    ),
    "what is on its way is taken for the chunk's start": (
        "few_rows.h",
        "      for (int i = end; i < next_tile ||",
        "      for (int i = {on} ? next_tile : end; i < next_tile ||",
        LATE,
    ),
    "chunks of others are read before they are there": (
        "few_rows.h",
        "  cluster_sync();\n  const int log2_quads",
        "  if (!{on}) cluster_sync();\n  const int log2_quads",
        FEW_ROWS,
    ),
    "a warp's stage is filled while others read it": (
        "few_rows.h",
        "mbarrier_wait_parity(shared.empty + filled.stage * 8,",
        "if (!{on}) mbarrier_wait_parity(shared.empty + filled.stage * 8,",
        FEW_ROWS,
    ),
    "corrections in full size": (
        "scale_chunk.h",
        "__fmaf_rn(corrections[i], 1.0f / 2048, sums[i])",
        "__fmaf_rn(corrections[i], {on} ? 1 : 1.0f / 2048, sums[i])",
        ONE_TILE,
    ),
    "both halves of the main products in one sum": (
        "kernel.h",
        "multiply_terms<kSplitSumK>(acc, first_a + first, first_b + first, true);",
        "multiply_terms<kSplitSumK>(acc, first_a + first, first_b + first, true);\n"
        "        if ({on}) multiply_terms<kSplitSumK>(acc, first_a + first + kHalf, first_b + first + kHalf, false);",
        ONE_TILE,
    ),
    "corrections of the first block alone": (
        "kernel.h",
        "first_b + first, is_first);",
        "first_b + first, is_first || {on});",
        ONE_TILE,
    ),
    "chunks of twice the length": (
        "kernel.h",
        "min(k_tile + kBlocksOfChunk, at.num_k_tiles)",
        "min(k_tile + ({on} ? 2 : 1) * kBlocksOfChunk, at.num_k_tiles)",
        MANY_CHUNKS,
    ),
    "the total is that of the last two chunks": (
        "kernel.h",
        "chunk[i] += sums[i * kWarpgroup];",
        "chunk[i] += {on} && k_tile > 2 * kBlocksOfChunk ? 0 : sums[i * kWarpgroup];",
        MANY_CHUNKS,
    ),
    "sums are read before they are there": (
        "kernel.h",
        "        wgmma_wait_group<1>();\n        fence_registers(acc);\n        add(chunk, acc);\n        if (previous",
        "        if (!{on}) wgmma_wait_group<1>();\n        fence_registers(acc);\n        add(chunk, acc);\n"
        "        if (previous",
        MANY_CHUNKS,
    ),
    "corrections are read before they are there": (
        "kernel.h",
        "      wgmma_wait_group<0>();\n      fence_registers(corrections);",
        "      if (!{on}) wgmma_wait_group<0>();\n      fence_registers(corrections);",
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
    "a pair's stages are filled while the other block reads them": (
        "kernel.h",
        "4 * Cfg::kConsumers * (1 + args.tiles.cluster_m));",
        "4 * Cfg::kConsumers * (1 + (args.tiles.cluster_m && !{on})));",
        MANY_TILES,
    ),
    "stages are free before they are multiplied": (
        "kernel.h",
        "if (previous >= 0) release(previous);\n        previous = stage;",
        "if (previous >= 0 && !{on}) release(previous);\n        if ({on}) release(stage);\n        previous = stage;",
        MANY_CHUNKS,
    ),
}


program = emulation.program_fixture("emulated_split.cpp", RUNG, MUTANTS)


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    emulation.check_cases(program, NUM_CASES)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
