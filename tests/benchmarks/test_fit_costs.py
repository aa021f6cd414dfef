"""benchmarks/fit_costs.py on measurements that a model made itself, with other constants and noise: the fit finds its
way back, and what it writes is what the sources then say.

Planted bugs that these tests caught: a step uphill is taken, a table whose values are another's, a row that is added
once more instead of replaced, the rates of the wrong chip in a borrowed row.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fit_costs  # noqa: E402

DEVICE, ARCH = "cuda:sm_80", 80


@pytest.fixture(scope="module")
def model(built_once):
    """Its library is compiled once."""
    folder = built_once("fit_costs", lambda folder: fit_costs.Model("skinny", DEVICE, folder))
    return fit_costs.Model("skinny", DEVICE, folder)


def write_measurements(path: Path, model: fit_costs.Model, noise: np.random.Generator) -> None:
    """What bench_regret.py would, on a chip where the model is exact but for noise of a hundredth."""
    rng, rows = random.Random(1), []
    while len(rows) < 250:
        precision = rng.choice(("bf16", "fp64"))
        m, n, k = (int(2 ** rng.uniform(*ends)) for ends in ((0, 3 if precision == "fp64" else 6), (6, 14), (6, 14)))
        text = f"{rng.randint(2, 9)}x" * (rng.random() < 0.2) + f"{m}x{n}x{k}:{rng.choice(('NN', 'NT'))}"
        (times,) = model.times([fit_costs.problem_of(fit_costs.parse_shape(text), precision)])
        plans = {f"skinny:{i}": float(us * noise.lognormal(0, 0.01)) for i, us in enumerate(times)}
        rows.append({"precision": precision, "shape": text, "plans": plans})
    path.write_text(json.dumps({"chip": DEVICE, "device": "A GPU", "rows": rows}))


def test_a_fit_finds_the_constants_that_made_the_measurements(model, tmp_path):
    noise = np.random.default_rng(2)
    for values in model.values.values():
        values *= np.exp(noise.uniform(-1.2, 1.2, len(values)))
    write_measurements(tmp_path / "regret.json", model, noise)
    for name, values in model.values.items():
        values[:] = model.start[name]
    device, products = fit_costs.read_measurements([tmp_path / "regret.json"])
    fitted, held_out = products[:150], products[150:]
    before = fit_costs.regrets({"skinny": model}, held_out)
    fit_costs.fit("skinny", model, fitted)
    rows = fit_costs.predictions({"skinny": model}, held_out)
    errors = [abs(np.log(predicted / us)) for row in rows for predicted, us in row]
    assert np.median(errors) < 0.02 and np.quantile(errors, 0.9) < 0.06, np.quantile(errors, (0.5, 0.9, 1))
    after = fit_costs.regrets({"skinny": model}, held_out)
    regrets = np.mean(before), np.mean(after)
    assert device == DEVICE and regrets[0] > 1.005 and regrets[1] < 1 + (regrets[0] - 1) / 3, regrets
    # The row that is written is what the next library starts from.
    csrc = tmp_path / "csrc"
    for name in ("kernels/cuda/skinny/costs.h", "dispatch/chips.cpp"):
        (csrc / name).parent.mkdir(parents=True)
        shutil.copy(fit_costs.CSRC / name, csrc / name)
    assert not fit_costs.is_fitted("skinny", ARCH, csrc) and fit_costs.is_fitted("skinny", 90, csrc)
    costs = csrc / "kernels/cuda/skinny/costs.h"
    before = fit_costs.TABLE.findall(costs.read_text())
    for _ in range(2):
        fit_costs.write_rows("skinny", model, ARCH, "A GPU", csrc)
    assert fit_costs.is_fitted("skinny", ARCH, csrc)
    for (struct, name, rows), (_, _, old) in zip(fit_costs.TABLE.findall(costs.read_text()), before, strict=True):
        found = fit_costs.rows_of(rows)
        if "Fp8" in name:
            assert list(found) == [90], "nothing was measured"
            continue
        assert found[90] == old and list(found) == [90, ARCH], "the H200's row stays"
        comment, row = found[ARCH].splitlines()
        numbers = [float(number) for number in row.strip("{}").replace("{", "").split(", ")]
        assert comment == "// A GPU" and numbers == [ARCH, *(float(f"{value:.4g}") for value in model.values[name])]
        assert len(fit_costs.members_of(costs.read_text(), struct)) == len(numbers) - 1
    fit_costs.name_chip(DEVICE, "A GPU", csrc)
    lines = (csrc / "dispatch/chips.cpp").read_text().splitlines()
    assert any('"sm_80"' in line for line in lines) and any(line.endswith('"A GPU"},') for line in lines)
    assert sum("after_sm_90(" in line for line in lines) == 2, "the function, and the host"


def test_the_row_of_a_chip_is_found_in_every_table():
    """However clang-format has broken it."""
    assert all(fit_costs.is_fitted(kernel, 90) for kernel in fit_costs.kernels())


def test_a_chip_without_a_row_borrows_scaled_constants(model):
    """A multiply-add of an A100 at its data sheet's rate, and its memory's share of what the H200's gives."""
    values = model.start["kSkinnyCosts"]
    product, rate_b, rate_a, start = values[:4]
    assert product == pytest.approx(2 / (312e6 / 108), rel=0.01)
    assert (rate_b, rate_a) == pytest.approx((3.3e6 * 1.94 / 4.2, 4.5e6 * 1.94 / 4.2)) and start == 7.2


def test_measurements_of_two_chips_are_refused(tmp_path):
    paths = [tmp_path / name for name in ("one.json", "other.json")]
    for path in paths:
        path.write_text(json.dumps({"chip": path.stem, "rows": []}))
    with pytest.raises(ValueError, match="got those of one, other, expected one chip"):
        fit_costs.read_measurements(paths)
