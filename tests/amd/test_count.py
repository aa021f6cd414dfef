"""Counting of main loops: bank conflicts against the counters of an MI300X, loops of small kernels against what their
source says.

Planted bugs that must be found: phases of neighbouring lanes for 16-byte reads of CDNA3, one bank more, a loop chosen
without regard to what its iterations repeat, waves counted twice.
"""

import numpy as np
import pytest
from amd_interpreter.count import count_loop, lds_clocks, phases, resources
from amd_interpreter.interpreter import Access, load
from test_interpreter import compiled, multiply  # noqa: F401

# Conflicts of 64 reads by a wave, lanes a stride of bytes apart: SQ_LDS_BANK_CONFLICT of an MI300X,
# nod-ai/amd-shark-ai, docs/empirical-lds/cdna3info.md.
MEASURED = {
    4: {4: 0, 8: 128, 16: 384, 32: 896, 64: 1920, 128: 3968, 256: 3968, 512: 3968},
    8: {8: 0, 16: 256, 32: 768, 64: 1792, 128: 3840, 256: 3840, 512: 3840},
    16: {16: 0, 32: 512, 64: 1536, 128: 3584, 256: 3584, 512: 3584},
}
CASES = [(size, stride, count) for size, row in MEASURED.items() for stride, count in row.items()]


def access(size, addresses) -> Access:
    addresses = np.asarray(addresses)
    return Access("lds", size, np.ones(len(addresses), bool), [addresses])


@pytest.mark.parametrize("size, stride, expected", CASES)
def test_conflicts_are_those_that_an_mi300x_counts(size, stride, expected):
    clocks, conflicts = lds_clocks("gfx942", access(size, stride * np.arange(64)), False)
    assert 64 * conflicts == expected
    assert clocks == conflicts + 64 * size // 128


def rows_of(row_bytes, swizzle=False):
    """A fragment of 16 rows, 16 bytes of each for every 16 lanes; swizzled: chunk number XOR row."""
    lane = np.arange(64)
    row, chunk = lane % 16, lane // 16
    return row * row_bytes + 16 * (chunk ^ (row % 8) if swizzle else chunk)


def test_fragments_of_rows():
    """Rows of 128 bytes collide unless they are swizzled. Padding is not enough: the lanes of a phase are not
    neighbours, and belong to two chunks."""
    for arch, padded in (("gfx90a", 8), ("gfx942", 8), ("gfx950", 4)):
        assert lds_clocks(arch, access(16, rows_of(128)), False)[1] > 0
        assert lds_clocks(arch, access(16, rows_of(128, swizzle=True)), False)[1] == 0
        assert lds_clocks(arch, access(16, rows_of(144)), False)[1] == padded  # with neighbours it would be 0
    lanes = np.arange(32)
    for arch in ("gfx1100", "gfx1201"):  # 16 rows twice, as both halves of the lanes read them
        assert lds_clocks(arch, access(16, lanes % 16 * 64), False) == (16, 12)
        assert lds_clocks(arch, access(16, lanes % 16 * 48), False)[1] == 0


def test_phases_cover_each_lane_once():
    for arch, lanes in (("gfx90a", 64), ("gfx942", 64), ("gfx950", 64), ("gfx1100", 32), ("gfx1201", 32)):
        for size in (2, 4, 8, 12, 16):
            for is_store in (False, True):
                found = phases(arch, size, is_store)
                assert sorted(lane for phase in found for lane in phase) == list(range(lanes))
    assert len(phases("gfx950", 16, False)) == 4 and len(phases("gfx950", 16, True)) == 8


def test_lanes_that_share_a_word_and_inactive_lanes():
    assert lds_clocks("gfx942", access(4, np.zeros(64, int)), False) == (2, 0)
    some = Access("lds", 4, np.arange(64) < 3, [np.array([0, 128, 256])])
    assert lds_clocks("gfx942", some, False) == (3, 2)


@pytest.mark.parametrize("arch, name", [("gfx942", "mfma_f16"), ("gfx1100", "wmma_f16"), ("gfx1201", "wmma_f16")])
def test_a_loop_of_matrix_instructions(arch, name, compiled):  # noqa: F811
    """A product, two barriers, and its fragments a step; the copies are loops of their own, or unrolled."""
    kernel, traces = load(compiled(arch)).kernels[name], []
    threads = 256 if arch == "gfx942" else 128
    multiply(load(compiled(arch)), name, (64, 16, 80), traces=traces)
    counts = count_loop(kernel, traces)
    assert (counts.kinds["matrix"], counts.kinds["barriers"], counts.kinds["LDS writes"] > 0) == (1, 2, True)
    assert counts.lds_clocks["LDS reads"] >= counts.kinds["LDS reads"]
    assert sum(counts.kinds.values()) == counts.instructions > 20
    found = resources(kernel, threads)
    assert (found.spills, found.lds_bytes) == (0, kernel.shared_bytes) and found.waves_per_simd >= 4
