"""A handful of the random posteriors of benchmarks/random_posteriors.py: right, or with a warning."""

import numba
import numpy as np
import pytest

import avare
import random_posteriors as posteriors

pytestmark = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT), reason="hours without compiled code; the compiled run tests it"
)


@pytest.mark.filterwarnings("ignore::avare.problems.ToleranceWarning")
@pytest.mark.parametrize(
    "seed", [1001, 1007, pytest.param(1085, marks=pytest.mark.slow), 1112, 1011, 1012, 59, 125, 149]
)
def test_no_posterior_is_wrong_in_silence(seed: int) -> None:
    # Chosen among those on which the defaults were tuned: nearly separable, few examples, nearly separable with a weak
    # prior, outliers, collinear, more columns than rows; and three with walls, where standard deviations were 4 to 22
    # times the exact ones.
    for found in posteriors.trial(seed):
        assert found["warnings"] or not posteriors.is_bad(found), found
        if found["solver"] == "sghmc":
            assert posteriors.is_good(found) and not found["warnings"], found


@pytest.mark.parametrize("seed", [76, pytest.param(184, marks=pytest.mark.slow)])
def test_the_metric_of_more_columns_than_rows_does_not_collapse(seed: int) -> None:
    posterior = posteriors.posterior_of(seed)[1]
    (found,) = posteriors.trial(seed, ["sgld"])
    assert found["dim"] > found["n"] == len(posterior.y)
    # The step size was 1e-10 and R-hat 228; the truth was missed by a factor of 3.
    assert found["step_size"] > 1e-3 and found["r_hat"] < 1.2 and not posteriors.is_bad(found)


@pytest.mark.parametrize("seed", range(2))
def test_nearly_separable_classes_with_a_weak_prior(seed: int) -> None:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(500, 2))
    y = (X @ [1.0, 1.0] > 0.0).astype(np.float64)
    y[np.argmin(np.abs(X @ [1.0, 1.0]))] = 1.0 - y[np.argmin(np.abs(X @ [1.0, 1.0]))]
    posterior = posteriors._make("Logistic", X, y, 1e-4)
    exact = posteriors.reference(posterior)
    assert exact.by == "grid"
    chain = avare.sghmc(posterior.problem, seed=seed)
    # More than 500 effective draws: 1 / sqrt(1000) and 1 / sqrt(500), four times over. It was 2.3 to 3 times as wide.
    assert chain.noise is not None and chain.noise.ess.min() > 500.0 and not chain.warnings
    assert np.abs(chain.std() / exact.sd - 1.0).max() < 0.13
    assert np.abs((chain.mean() - exact.mean) / exact.sd).max() < 0.18


@pytest.mark.parametrize("l2", [1e-3, 1e-4])
def test_a_level_of_one_class_does_not_throw_chains_out(l2: float) -> None:
    # The mode is next to a wall, and only the prior ends the other side. Standard deviations were 100 to 1000 times the
    # exact ones: short chains began inside the wall, and the step was tested beyond it, where f is straight.
    generator = np.random.default_rng(0)
    k = generator.integers(0, 5, 400)
    y = (generator.random(400) < 1.0 / (1.0 + np.exp(-generator.normal(size=5)[k]))).astype(np.float64)
    y[k == 0] = 1.0
    posterior = posteriors._make("Logistic", np.eye(5)[k], y, l2, bias=True)
    exact = posteriors.reference(posterior)
    for solver in posteriors.SOLVERS:
        found = posteriors.judged(posterior, exact, solver, 0)
        assert found["sd"] < 1.5 and (found["warnings"] or not posteriors.is_bad(found)), found
        assert not any("steps or larger batches" in each for each in found["warnings"]) or solver == "sgld"


def test_the_reference_is_that_of_the_library() -> None:
    for k, name in enumerate(posteriors.FAMILIES):
        posterior = posteriors.FAMILIES[name](np.random.default_rng(k))
        x = np.random.default_rng(0).normal(size=(2, posterior.problem.dim))
        values, gradients = posterior.energy(x)
        assert np.allclose(values, [posterior.problem.objective(each) for each in x])
        assert np.allclose(gradients, [posterior.problem.gradient(each) for each in x])
