"""What the plans of wgmma_fp8 choose: each can be carried out, and the choice depends on the problem alone."""

import random

import pytest
from test_wgmma_plan import build

NUM_PROBLEMS = 2000
SIZES = (1, 2, 15, 16, 64, 100, 127, 128, 129, 256, 300, 1000, 4096, 7168, 24576, 70000)
# Rows of a block of A's factors, of B's; 0: factors are of rows.
RECIPES = ((0, 0), (1, 128), (1, 1), (128, 1), (128, 128))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return build("wgmma_fp8_plan.cpp", tmp_path_factory.mktemp("config"))


def random_problems():
    rng = random.Random(54)

    def size():
        return rng.choice(SIZES) if rng.random() < 0.7 else rng.randint(1, 20000)

    return [
        (size(), size(), size(), *(rng.randint(0, 1) for _ in range(3)), rng.choice((0, 0, 1, 8, 16)),
         rng.randint(0, 1), *rng.choice(RECIPES), rng.choice((0, 0, 1 << 20, 8)), rng.choice((132, 132, 114, 78)))
        for _ in range(NUM_PROBLEMS)
    ]  # fmt: skip


def test_every_plan_is_legal(plan):
    chosen = set()
    problems = random_problems()
    for problem, row in zip(problems, plan(problems), strict=True):
        m, n, k, along_m, along_n, c_along_m, gap, _, *recipe, address, _ = problem
        num_plans, num_illegal, tile, _, _, is_exchanged, copies_a, copies_b, *_, cost, least, chunk = row
        assert num_plans > 0 and num_illegal == 0, (problem, row)
        assert 0 < cost == least and chunk == k, (problem, row)
        # Read in place: along k, rows at multiples of 16 bytes. A C along m is computed transposed.
        is_unfit = [
            address % 16 or (k > 1 and along) or (size > 1 and (k + gap) % 16)
            for along, size in ((along_m, m), (along_n, n))
        ]
        if k > 1 and m > 1 and n > 1:
            copies = [copies_b, copies_a] if c_along_m else [copies_a, copies_b]
            assert copies == [bool(unfit) for unfit in is_unfit], (problem, row)
        chosen.add((tile, is_exchanged, bool(recipe[0])))
    # All kinds of plans are chosen for something.
    assert len({tile for tile, *_ in chosen}) >= 5 and {1, 0} == {is_exchanged for _, is_exchanged, _ in chosen}, chosen


def test_the_choice_depends_on_the_problem_alone(plan):
    """Neither on what was planned before nor on where operands lie, but for their alignment."""
    problems = random_problems()[: NUM_PROBLEMS // 2]
    expected = plan(problems)
    order = list(range(len(problems)))
    random.Random(1).shuffle(order)
    assert plan([problems[i] for i in order]) == [expected[i] for i in order]
    elsewhere = [(*problem[:10], problem[10] + (1 << 30), problem[11]) for problem in problems]
    assert plan(elsewhere) == expected


def test_the_order_of_summation_does_not_depend_on_m(plan):
    """One chunk, of the same k tiles for all tiles: there is no plan that splits k."""
    for n, k, recipe in ((7168, 2048, (0, 0)), (64, 100000, (0, 0)), (2112, 7168, (1, 128)), (300, 129, (1, 1))):
        rows = plan([(m, n, k, 0, 0, 0, 0, 0, *recipe, 0, 132) for m in (*range(1, 300, 7), 4096, 70000)])
        assert {row[-1] for row in rows} == {k}
        assert all(row[1] == 0 for row in rows)
