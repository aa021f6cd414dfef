"""wgmma_fp8_b without a Hopper: its kernels run on emulated copies, barriers and matrix instructions
(emulated_hopper/emulator.h). Every bit of C, and of what lies around it, is that of a model of docs/numerics.md
(emulated_fp8_b.cpp), which is skinny's order of summation, for each tile and each way to split k, by all their plans.

The mutants say that it can fail. They are compiled with the rest and switched on by an environment variable.
"""

import re

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG, SHARED = "kernels/cuda/wgmma/", "kernels/cuda/shared/"
FILE, RESULT = "fp8_b.h", "fp8_b_result.h"
# Numbers of cases in emulated_fp8_b.cpp.
ONE_ROW, IDLE, SEVERAL, THREES, STEP_OF_STAGE, WIDE, SPLIT = range(7)
VALUES, IN_CLUSTER, WIDE_IN_CLUSTER = 8, 12, 45
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    # Chunks and k.
    "chunks end a stage late": (
        FILE,
        "int(ceil_div(task.problem.chunk_k, Cfg::kBlockK));",
        "int(ceil_div(task.problem.chunk_k, Cfg::kBlockK)) + {on};",
        THREES,
    ),
    "a chunk begins with the sums of the one before": (
        FILE,
        "step > 0 || !starts_chunk);",
        "step > 0 || !starts_chunk || ({on} && previous >= 0));",
        THREES,
    ),
    "elements beyond k are multiplied": (
        SHARED + "plan.h",
        "    view.inner = k, view.outer = rows,",
        "    view.inner = {on} ? round_up(k, 64) : k, view.outer = rows,",
        ONE_ROW,
    ),
    "all chunks are the first": (FILE, "first_stage = chunk *", "first_stage = ({on} ? 0 : chunk) *", SPLIT),
    "chunks' sums lie on each other": (
        FILE,
        "(int64_t(at.chunk) * args.m",
        "(int64_t({on} ? 0 : at.chunk) * args.m",
        SPLIT,
    ),
    "a cluster adds its chunks from the last to the first": (
        FILE,
        "+ quad * 16, i));",
        "+ quad * 16, {on} ? args.num_splits - 1 - i : i));",
        IN_CLUSTER,
    ),
    # Scales and what follows the sums.
    "a column has its neighbour's scale": (
        RESULT,
        "__ldg(to.scales + (col + i)",
        "__ldg(to.scales + (col + ({on} ? max(i - 1, 0) : i))",
        THREES,
    ),
    "scales of columns beyond C are read": (
        RESULT,
        "factors[i] = i < num_inside ?",
        "factors[i] = {on} || i < num_inside ?",
        THREES,
    ),
    "scaled sums are rounded with the bias": (
        RESULT,
        "__fmul_rn(v.x, columns.factors[0]) + columns.bias[0]",
        "({on} ? std::fma(v.x, columns.factors[0], columns.bias[0])\n"
        "             : __fmul_rn(v.x, columns.factors[0]) + columns.bias[0])",
        WIDE,
    ),
    "a bias in fp16 is taken for bf16": (
        RESULT,
        "gpu::load_any(to.bias, to.dtype,",
        "gpu::load_any(to.bias, {on} ? DType::bf16 : to.dtype,",
        SEVERAL,
    ),
    "one of four is not activated": (
        RESULT,
        "i < 4; ++i) v = make_float4",
        "i < 4 - {on}; ++i) v = make_float4",
        SEVERAL,
    ),
    # Fragments.
    "rows of a fragment change places with its halves of k": (
        FILE,
        "packet + i % 2 * 8 * Cfg::kPitch + i / 2 * 8",
        "packet + ({on} ? i / 2 : i % 2) * 8 * Cfg::kPitch + ({on} ? i % 2 : i / 2) * 8",
        VALUES,
    ),
    "fragments are not swizzled": (
        FILE,
        "(own_row * Cfg::kPitch / 128) % (Cfg::kPitch / 16) << 4",
        "({on} ? 0 : own_row * Cfg::kPitch / 128) % (Cfg::kPitch / 16) << 4",
        WIDE,
    ),
    "the second box of a stage is the first": (
        FILE,
        "(step / 4 * Cfg::kBoxBytes >> 4)",
        "(({on} ? 0 : step / 4) * Cfg::kBoxBytes >> 4)",
        ONE_ROW,
    ),
    "the second step of a stage is the first's weight": (
        FILE,
        "^ step << 4;",
        "^ ({on} && step == 1 ? 0 : step) << 4;",
        IDLE,
    ),
    "a number is what the one before it was": (
        "platform/widen.h",
        "const float first = e4m3_to_float(pair & 0xff)",
        "const float first = e4m3_to_float(pair & ({on} ? 0xfe : 0xff))",
        VALUES,
    ),
    # The pipeline.
    "fragments are loaded before they are there": (
        FILE,
        "mbarrier_wait_parity(shared.full",
        "if (!{on}) mbarrier_wait_parity(shared.full",
        ONE_ROW,
    ),
    "fragments are overwritten while they are multiplied": (
        FILE,
        "wgmma_wait_group<kSlots - kWidenedAhead>();",
        "if (!{on}) wgmma_wait_group<kSlots - kWidenedAhead>();",
        STEP_OF_STAGE,
    ),
    "a stage is free before it is multiplied": (
        FILE,
        "&& previous >= 0) release(previous);",
        "&& ({on} || previous >= 0)) release({on} ? stage : previous);",
        STEP_OF_STAGE,
    ),
    "a chunk's sums are added before they are there": (
        FILE,
        "wgmma_wait_group<0>();\n          fence",
        "if (!{on}) wgmma_wait_group<0>();\n          fence",
        STEP_OF_STAGE,
    ),
    "sums are stored before they are there": (
        FILE,
        "wgmma_wait_group<0>();\n    fence",
        "if (!{on}) wgmma_wait_group<0>();\n    fence",
        WIDE,
    ),
    "no fence before matrix instructions": (FILE, "wgmma_fence();", "if (!{on}) wgmma_fence();", SPLIT),
    "stages are filled while they are multiplied": (
        FILE,
        "mbarrier_wait_parity(shared.empty",
        "if (!{on}) mbarrier_wait_parity(shared.empty",
        ONE_ROW,
    ),
    "consumers without rows keep stages": (
        FILE,
        "sums.skip(at.num_stages);",
        "if (!{on}) sums.skip(at.num_stages);",
        IDLE,
    ),
    "copies before earlier kernels are done": (
        FILE,
        "void fill_ring() {\n    griddepcontrol_wait();",
        "void fill_ring() {\n    if (!{on}) griddepcontrol_wait();",
        ONE_ROW,
    ),
    "what filled the ring is copied again": (
        FILE,
        "i < Cfg::kNumStages && has_next(); ++i) advance();",
        "i < Cfg::kNumStages && has_next() && !{on}; ++i) advance();",
        SEVERAL,
    ),
    "the next tile is the one behind": (FILE, "tile += tiles.step;", "tile += {on} ? 1 : tiles.step;", SEVERAL),
    # Stores.
    "a tile stores the next one's rows of A": (
        FILE,
        "min(args.m, at.col + args.tile_cols);\n  const Fp8BColumns columns(args.result, first",
        "min(args.m, at.col + ({on} ? Cfg::kBlockN : args.tile_cols));\n  const Fp8BColumns columns(args.result, first",
        WIDE,
    ),
    "vectors reach beyond C": (
        RESULT,
        "if (is_vector && num_inside >= 4)",
        "if (is_vector && ({on} || num_inside >= 4))",
        SEVERAL,
    ),
    "strips are read before they are there": (
        FILE,
        "__syncwarp();\n#pragma unroll 1\n    for (int own",
        "if (!{on}) __syncwarp();\n#pragma unroll 1\n    for (int own",
        SEVERAL,
    ),
    "strips are overwritten before they are read": (
        FILE,
        "__syncwarp();  // what others wrote",
        "if (!{on}) __syncwarp();  // what others wrote",
        WIDE,
    ),
    "accumulators take no turns": (
        FILE,
        "acc[i] = acc[i + kOfTurn];",
        "acc[i] = acc[i + ({on} ? 0 : kOfTurn)];",
        SEVERAL,
    ),
    # Clusters.
    "sums take the place of stages that others multiply": (
        FILE,
        "named_barrier_sync(1, kThreads);",
        "if (!{on}) named_barrier_sync(1, kThreads);",
        WIDE_IN_CLUSTER,
    ),
    "sums are read before they are there": (
        FILE,
        "cluster_sync();\n  const int quad",
        "if (!{on}) cluster_sync();\n  const int quad",
        IN_CLUSTER,
    ),
    "a block ends before others have read its sums": (
        FILE,
        "cluster_sync();  // others",
        "if (!{on}) cluster_sync();  // others",
        IN_CLUSTER,
    ),
    "all blocks of a cluster store the same rows": (
        FILE,
        "kQuads + at.chunk *",
        "kQuads + ({on} ? 0 : at.chunk) *",
        WIDE_IN_CLUSTER,
    ),
}

program = emulation.program_fixture("emulated_fp8_b.cpp", RUNG, MUTANTS)


def test_every_bit_is_that_of_the_model(program):
    done = emulation.run(program)
    num_cases = int(re.search(r"(\d+) cases$", done.stdout.strip())[1])
    assert done.returncode == 0 and done.stdout.count("right") == num_cases, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)
