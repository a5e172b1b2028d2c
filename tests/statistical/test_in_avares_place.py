"""Calibrated in Avare's place in the paper's experiments: about as close to the best distribution."""

import os
from typing import Any

import numba
import numpy as np
import pytest

import avare
from avare import datasets, schedules

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many steps for interpreted code")
DATA = os.environ.get("AVARE_DATA")
MORE = 0.02  # relative error that is allowed beyond Avare's
EPOCHS, LAST = 100, 5  # epochs in all, and those that are averaged over


def relative_error(sampler: str, name: str, steps: str, seed: int) -> float:
    """Of the distribution at the end, in the paper's settings."""
    data = datasets.load(name, folder=DATA or None)
    is_small = name == "synthetic"
    problem: Any = (avare.problems.Logistic if is_small else avare.problems.Softmax)(data.X, data.y, l2=1.0)
    size = 1 if is_small else 128
    largest = float(problem.smoothness.max())
    sizes: schedules.Schedule = schedules.constant(size / (2.0 * problem.n * largest))
    p_min = 1.0 / (5 * problem.n)
    if steps == "decreasing":
        sizes, p_min = schedules.inverse_time(problem.n, largest, problem.strong_convexity, size), 0.0
    make: Any = avare.samplers.get(sampler)
    run = avare.sgd(problem, make(problem.n, size, replacement=True, p_min=p_min, seed=seed), sizes, epochs=EPOCHS)
    return float(np.mean(run.trace.relative_error[-LAST:]))


def compare(name: str, steps: str, seeds: range) -> None:
    """On average over seeds: one differs from the next by 0.014 at most (benchmarks/results/calibrated.md)."""
    theirs, ours = (
        float(np.mean([relative_error(sampler, name, steps, seed) for seed in seeds]))
        for sampler in ("Avare", "Calibrated")
    )
    assert theirs < 0.5  # the yardstick is worth something
    assert ours <= theirs + MORE


@pytest.mark.parametrize("steps", ["decreasing", "constant"])
@pytest.mark.parametrize("name", ["synthetic", "digits"])
def test_as_good_as_avare(name: str, steps: str) -> None:
    compare(name, steps, range(7, 9))


@pytest.mark.slow
@pytest.mark.parametrize("steps", ["decreasing", "constant"])
@pytest.mark.parametrize("name", ["ijcnn1", "mnist"])
def test_as_good_as_avare_on_the_real_data(name: str, steps: str) -> None:
    if not DATA:
        pytest.skip("AVARE_DATA is not set")
    compare(name, steps, range(7, 10))
