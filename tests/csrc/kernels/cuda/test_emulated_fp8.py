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
HALVES, HALVES_BLOCKS, EXCHANGED, PARTS, COPIED, COLUMNS, PAIRS, SHORT_K, _, TRANSPOSED = range(10)
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
        ": args.scale_b.offset(min(at.col +",
        ": ({on} ? 0 : 1) * args.scale_b.offset(min(at.col +",
        HALVES_BLOCKS,
    ),
    "a part has the factors of the first": (
        "fp8.h",
        ": min(i, kColumns - 1) * Piece",
        ": ({on} ? 0 : min(i, kColumns - 1)) * Piece",
        HALVES_BLOCKS,
    ),
    "both rows have the factor of the first": ("fp8.h", "+ i % 2 * 8", "+ ({on} ? 0 : i % 2 * 8)", HALVES_BLOCKS),
    "the second k tile of a stage has the factors of the first": (
        "fp8.h",
        "first + tile * stride",
        "first + ({on} ? 0 : tile) * stride",
        PAIRS,
    ),
    "a stage has the factors of the one before": (
        "fp8.h",
        "from[i] += step[i]",
        "from[i] += {on} && k_tile == 0 ? 0 : step[i]",
        PAIRS,
    ),
    "factors of columns lie as far from each other as those of rows": (
        "fp8.h",
        "int(is_row ?",
        "int(is_row || {on} ?",
        COLUMNS,
    ),
    "a column has its neighbour's factor": (
        "fp8.h",
        "columns[j / 4 * 2 + j % 2]",
        "columns[j / 4 * 2 + ({on} ? 0 : j % 2)]",
        COPIED,
    ),
    "factors of columns are in the order of memory": (
        "fp8.h",
        "return kByColumn ? i",
        "return kByColumn && {on} ? i : kByColumn ? i",
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
        "row_at(own), args.m - 1)",
        "row_at(own), {on} ? INT32_MAX : args.m - 1)",
        HALVES_BLOCKS,
    ),
    "factors of columns beyond C are read": (
        "fp8.h",
        "column_at(own - 64), args.n - 1)",
        "column_at(own - 64), {on} ? INT32_MAX : args.n - 1)",
        COPIED,
    ),
    "factors beyond k are read": (
        "fp8.h",
        "const bool is_inside = Cfg",
        "const bool is_inside = {on} || Cfg",
        PAIRS,
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
    "factors of blocks take the place of what is stored": (
        "fp8.h",
        "if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();",
        "if (threadIdx.x % kWarpgroup == 0 && !{on}) cp_async_bulk_wait_group_read<0>();",
        COLUMNS,
    ),
    "factors of blocks take the place of what others store": (
        "fp8.h",
        f"{BARRIER}  // what is stored has left",
        f"if (!{{on}}) {BARRIER}",
        TRANSPOSED,
    ),
    "factors of blocks are read before a thread's own are there": (
        "fp8.h",
        "cp_async_wait_group<kAhead - 1>();",
        "if (!{on}) cp_async_wait_group<kAhead - 1>();",
        COLUMNS,
    ),
    "factors of blocks are read before others' are there": (
        "fp8.h",
        f"{BARRIER}  // the others' factors are there",
        f"if (!{{on}}) {BARRIER}",
        COLUMNS,
    ),
    "factors of blocks take the place of others": (
        "fp8.h",
        "return (buffer + 1) % kBuffers;",
        "return (buffer + 1) % ({on} ? kAhead : kBuffers);",
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
