"""Step sizes that are found end within 1.5 times of the best fixed step, on eight problems and on six fresh ones."""

import warnings

import numpy as np
import pytest

import avare
from steps import FRESH, SAMPLERS, TUNED, WITHIN, cases, measure


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", [*TUNED, *FRESH])
def test_found_steps_against_the_best_fixed_one(name: str) -> None:
    (case,) = cases([name]).values()
    first = float(np.linalg.norm(case.problem.gradient(np.zeros(case.problem.dim))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avare.problems.ToleranceWarning)
        case.problem.minimize(tolerance=1e-8 * first)
        warnings.simplefilter("ignore", avare.solvers.ConvergenceWarning)  # of fixed sizes that are too small
        ratios = {sampler: measure(case, sampler, seeds=5)["auto"]["ratio"] for sampler in SAMPLERS}
    assert max(ratios.values()) <= WITHIN, ratios
