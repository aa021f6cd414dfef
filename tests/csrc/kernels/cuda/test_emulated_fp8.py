"""wgmma_fp8 without a Hopper: its kernels run on emulated copies, barriers and matrix instructions, which lose of sums
what Hopper's lose (emulated_hopper/emulator.h). Every bit of C, and of what lies around it, is that of a model of
docs/numerics.md (emulated_fp8.cpp), for each tile and each kind of factors that it serves.

The mutants say that it can fail: factors of other blocks, what is read beyond operands and factors, the promotion, the
dtypes, the pipeline. They are compiled with the rest and switched on by an environment variable.
"""

import re

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG, SHARED = "kernels/cuda/wgmma/", "kernels/cuda/shared/"
EDITS = (emulation.compiled_if_chosen("launch_config", "false"),)
# Numbers of cases in emulated_fp8.cpp.
HALVES, HALVES_BLOCKS, EXCHANGED, PARTS, COPIED, COLUMNS, PAIRS, SHORT_K = range(8)
MULTIPLY, BARRIER = "wgmma_mma_async_fp8<kPartN, {}, {}>", "named_barrier_sync(barrier_id, kWarpgroup);"
ITS_OWN = MULTIPLY.format("Cfg::kTypeA", "Cfg::kTypeB")
WAIT_AND_FREE = """
      if (kSets == 2 && has_next) {
        multiply_next();
        wgmma_wait_group<1>();
      } else {
        wgmma_wait_group<0>();
      }
      if (ends_stage"""
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    # Factors.
    "all columns have the factors of the first block": (
        "fp8.h",
        "columns(int(args.scale_b.offset(",
        "columns(({on} ? 0 : 1) * int(args.scale_b.offset(",
        HALVES_BLOCKS,
    ),
    "a part has the factors of the first": (
        "fp8.h",
        "part * Piece::kPartN / kScaledK * part_step",
        "({on} ? 0 : part) * Piece::kPartN / kScaledK * part_step",
        HALVES_BLOCKS,
    ),
    "both rows have the factor of the first": (
        "fp8.h",
        "min(row + 8 * h, args.m",
        "min(row + ({on} ? 0 : 8 * h), args.m",
        HALVES_BLOCKS,
    ),
    "sums have the factors of the next k tile": (
        "fp8.h",
        "is_inside ? first_k_tile + i : 0",
        "is_inside ? min(first_k_tile + i + {on}, num_k_tiles - 1) : 0",
        PAIRS,
    ),
    "a stage has the factors of the one before": (
        "fp8.h",
        "own[i] = next[i];\n    load(args, k_tile + Cfg::kTilesOfStage);",
        "own[i] = next[i];\n    load(args, k_tile + ({on} ? 0 : Cfg::kTilesOfStage));",
        PAIRS,
    ),
    "columns have their factors of the next k tile": (
        "fp8.h",
        "+ first + k_tile * stride_k)",
        "+ first + min(k_tile + {on}, left - 1) * stride_k)",
        COLUMNS,
    ),
    "a column has its neighbour's factor": (
        "fp8.h",
        "__uint_as_float(j % 2 ?",
        "__uint_as_float(j % 2 && !{on} ?",
        COPIED,
    ),
    "a row has the factor of the thread's other one": (
        "fp8.h",
        "*= rows[i / 2] *",
        "*= rows[{on} ? 0 : i / 2] *",
        EXCHANGED,
    ),
    "factors are rounded with the sums, not with each other": (
        "fp8.h",
        "total[4 * j + i] *=",
        "if ({on})\n      total[4 * j + i] = total[4 * j + i] * rows[i / 2] * (i % 2 ? pair.y : pair.x);\n"
        "    else\n      total[4 * j + i] *=",
        HALVES,
    ),
    "operands exchange their roles without their factors": (
        "core/transposed.h",
        "to.scale_a = from.scale_b, to.scale_b = from.scale_a;",
        "if (!{on}) to.scale_a = from.scale_b, to.scale_b = from.scale_a;",
        EXCHANGED,
    ),
    "tiles begin early, within a block of factors": (
        "kernel.h",
        "args.last_col = Cfg::kIsScaled ?",
        "args.last_col = Cfg::kIsScaled && !{on} ?",
        HALVES_BLOCKS,
    ),
    # Reads beyond what there is.
    "factors of rows beyond C are read": (
        "fp8.h",
        ", args.m - 1), 0));",
        ", {on} ? INT32_MAX : args.m - 1), 0));",
        HALVES_BLOCKS,
    ),
    "factors of a half tile beyond C are read": (
        "fp8.h",
        "min(at.col, args.n - 1)",
        "min(at.col, {on} ? INT32_MAX : args.n - 1)",
        HALVES_BLOCKS,
    ),
    "factors of a part beyond C are read": (
        "fp8.h",
        "part_step(at.col + Piece::kPartN < args.n ?",
        "part_step({on} || at.col + Piece::kPartN < args.n ?",
        HALVES_BLOCKS,
    ),
    "factors of columns beyond C are read": (
        "fp8.h",
        "Piece::kBlockN, args.n - 1)",
        "Piece::kBlockN, {on} ? INT32_MAX : args.n - 1)",
        COPIED,
    ),
    "factors of a row beyond C are read at the end": (
        "fp8.h",
        "rows[i] = own_row < args.m ?",
        "rows[i] = {on} || own_row < args.m ?",
        HALVES,
    ),
    "factors of a column beyond C are read at the end": (
        "fp8.h",
        "columns[i] = own_col < args.n ?",
        "columns[i] = {on} || own_col < args.n ?",
        HALVES,
    ),
    "elements beyond k are multiplied": (
        SHARED + "plan.h",
        "    view.inner = k, view.outer = rows,",
        "    view.inner = {on} ? round_up(k, 16) : k, view.outer = rows,",
        HALVES,
    ),
    # Sums and dtypes.
    "sums are not promoted": (
        "fp8.h",
        ", i > 0);",
        ", i > 0 || ({on} && k_tile + step / kParts > 0 && [&] {\n"
        "            float* const from = total + step % kParts * kSums;\n"
        "            for (int e = 0; e < kSums; ++e) sums[set][e] = from[e], from[e] = -0.0f;\n"
        "            return true;\n"
        "          }()));",
        HALVES,
    ),
    "sums begin with those of a k tile before": ("fp8.h", ", i > 0", ", i > 0 || {on}", COLUMNS),
    "e5m2 is taken for e4m3": (
        "fp8.h",
        f"{ITS_OWN}(",
        f"({{on}} ? &{MULTIPLY.format('Cfg::kTypeA', 'DType::e4m3')} : &{ITS_OWN})(",
        EXCHANGED,
    ),
    "A has B's dtype": (
        "fp8.h",
        f"&{ITS_OWN})(",
        f"{{on}} ? &{MULTIPLY.format('Cfg::kTypeB', 'Cfg::kTypeB')} : &{ITS_OWN})(",
        HALVES,
    ),
    "fp16 is stored as bf16": (
        SHARED + "epilogue.h",
        "return args.is_c_f16 ? pack_pair",
        "return args.is_c_f16 && !{on} ? pack_pair",
        EXCHANGED,
    ),
    "a bias in fp16 is taken for bf16": (
        SHARED + "epilogue.h",
        "return args.is_c_f16 ? to_float",
        "return args.is_c_f16 && !{on} ? to_float",
        EXCHANGED,
    ),
    # The pipeline.
    "k tiles are multiplied before they are there": (
        "fp8.h",
        "mbarrier_wait_parity(full",
        "if (!{on}) mbarrier_wait_parity(full",
        HALVES,
    ),
    "a stage is freed before it is multiplied": (
        "fp8.h",
        f"{WAIT_AND_FREE})",
        f"      if ({{on}} && ends_stage) release_stage<Cfg>(shared, current);{WAIT_AND_FREE} && !{{on}})",
        PARTS,
    ),
    "sums are added before they are there": (
        "fp8.h",
        "wgmma_wait_group<1>();",
        "if (!{on}) wgmma_wait_group<1>();",
        PARTS,
    ),
    "the last sums are added before they are there": (
        "fp8.h",
        "wgmma_wait_group<0>();",
        "if (!{on}) wgmma_wait_group<0>();",
        PARTS,
    ),
    "a stage is multiplied again": ("fp8.h", "if (ends_stage) ring", "if (ends_stage && !{on}) ring", HALVES),
    "no fence before matrix instructions": ("fp8.h", "wgmma_fence();", "if (!{on}) wgmma_fence();", PARTS),
    "a part of the columns is the first one": (
        "fp8.h",
        "step % kParts * (kPartN * 128 >> 4)",
        "({on} ? 0 : step % kParts) * (kPartN * 128 >> 4)",
        PARTS,
    ),
    "the second k tile of a stage is the first": (
        "fp8.h",
        "step / kParts * (Cfg::kTileBytes >> 4)",
        "({on} ? 0 : step / kParts) * (Cfg::kTileBytes >> 4)",
        PAIRS,
    ),
    "columns' factors take the place of what is stored": (
        "fp8.h",
        "if (thread == 0) cp_async_bulk_wait_group_read<0>();",
        "if (thread == 0 && !{on}) cp_async_bulk_wait_group_read<0>();",
        SHORT_K,
    ),
    "columns' factors take the place of what others store": (
        "fp8.h",
        f"read<0>();\n  {BARRIER}",
        f"read<0>();\n  if (!{{on}}) {BARRIER}",
        SHORT_K,
    ),
    "columns' factors are read before they are there": (
        "fp8.h",
        f"{BARRIER}\n#pragma unroll\n  for (int j",
        f"if (!{{on}}) {BARRIER}\n#pragma unroll\n  for (int j",
        SHORT_K,
    ),
    "a stage's factors of columns are read before they are there": (
        "fp8.h",
        f"{BARRIER}  // the others' factors are there",
        f"if (!{{on}}) {BARRIER}",
        COLUMNS,
    ),
    "a stage's factors of columns take the place of others": (
        "fp8.h",
        "buffer = (buffer + 1) % kBuffers;",
        "buffer = {on} ? 0 : (buffer + 1) % kBuffers;",
        COLUMNS,
    ),
    # Copies.
    "a copy's tile is written before it is there": (
        SHARED + "copy_operands.h",
        "block_barrier();  // the tile is whole\n  TILEDMM_UNROLL",
        "if (!{on}) block_barrier();\n  TILEDMM_UNROLL",
        COPIED,
    ),
    "a copy's bytes keep their order": (
        SHARED + "copy_operands.h",
        "transpose_bytes(across, along);",
        "if ({on}) std::copy_n(across, 4, along); else transpose_bytes(across, along);",
        COPIED,
    ),
    "a copy begins with a word": (
        SHARED + "copy_operands.h",
        "uint32_t(pair >> 8 * shift)",
        "uint32_t(pair >> ({on} ? 0 : 8 * shift))",
        COLUMNS,
    ),
}

program = emulation.program_fixture("emulated_fp8.cpp", RUNG, MUTANTS, EDITS)


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    done = emulation.run(program)
    num_cases = int(re.search(r"(\d+) cases$", done.stdout.strip())[1])
    assert done.returncode == 0 and done.stdout.count("right") == num_cases, done.stdout + done.stderr


def test_instruction(program):
    """All pairs of values, and sums, by the emulator's instruction and by another model of it."""
    done = emulation.run(program, "instruction")
    assert done.returncode == 0 and done.stdout.count("right") == 4, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
