"""How the regret grows, at every step and over the last decade."""

import warnings
from typing import Any

import numba
import numpy as np
import pytest

import avare
import regret
import stored_runs
from avare.experiments import Request
from avare.experiments.runner import perform
from regret import Growth, exponent, growths_of
from stored_runs import csv_rows, parsed


def growths(records: list[dict[str, Any]]) -> list[Growth]:
    return growths_of(parsed(records))


@pytest.mark.parametrize("method", ["sgd", "sgld"])
def test_the_regret_of_every_step(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    length = 40 if numba.config.DISABLE_JIT else 700
    monkeypatch.setitem(regret.STEPS, "quick", length)
    (stage,) = regret.Theory().stages(Request(quick=True, runs=1))
    task = next(task for task in stage.tasks if task.spec["method"] == method)
    data = task.data
    record = perform(task.spec, data.X, data.y)
    steps, summed = record["trace"]["step"], record["trace"]["regret"]
    assert steps[0] == 1 and steps[-1] == length and len(steps) == len(summed) <= 400
    assert (np.diff(steps) > 0).all() and (np.diff(summed) >= -1e-9 * summed[-1]).all()
    problem = avare.problems.Logistic(data.X, data.y, l2=1.0)
    norms = problem.norms(np.zeros(10))
    assert summed[0] == pytest.approx(100 * (norms**2).sum() - norms.sum() ** 2)  # uniform, at 0
    # The second step's: the same plus what the distribution after the first update costs.
    sampler = avare.Avare(100, 1, replacement=True, seed=0, delta=1.0 if method == "sgd" else 0.5)
    size = 1.0 / (200 * float(problem.smoothness.max()) + 1.0)
    solve: Any = avare.sgd if method == "sgd" else avare.sgld
    more = {} if method == "sgd" else {"seed": 0, "chains": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avare.solvers.ConvergenceWarning)  # of one draw
        after = solve(problem, sampler, size, steps=1, **more)
    x = after.x if method == "sgd" else after.draws[0, -1]
    second = avare.diagnostics.cost(problem.norms(x), sampler.probabilities()) - problem.norms(x).sum() ** 2
    assert summed[1] == pytest.approx(summed[0] + float(second))
    assert np.isfinite(exponent(record["trace"]))


def test_the_exponent_is_that_of_the_last_decade() -> None:
    def fitted(steps: Any, regret: Any) -> float:
        return exponent({"step": steps, "regret": regret})

    steps = np.logspace(0, 6, 61)
    assert fitted(steps, np.where(steps < 0.99e5, steps**2, 1e10 * (steps / 1e5) ** 0.5)) == pytest.approx(
        0.5, rel=1e-6
    )
    assert np.isnan(fitted([1.0, 2.0], [0.0, 1.0])) and np.isnan(fitted([1.0, 1e6], [1.0, 1.0]))
    assert np.isnan(fitted([8, 9], [None, 1.0]))


def test_growth_of_the_regret() -> None:
    found = growths([stored_runs.theory(method, seed) for method in ("sgd", "sgld") for seed in range(3)])
    assert [(growth.label, len(growth.exponents)) for growth in found] == [("SGD", 3), ("SGLD", 3)]
    assert [growth.slope for growth in found] == pytest.approx([0.6, 0.75])


def test_the_slope_is_the_mean_of_the_runs_exponents() -> None:
    records = [stored_runs.theory("sgd", seed) for seed in range(2)]
    steps = np.array(records[0]["trace"]["step"])
    late = steps[-1] / 10.0
    records[0]["trace"]["regret"] = np.where(steps < late, steps**2, late**2 * (steps / late) ** 0.5).tolist()
    (growth,) = growths(records)
    assert growth.slope == pytest.approx((0.5 + 0.6) / 2, rel=1e-6)
    assert growth.slope == np.mean([exponent(record["trace"]) for record in records])


def test_theory_of_other_settings_is_not_mixed() -> None:
    other = stored_runs.theory("sgd")
    other["spec"] = {**other["spec"], "n": 50}
    labels = [growth.label for growth in growths([stored_runs.theory("sgd"), other])]
    assert sorted(labels) == ["SGD (n = 50)", "SGD (n = None)"]


def test_what_is_shown() -> None:
    found = regret.Theory().summarise(parsed([stored_runs.theory("sgd", seed) for seed in range(2)]))
    assert found is not None and regret.Theory().summarise([]) is None
    (row,) = csv_rows(found.tables["theory"])
    assert float(row["slope"]) == pytest.approx(0.6) and row["bound"] == "2/3" and row["runs"] == "2"
    (chart,) = found.figures["theory"].rows[0]
    assert [curve.label for curve in chart.curves] == ["SGD, slope 0.60", "T^(2/3)"]
    assert found.numbers["theory"][0]["slope"] == pytest.approx(0.6)
