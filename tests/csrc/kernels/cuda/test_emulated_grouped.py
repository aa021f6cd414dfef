"""wgmma_grouped without a Hopper: its kernels run on emulated copies, barriers and matrix instructions
(emulated_hopper/emulator.h). Every bit of C, and of what lies around it, is that of a model of docs/numerics.md
(emulated_grouped.cpp).

The mutants say that it can fail: the search for a group, a group's edges, what is stored of its last tile, the rows of
k that belong to the next group. They are compiled with the rest and switched on by an environment variable.
"""

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG = "kernels/cuda/wgmma/"
# Numbers of cases in emulated_grouped.cpp.
ROWS, LARGE, MANY, CHUNKS, COPIED, BANDS, EARLY, PAIRS, NO_ROWS, ONE_GROUP = range(10)
GATED, GATED_F16, LAYER, LAYER_CHUNKS, GATED_NARROW, KEPT_GATED, KEPT_NARROW, KEPT, KEPT_ONE = range(10, 19)
OF_K, OF_K_F16, OF_K_COPIED, INVALID, INVALID_K, NUM_CASES = range(19, 25)
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    "a row of tiles belongs to the group before it": (
        "grouped.h",
        "row - cursor.first_row < end);",
        "row - cursor.first_row < end + {on});",
        LARGE,
    ),
    "more groups than lanes begin anew": (
        "grouped.h",
        "cursor.first_row = min(cursor.first_row +",
        "cursor.first_row = {on} ? 0 : min(cursor.first_row +",
        MANY,
    ),
    "a group begins where the one before it begins": (
        "grouped.h",
        "group == 0 ? 0 : groups.ends[group - 1];",
        "group == 0 ? 0 : groups.ends[group - 1 - ({on} && group > 1)];",
        ROWS,
    ),
    "a group's tiles are counted without its last": (
        "grouped.h",
        "(int(range.end - range.begin) + BLOCK_M - 1) / BLOCK_M;\n  ",
        "(int(range.end - range.begin) + ({on} ? 0 : BLOCK_M - 1)) / BLOCK_M;\n  ",
        ROWS,
    ),
    "rows behind the last group are left as they were": (
        "grouped.h",
        "if (group <= groups.num_groups) {",
        "if (group < groups.num_groups + !{on}) {",
        ROWS,
    ),
    "a group's last tile begins in the group before it": (
        "grouped.h",
        "max(begin, end - Cfg::kBlockM)",
        "max({on} ? 0 : begin, end - Cfg::kBlockM)",
        LARGE,
    ),
    "a group's last rows are stored with the next group's": (
        "kernels/cuda/shared/epilogue.h",
        "(!IS_CUT || row + 64 <= end_row)",
        "(!IS_CUT || {on} || row + 64 <= end_row)",
        MANY,
    ),
    "threads fill a buffer that is stored": (
        "kernels/cuda/shared/epilogue.h",
        "if (thread == 0) cp_async_bulk_wait_group_read<0>();  // what the",
        "if (thread == 0 && !{on}) cp_async_bulk_wait_group_read<0>();  // what the",
        ROWS,
    ),
    "a narrow tile stores the next group's rows": (
        "kernels/cuda/shared/epilogue.h",
        "is_inside = i < (IS_CUT ? end_row : args.m);",
        "is_inside = i < (IS_CUT && !{on} ? end_row : args.m);",
        GATED_NARROW,
    ),
    "threads store the next group's rows": (
        "kernels/cuda/shared/epilogue.h",
        "min((IS_CUT ? end_row : args.m) - row, kRows);",
        "min((IS_CUT && !{on} ? end_row : args.m) - row, kRows);",
        MANY,
    ),
    "rows of A in the last box are left out": (
        "grouped.h",
        "(min(tile.end_row - tile.row, Cfg::kBlockM) + args.a.rows - 1)",
        "(min(tile.end_row - tile.row, Cfg::kBlockM) + ({on} ? 0 : args.a.rows - 1))",
        LARGE,
    ),
    "all groups have the first B": (
        "grouped.h",
        "item_b = tile.group *",
        "item_b = {on} ? 0 : tile.group *",
        ROWS,
    ),
    "all groups have the first bias": (
        "grouped.h",
        "finish_block_tile<Out>(acc.c, bias, args, shared.c, consumer, tile.group,",
        "finish_block_tile<Out>(acc.c, bias, args, shared.c, consumer, {on} ? 0 : tile.group,",
        MANY,
    ),
    "bands have the first one's rows": (
        "grouped.h",
        "first = band * groups.band;",
        "first = {on} ? 0 : band * groups.band;",
        BANDS,
    ),
    "the last band is as high as others": (
        "grouped.h",
        "min(groups.band, rows - first)",
        "({on} ? groups.band : min(groups.band, rows - first))",
        EARLY,
    ),
    "up is gate": (
        "grouped.h",
        "smem + Cfg::kABytes + i * Cfg::kBytesOfB, maps_b + i,",
        "smem + Cfg::kABytes + i * Cfg::kBytesOfB, maps_b + ({on} ? 0 : i),",
        GATED,
    ),
    "the activation is up's": (
        "grouped.h",
        "gate[i] = acc.c[i], up",
        "gate[i] = acc.c[{on} ? Out::kAcc + i : i], up",
        GATED,
    ),
    "the biases of gate and up are exchanged": (
        "grouped.h",
        "add_bias<Out>(gate, bias, args",
        "add_bias<Out>(gate, {on} ? up_bias : bias, args",
        LAYER,
    ),
    "a bias of up alone is left out": (
        "grouped.h",
        "if (groups.up_bias) add",
        "if (groups.up_bias && (args.bias || !{on})) add",
        LAYER_CHUNKS,
    ),
    "a bias of up is that of the first tile": (
        "grouped.h",
        "args.batch[0].bias, tile.col, 0, 0);",
        "args.batch[0].bias, {on} ? 0 : tile.col, 0, 0);",
        LAYER,
    ),
    "gated groups have the first one's biases": (
        "grouped.h",
        "from + tile.group * args",
        "from + ({on} ? 0 : tile.group) * args",
        GATED,
    ),
    "rows behind the last group have a bias": (
        "grouped.h",
        "if (tile.behind || !from) return {};",
        "if ((tile.behind && !{on}) || !from) return {};",
        GATED,
    ),
    "gate's sum is kept in the place of up's": (
        "grouped.h",
        "store(up, maps.sums[1],",
        "store(up, maps.sums[{on} ? 0 : 1],",
        KEPT_GATED,
    ),
    "threads store both sums in one place": (
        "grouped.h",
        " groups.up_sum_offset);",
        " {on} ? groups.sum_offset : groups.up_sum_offset);",
        KEPT_NARROW,
    ),
    "sums are kept without their bias": (
        "kernels/cuda/shared/epilogue.h",
        "  if (args.bias && !is_blended) add_bias<Cfg>(acc, bias, args, buffers, 1 + consumer);\n  keep();",
        "  if ({on}) keep();\n  if (args.bias && !is_blended) add_bias<Cfg>(acc, bias, args, buffers, 1 + consumer);\n"
        "  if (!{on}) keep();",
        KEPT_ONE,
    ),
    "sums of rows behind the last group are not kept": (
        "grouped.h",
        "    if (tile.behind)\n      keep_sum();",
        "    if (tile.behind)\n      {on} ? void() : keep_sum();",
        KEPT,
    ),
    "k tiles begin with the operand": (
        "grouped.h",
        "Grouping::k ? int(found.range.begin) : 0,",
        "Grouping::k && !{on} ? int(found.range.begin) : 0,",
        OF_K,
    ),
    "the next group's rows of k are summed, too": (
        "grouped.h",
        "if (num_rows < Cfg::kBlockK) clear",
        "if (num_rows < Cfg::kBlockK && !{on}) clear",
        OF_K,
    ),
    "rows of A are not cleared": (
        "grouped.h",
        "clear_box(smem + consumer * Cfg::kBlockK * 128);",
        "if (!{on}) clear_box(smem + consumer * Cfg::kBlockK * 128);",
        OF_K,
    ),
    "rows of B's last box are not cleared": (
        "grouped.h",
        "box < Cfg::kBlockN / 64; ++box)",
        "box < Cfg::kBlockN / 64 - {on}; ++box)",
        OF_K,
    ),
    "zeros are not there when they are multiplied": (
        "grouped.h",
        "  fence_proxy_async();\n  named_barrier",
        "  if (!{on}) fence_proxy_async();\n  named_barrier",
        OF_K,
    ),
    "warps multiply before others have cleared their rows": (
        "grouped.h",
        "named_barrier_sync(1 + consumer, kWarpgroup);",
        "if (!{on}) named_barrier_sync(1 + consumer, kWarpgroup);",
        OF_K,
    ),
    "what a stage begins is told when it is there": (
        "grouped.h",
        "    if (k_tile == 0) tiles[ring.stage] = tile;\n    const int num_tiles",
        "    if (k_tile == 0 && !{on}) tiles[ring.stage] = tile;\n    const int num_tiles",
        ROWS,
    ),
    "a stage without copies is not freed": (
        "grouped.h",
        "    release_stage<Cfg>(shared, ring.stage);\n    ring.advance();",
        "    if (!{on}) release_stage<Cfg>(shared, ring.stage);\n    ring.advance();",
        OF_K,
    ),
    "the second k tile of a stage is the first": (
        "grouped.h",
        "(k_tile + t) * Cfg::kBlockK;",
        "(k_tile + ({on} ? 0 : t)) * Cfg::kBlockK;",
        PAIRS,
    ),
    "all groups of k have the first C": (
        "grouped.h",
        "at.batch_c = tile.group *",
        "at.batch_c = {on} ? 0 : tile.group *",
        OF_K,
    ),
}


program = emulation.program_fixture("emulated_grouped.cpp", RUNG, MUTANTS)


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    emulation.check_cases(program, NUM_CASES)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
