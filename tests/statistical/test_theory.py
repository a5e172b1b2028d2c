"""The paper's theory, on its synthetic problem: how the regret grows, and the two inequalities behind it."""

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.experiments import datasets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="hours without compiled code; the compiled run tests it"),
]
STEPS, SEEDS = 100_000, 10


def exponent(regret: NDArray[np.float64]) -> float:
    """The slope of log regret against log T over the last decade, at points evenly spaced in log T."""
    steps = np.unique(np.geomspace(STEPS / 10, STEPS, 50).astype(int))
    slope: float = np.polyfit(np.log(steps), np.log(regret[steps - 1]), 1)[0]
    return slope


@pytest.mark.parametrize(("method", "delta", "bound"), [("sgd", 1.0, 2 / 3), ("sgld", 0.5, 5 / 6)])
def test_the_regret_grows_no_faster_than_proved(method: str, delta: float, bound: float) -> None:
    data = datasets.load("synthetic")
    problem = avare.problems.Logistic(data.X, data.y, l2=1.0)
    sizes = avare.schedules.inverse_time(problem.n, problem.smoothness.max(), 1.0)
    regrets = []
    for seed in range(SEEDS):
        sampler = avare.Avare(problem.n, 1, delta=delta, seed=seed)
        if method == "sgd":
            trace = avare.sgd(problem, sampler, sizes, steps=STEPS, evaluate=1).trace
        else:
            trace = avare.sgld(
                problem, sampler, sizes, steps=STEPS, burn_in=STEPS, evaluate=1, chains=1, seed=seed
            ).trace
        regrets.append(trace.regret[:-1])  # the draw of the last row is never made
    mean = np.mean(regrets, axis=0)
    assert (np.diff(mean) >= 0.0).all() and len(mean) == STEPS
    assert exponent(mean) <= bound + 0.05


@pytest.mark.parametrize("noisy", [False, True])
def test_the_recursion_and_the_bound_of_each_step_hold(noisy: bool) -> None:
    """Lemma 3, in expectation over the next draw, which is enumerated; and the bound of Lemma 2.

    Without an l2 term gradients are bounded, by the longest row; all gradients of an example are
    multiples of its row, so their distances are known from the slopes. SGLD's noise is drawn for
    each of the next draws; it enters both sides in the same way.
    """
    data = datasets.load("synthetic")
    problem = avare.problems.Logistic(data.X, data.y, l2=0.0)
    n, lengths = problem.n, problem.lengths
    G, L = lengths.max(), problem.smoothness.max()
    delta = 0.5 if noisy else 1.0
    sizes = avare.schedules.polynomial(1.0, 2 * n * L, 1.0)
    sampler = avare.Avare(n, 1, delta=delta, c=2.0 * n, replacement=True, seed=1)
    generator = np.random.default_rng(2)
    rows = data.X * data.y[:, None]

    def slopes(x: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = -1.0 / (1.0 + np.exp(rows @ x.T)).T
        return found

    x, remembered = np.zeros(problem.dim), np.zeros(n)  # h = 0 at the start
    for t in range(1, 3001):
        size, floor = sizes(t), sampler.floor
        p = sampler.probabilities()
        now = slopes(x)
        apart = (np.abs(now - remembered) * lengths).sum()  # sum_i |g_i - h_i|
        norms = np.abs(now) * lengths
        assert p.min() >= floor * (1.0 - 1e-12)
        # Lemma 2: what this step loses to the best distribution.
        lost = avare.diagnostics.cost(norms, p) - avare.diagnostics.optimal_cost(norms)
        assert lost <= 4.0 * G / floor * apart + 6.0 * floor * G**2 * n**3

        # Lemma 3: the sum after the step, expected over which example is drawn.
        noise = np.sqrt(2.0 * size) * generator.normal(size=problem.dim) if noisy else np.zeros(problem.dim)
        next_x = x - size * (now / p)[:, None] * rows + noise  # one row for each example that may be drawn
        change = np.linalg.norm(next_x - x, axis=1)
        after = np.abs(slopes(next_x) - remembered) * lengths
        after[np.arange(n), np.arange(n)] = np.abs(np.diag(slopes(next_x)) - now) * lengths  # of the one drawn
        assert p @ after.sum(axis=1) <= (n * L * (p @ change) + (1.0 - floor) * apart) * (1.0 + 1e-12)
        if not noisy:  # Assumption 3, with A = N G E, B = F and delta = 1
            assert p @ change <= n * G * size * (1.0 + 1e-12)

        batch = sampler.sample()
        drawn = int(batch.indices[0])
        x = next_x[drawn]
        remembered[drawn] = now[drawn]
        sampler.update(batch.indices, norms[batch.indices])
