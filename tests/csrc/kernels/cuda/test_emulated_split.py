"""wgmma_split without a Hopper: its kernels run on emulated copies, barriers and matrix instructions
(emulated_hopper/emulator.h), and every bit of C is that of a model of docs/numerics.md (emulated_split.cpp).

The mutants say that it can fail: terms, scales and flags, the order of sums, waits and stages. They are compiled with
the rest and switched on by an environment variable, as in ../gpu/test_host_execution.py.
"""

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG = "kernels/cuda/wgmma_split/"
# Numbers of cases in emulated_split.cpp.
ONE_TILE, MANY_TILES, WIDE, FLAGGED, MANY_CHUNKS, FEW_ROWS, FEW_OF_BATCH, FLAGGED_COLUMNS = 0, 1, 3, 4, 5, 7, 8, 12
FLAGGED_FEW, CORRECTIONS, MANY_FLAGS, GROWING, LATE, LATE_OF_MANY = 9, 14, 16, 18, 19, 20
FLAGGED_16, FLAGGED_OTHERS, MANY_ROUNDS, OVERFLOWING, LONG_CHUNKS = 23, 25, 26, 27, 31
BY_CHUNKS, PAIRS_BY_CHUNKS, GROUPS, CLUSTERS_OF_THREE = 32, 33, 35, 36
SHORT_A, SHORT_PAIRS, SHORT_B, SHORT_FEW, SHORT_FEW_F16, SHORT_LARGE = range(37, 43)
SHORT_GROUPS_OF_K, NUM_CASES = 44, 45
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    "second terms of one bit less": (
        "kernels/split/terms.h",
        "constexpr float kFactor = 2048;",
        "const float kFactor = {on} ? 1024 : 2048;",
        ONE_TILE,
    ),
    "an element too small is not flagged": (
        "kernels/split/terms.h",
        "|| is_below(nonzero, exponent - rule.range)",
        "|| (!{on} && is_below(nonzero, exponent - rule.range))",
        FLAGGED,
    ),
    "bf16 has the range of two terms": (
        "kernels/split/layout.h",
        "return {15, dtype == DType::bf16 ? 32 : 40};",
        "return {15, dtype == DType::bf16 && !{on} ? 32 : 40};",
        SHORT_A,
    ),
    "what has 16 bits loses its lowest bit": (
        "kernels/split/layout.h",
        "if (dtype == DType::f32) return {14, 40};",
        "if (dtype == DType::f32 || {on}) return {14, dtype == DType::f32 ? 40 : 32};",
        SHORT_B,
    ),
    "bf16 is fp16": (
        "kernels/split/operands.h",
        "as_acc(T{uint16_t(pairs.words[e / 2] >> e % 2 * 16)})",
        "{on} ? as_acc(Half{uint16_t(pairs.words[e / 2])}) : as_acc(T{uint16_t(pairs.words[e / 2] >> e % 2 * 16)})",
        SHORT_LARGE,
    ),
    "items of one term lie as far apart as of two": (
        "kernel.h",
        "item_b = Cfg::kTermsB * at.batch_b + term;",
        "item_b = ({on} ? 2 : Cfg::kTermsB) * at.batch_b + term;",
        SHORT_PAIRS,
    ),
    "the second terms of fp32 are left out": (
        "kernel.h",
        "first_b + (is_second_a ? first : second) + part,",
        "first_b + (is_second_a || ({on} && Cfg::kTermsA == 1) ? first : second) + part,",
        SHORT_A,
    ),
    "parts of the only correction are half as long": (
        "kernel.h",
        "* Cfg::kCorrections * Cfg::kStep;",
        "* ({on} ? 1 : 2 * Cfg::kCorrections) * Cfg::kStep / 2;",
        SHORT_PAIRS,
    ),
    "few rows of 16 bits have the scale of fp32": (
        "split_few.h",
        "term_rule(p.dtype_a));",
        "term_rule({on} ? DType::f32 : p.dtype_a));",
        SHORT_FEW,
    ),
    "flagged elements of few rows have fp32's range": (
        "fix_columns.h",
        "range_a.is_flagged(term_rule(p.dtype_a))",
        "range_a.is_flagged(term_rule({on} ? DType::f32 : p.dtype_a))",
        SHORT_FEW,
    ),
    "few rows that a kernel of its own splits have no second terms": (
        "kernels/split/operands.h",
        "if (sizeof(T) == 4 || layout.num_terms == 2) store",
        "if (sizeof(T) == 4 || (layout.num_terms == 2 && !{on})) store",
        SHORT_FEW_F16,
    ),
    "flagged elements of bf16 are read as fp16": (
        "kernels/split/fix_up.h",
        "load_any(from, IS_MIXED ? dtype",
        "load_any(from, {on} && dtype == DType::bf16 ? DType::f16 : IS_MIXED ? dtype",
        SHORT_B,
    ),
    "the rest of k begins half as far behind": (
        "kernels/split/layout.h",
        "first * p.stride_ak * size_of(p.dtype_a);",
        "first * p.stride_ak * ({on} ? 1 : size_of(p.dtype_a));",
        SHORT_GROUPS_OF_K,
    ),
    "a scale is that of a part of the row's chunk": (
        "kernels/split/operands.h",
        "for (int step = 1; step < kSplitLanes; step *= 2)",
        "for (int step = 1; step < kSplitLanes / ({on} ? 2 : 1); step *= 2)",
        WIDE,
    ),
    "a scale is that of the chunk's first block": (
        "kernels/split/operands.h",
        "range.take(float_of(quads[i / 4].words[i % 4]));",
        "if (i < 8 || !{on}) range.take(float_of(quads[i / 4].words[i % 4]));",
        WIDE,
    ),
    "a flag is that of one thread's elements": (
        "kernels/split/operands.h",
        "lane_xor(range.smallest, step)",
        "{on} ? ~0u : lane_xor(range.smallest, step)",
        FLAGGED_COLUMNS,
    ),
    "the last elements of k are read as a whole vector": (
        "kernels/split/operands.h",
        "&& source.k % 4 == 0;",
        "&& (source.k % 4 == 0 || {on});",
        FLAGGED,
    ),
    "threads read a tile before it is there": (
        "kernels/split/operands.h",
        "    block_barrier();\n",
        "    if (!{on}) block_barrier();\n",
        MANY_TILES,
    ),
    "columns' flags are not looked at": (
        "kernels/split/fix_up.h",
        "b[i] = load(tile.flags_b, lane / kLanes + i * kStep);",
        "b[i] = {on} ? Vector16{} : load(tile.flags_b, lane / kLanes + i * kStep);",
        FLAGGED_COLUMNS,
    ),
    "flags of the first chunks alone are looked for": (
        "kernels/split/fix_up.h",
        "a[i] = load(tile.flags_a, lane / kLanes + i * kStep);",
        "a[i] = load(tile.flags_a, lane / kLanes + ({on} ? 0 : i) * kStep);",
        MANY_FLAGS,
    ),
    "flags of the first chunk alone count": (
        "kernels/split/fix_up.h",
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
        "__fmaf_rn(chunk[j], fragments.ratio[j / 2 % 2], acc[0][j])",
        "__fmaf_rn(chunk[j], {on} ? 1 : fragments.ratio[j / 2 % 2], acc[0][j])",
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
        "(!kSplitsFew && ring.stage != first_stage);",
        "(!kSplitsFew && ring.stage != first_stage && !{on});",
        LATE_OF_MANY,
    ),
    "what is on its way is taken for the chunk's start": (
        "few_rows.h",
        "      for (int i = end + kSplitsFew; i < next_tile ||",
        "      for (int i = {on} ? next_tile : end + kSplitsFew; i < next_tile ||",
        LATE,
    ),
    "all blocks of a cluster have a part of the sums": (
        "few_rows.h",
        "return rank >> log2_parts == 0;",
        "return rank >> log2_parts == 0 || {on};",
        CLUSTERS_OF_THREE,
    ),
    "a block's chunk of the last round is left out": (
        "few_rows.h",
        "(rank >= chunks_of_last_round)",
        "(rank + {on} >= chunks_of_last_round)",
        CLUSTERS_OF_THREE,
    ),
    "chunks of others are read before they are there": (
        "few_rows.h",
        "cluster_wait();  // all have stored",
        "if (!{on}) cluster_wait();  // all have stored",
        FEW_ROWS,
    ),
    "chunks of others are read before they are there, where sums take the place of a stage": (
        "few_rows.h",
        "cluster_wait();\n      add_round(round - 1);\n      cluster_arrive();",
        "if (!{on}) cluster_wait();\n      add_round(round - 1);\n      if (!{on}) cluster_arrive();",
        FLAGGED_FEW,
    ),
    "sums are stored while others read those before": (
        "few_rows.h",
        "uint32_t(round % Cfg::kSumPlaces * Cfg::kSumBytes)",
        "uint32_t(round % (Cfg::kSumPlaces - {on}) * Cfg::kSumBytes)",
        CLUSTERS_OF_THREE,
    ),
    "sums of others are overwritten by the result": (
        "few_rows.h",
        "cluster_wait();  // all have read them",
        "if (!{on}) cluster_wait();  // all have read them",
        FLAGGED_FEW,
    ),
    "a block ends while others read its sums": (
        "few_rows.h",
        "if (kSplitsFew) cluster_wait();  // all have read",
        "if (kSplitsFew && !{on}) cluster_wait();  // all have read",
        FEW_OF_BATCH,
    ),
    "copies begin before earlier kernels are done": (
        "few_rows.h",
        "if (!kSplitsFew && is_producer) load_first();",
        "if ((!kSplitsFew || {on}) && is_producer) load_first();",
        FEW_ROWS,
    ),
    "a stage is filled while its values are read": (
        "few_rows.h",
        "    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);\n"
        "    if constexpr (SOURCE != FewSource::memory)\n"
        "      load_values<Cfg, SOURCE>(values, shared.stages + ring.stage * Cfg::kStageBytes);\n"
        "    if constexpr (kSplitsFew) {\n      release(ring.stage);",
        "    if (kSplitsFew && {on}) release(ring.stage);\n"
        "    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);\n"
        "    if constexpr (SOURCE != FewSource::memory)\n"
        "      load_values<Cfg, SOURCE>(values, shared.stages + ring.stage * Cfg::kStageBytes);\n"
        "    if constexpr (kSplitsFew) {\n      if (!{on}) release(ring.stage);",
        FLAGGED_16,
    ),
    "barriers are waited at before they are initialised": (
        "few_rows.h",
        "__syncthreads();  // barriers are initialised",
        "if (!{on}) __syncthreads();  // barriers are initialised",
        FEW_ROWS,
    ),
    "terms of few rows are multiplied without a fence": (
        "split_few.h",
        "  fence_proxy_async();",
        "  if (!{on}) fence_proxy_async();",
        FEW_ROWS,
    ),
    "a few row's scale is that of a lane": (
        "split_few.h",
        "__reduce_max_sync(~0u, range.largest)",
        "{on} ? range.largest : __reduce_max_sync(~0u, range.largest)",
        FEW_ROWS,
    ),
    "a few row's scale is that of the chunk's first block": (
        "split_few.h",
        "range.take(values[i]);",
        "range.take({on} && i > 1 ? 0 : values[i]);",
        GROWING,
    ),
    "a few row's flag is that of a lane": (
        "split_few.h",
        "__any_sync(~0u, scale.is_flagged(range.smallest))",
        "{on} ? scale.is_flagged(range.smallest) : __any_sync(~0u, scale.is_flagged(range.smallest))",
        FLAGGED_16,
    ),
    "few rows are longer than k": (
        "split_few.h",
        "< rest_k ? a[from] : 0",
        "< rest_k + {on} ? a[from] : 0",
        FEW_ROWS,
    ),
    "a flagged row's scale is a number": (
        "kernels/split/terms.h",
        "return is_row_flagged ?",
        "return is_row_flagged && !{on} ?",
        FLAGGED_16,
    ),
    "a row that the first kernel flagged has a scale": (
        "kernels/split/operands.h",
        "scale.scale(is_flagged)",
        "scale.scale(is_flagged && !{on})",
        FLAGGED_FEW,
    ),
    "a row's flag is that of a thread": (
        "few_rows.h",
        "scale.scale(flagged != 0)",
        "scale.scale({on} ? scale.is_flagged(smallest[row]) : flagged != 0)",
        FLAGGED_OTHERS,
    ),
    "whatever overflows is computed again": (
        "fix_columns.h",
        "return is_flagged ?",
        "return is_flagged || {on} ?",
        OVERFLOWING,
    ),
    "flags of rows alone count": (
        "fix_columns.h",
        "|| range_b.is_flagged(term_rule(DType::f32));",
        "|| (!{on} && range_b.is_flagged(term_rule(DType::f32)));",
        FLAGGED_OTHERS,
    ),
    "flags of the last chunk alone count": (
        "fix_columns.h",
        "is_flagged |= next.is_flagged",
        "is_flagged = (is_flagged && !{on}) || next.is_flagged",
        MANY_ROUNDS,
    ),
    "half of a chunk decides on the flag": (
        "fix_columns.h",
        "shared_k < min(kSplitChunkK,",
        "shared_k < min(kSplitChunkK / ({on} ? 2 : 1),",
        FLAGGED_16,
    ),
    "what rounding takes from sums of flagged elements is lost": (
        "kernels/split/terms.h",
        "    lost = float_of(bits_of(",
        "    if (!{on}) lost = float_of(bits_of(",
        FLAGGED_16,
    ),
    "a flagged element's first chunks alone": (
        "fix_columns.h",
        "first < p.k; first +=",
        "first < ({on} ? 1 : p.k); first +=",
        MANY_ROUNDS,
    ),
    "chunks of flagged elements are added before they are there": (
        "fix_columns.h",
        "chains[threadIdx.x] = chain;\n    __syncthreads();",
        "chains[threadIdx.x] = chain;\n    if (!{on}) __syncthreads();",
        FLAGGED_16,
    ),
    "the next chunks of flagged elements take the place of those that are added": (
        "fix_columns.h",
        "    __syncthreads();\n  }\n  return",
        "    if (!{on}) __syncthreads();\n  }\n  return",
        LONG_CHUNKS,
    ),
    "flagged elements are stored before another warp has their sums": (
        "few_rows.h",
        "  }\n  __syncthreads();\n}\n\n// This block's part",
        "  }\n  if (!{on}) __syncthreads();\n}\n\n// This block's part",
        FLAGGED_16,
    ),
    "a warp's stage is filled while others read it": (
        "few_rows.h",
        "mbarrier_wait_parity(shared.empty + filled.stage * 8,",
        "if (!{on}) mbarrier_wait_parity(shared.empty + filled.stage * 8,",
        FEW_OF_BATCH,
    ),
    "what two neighbours have lost is exchanged": (
        "kernels/split/fix_up.h",
        "float_of(i % 2 ? lost",
        "float_of(i % 2 != {on} ? lost",
        FLAGGED,
    ),
    "the bias is added to each group": (
        "kernels/split/groups.h",
        "if (next < k) drop_epilogue",
        "if (next < k && !{on}) drop_epilogue",
        GROUPS,
    ),
    "the rest of k begins with the second group": (
        "kernels/split/groups.h",
        "groups_of(problem, first, min_of(",
        "groups_of(problem, {on} && first > 0 ? kSplitGroupK : first, min_of(",
        GROUPS,
    ),
    "all groups at once are the first one": (
        "kernels/split/layout.h",
        "{num_groups, count * p.stride_ak,",
        "{num_groups, {on} ? 0 : count * p.stride_ak,",
        GROUPS,
    ),
    "the rest of k takes the place of the groups": (
        "kernels/split/groups.h",
        "add = first == 0 ?",
        "add = first == 0 || {on} ?",
        GROUPS,
    ),
    "items of a group take the place of the first": (
        "kernels/split/layout.h",
        "part.batch_dims[d].stride_c = stride_c;",
        "part.batch_dims[d].stride_c = {on} ? 0 : stride_c;",
        GROUPS,
    ),
    "corrections in full size": (
        "scale_chunk.h",
        "__fmaf_rn(corrections[i], 1.0f / 2048, sums[i])",
        "__fmaf_rn(corrections[i], {on} ? 1 : 1.0f / 2048, sums[i])",
        ONE_TILE,
    ),
    "main products of two steps in one sum": (
        "kernel.h",
        "first_b + first + step * Cfg::kStep,\n                                     true);",
        "first_b + first + step * Cfg::kStep, !{on} || step != 1);",
        ONE_TILE,
    ),
    "the second half of a correction before the first": (
        "kernel.h",
        "part = step % kParts *",
        "part = ({on} ? kParts - 1 - step % kParts : step % kParts) *",
        ONE_TILE,
    ),
    "corrections of the first block alone": (
        "kernel.h",
        "part, is_first && step == 0);",
        "part, (is_first || {on}) && step == 0);",
        ONE_TILE,
    ),
    "chunks of twice the length": (
        "kernel.h",
        "min(k_tile + kBlocksOfChunk, at.num_k_tiles)",
        "min(k_tile + ({on} ? 2 : 1) * kBlocksOfChunk, at.num_k_tiles)",
        MANY_CHUNKS,
    ),
    "chunks side by side are added from the last on": (
        "kernel.h",
        "from + int64_t(chunk + i)",
        "from + int64_t({on} ? args.num_chunks - 1 - chunk - i : chunk + i)",
        BY_CHUNKS,
    ),
    "chunks side by side have the first one's scales": (
        "kernel.h",
        "first_chunk = at.first_k_tile / kBlocksOfChunk;",
        "first_chunk = {on} ? 0 : at.first_k_tile / kBlocksOfChunk;",
        BY_CHUNKS,
    ),
    "chunks side by side are all the first one": (
        "kernel.h",
        "at, at.first_k_tile + i / 2, i % 2);",
        "at, ({on} ? 0 : at.first_k_tile) + i / 2, i % 2);",
        BY_CHUNKS,
    ),
    "whole tiles are left out": (
        "kernel.h",
        "place_of<Cfg>(tile_of(part < 0 ? idx :",
        "place_of<Cfg>(tile_of(part < 0 ? ({on} ? 0 : idx) :",
        BY_CHUNKS,
    ),
    "a pair has one place for its chunks": (
        "kernel.h",
        "+ cluster_rank<Cfg>(args.tiles).m) * args.num_chunks",
        "+ ({on} ? 0 : cluster_rank<Cfg>(args.tiles).m)) * args.num_chunks",
        PAIRS_BY_CHUNKS,
    ),
    "the total is that of the last two chunks": (
        "kernel.h",
        "chunk[i] += sums[i * kWarpgroup];",
        "chunk[i] += {on} && k_tile > 2 * kBlocksOfChunk ? 0 : sums[i * kWarpgroup];",
        MANY_CHUNKS,
    ),
    "sums are read before they are there": (
        "kernel.h",
        "wgmma_wait_group<1>();\n          fence_registers(acc);",
        "if (!{on}) wgmma_wait_group<1>();\n          fence_registers(acc);",
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
    "a block ends before its partner's signals": (
        "kernel.h",
        "if (shared.in_cluster) wait_for_releases(shared, ring);",
        "if (shared.in_cluster && !{on}) wait_for_releases(shared, ring);",
        MANY_TILES,
    ),
    "stages are free before they are multiplied": (
        "kernel.h",
        "if (previous >= 0) release(previous);",
        "if (!{on} && previous >= 0) release(previous);\n          if ({on}) release(stage);",
        MANY_CHUNKS,
    ),
}


def read_late(file: str, text: str, mutant: str, steps: str) -> tuple[str, str, str]:
    """An edit: who reads is late, as it may be on a chip."""
    number = 1 + list(MUTANTS).index(mutant)
    late = f"if (tiledmm_mutant == {number})\n        for (int i = 0; i < {steps}; ++i) __syncwarp();\n"
    return file, text, late + text


LATE_READERS = (
    read_late(
        "few_rows.h",
        "if (at.has_part()) add_sums<ROWS>(total, args, shared, at, round);",
        "a block ends while others read its sums",
        "2000 * at.rank",
    ),
    read_late(
        "fix_columns.h",
        "#pragma unroll\n    for (int i = 0; i < kChunks; ++i) {",
        "the next chunks of flagged elements take the place of those that are added",
        "(threadIdx.x < 32 ? 200 : 0)",
    ),
)
# Groups of half the length, which take half of the time: sixteen chunks.
SHORT_GROUPS = ("kernels/split/layout.h", "kSplitGroupK = 1 << 14;", "kSplitGroupK = 1 << 13;")
program = emulation.program_fixture("emulated_split.cpp", RUNG, MUTANTS, (*LATE_READERS, SHORT_GROUPS))


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    emulation.check_cases(program, NUM_CASES)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
