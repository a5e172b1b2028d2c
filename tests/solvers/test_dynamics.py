"""Your own dynamics in one file, and tuning as a function."""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.solvers.chains import ChainOptions, ChainSteps, draw_chains
from avare.solvers.dynamics import Dynamics
from avare.solvers.kernels import add_penalty, move_by_gradient, update_kernel
from avare.solvers.metric import Metric, colour, metric_at, whiten
from avare.solvers.sghmc import Hamiltonian
from avare.solvers.sgld import Langevin
from avare.solvers.tuning import Tuned, TuningOptions, points_around, tune
from linear_models import N, make

pytestmark = [
    pytest.mark.compiled,  # tuning runs thousands of steps
    pytest.mark.filterwarnings("ignore::avare.solvers.ConvergenceWarning"),  # most chains here are short
]


class EulerState(NamedTuple):
    metric: Metric
    velocity: NDArray[np.float64]
    scratch: NDArray[np.float64]


class Euler(Dynamics):
    """SGHMC as it was published, with friction 2: v <- (1 - 2 h) v - h F^T g + 2 sqrt(h) xi,  x <- x + h F v."""

    name = "euler"
    uses_hessian = True

    def build(self, metric: Metric, generator: np.random.Generator) -> EulerState:
        dim = len(metric.root)
        return EulerState(metric, generator.standard_normal(dim), np.zeros(dim))


class TunedEuler(Euler):
    def choose_step_size(self, variance: float, curvature: float, *, independent: bool) -> float:
        return 0.1 / math.sqrt(curvature)

    def fast_step(self, step_size: float) -> tuple[float, float]:
        return step_size, step_size**2


@update_kernel(EulerState, saved=("velocity",))
def step(state: Any, work: Any, size: Any, noise: Any, done: Any, at: Any) -> Any:
    if not add_penalty(work, size):
        return False
    whiten(state.metric, work.gradient, state.scratch)
    for j in range(len(work.x)):
        state.velocity[j] += 2.0 * math.sqrt(size) * noise[done, j] - size * (
            2.0 * state.velocity[j] + state.scratch[j]
        )
        state.scratch[j] = size * state.velocity[j]
    colour(state.metric, state.scratch, work.gradient)
    return move_by_gradient(work)


def test_your_own_dynamics_have_the_law_of_the_posterior_and_resume() -> None:
    problem = make("LeastSquares")

    def run(steps: int, **options: Any) -> avare.solvers.Chain:
        sampler = avare.Uniform(N, N, seed=0)
        return draw_chains(ChainOptions(problem, Euler(), sampler, 0.05, steps=steps, burn_in=200), **options)

    whole, half = run(20_000, seed=1), run(9_000, seed=1)
    exact = np.sqrt(np.diag(np.linalg.inv(problem.hessian(problem.minimize()))))
    # The step widens by about h / 4, and 4 x 1,000 units of time have some 1,000 independent draws: 2.2 %, five times.
    assert np.abs(whole.std() / exact - 1.0).max() < 0.0125 + 0.11 and whole.solver == "euler"
    assert np.array_equal(run(20_000, resume=half.state_dict()).draws, whole.draws)


def test_what_your_own_dynamics_lack_is_named() -> None:
    with pytest.raises(TypeError, match='step_size = "auto": euler has no rule for it; pass a number'):
        draw_chains(ChainOptions(make("LeastSquares"), Euler()))
    chain = draw_chains(ChainOptions(make("Logistic"), TunedEuler(), steps=20))
    assert 0.0 < chain.step_size <= 0.1 and chain.draws.shape == (4, 20, 4)


@pytest.mark.parametrize("dynamics", [Langevin(), Hamiltonian(0.7)])
def test_the_arguments_of_a_call_stay_as_they_are(dynamics: Dynamics) -> None:
    options = ChainOptions(make("Logistic"), dynamics, "Calibrated", batch_size=6, steps=30, chains=2)
    before = dataclasses.replace(options)
    first, second = (draw_chains(options, seed=2) for _ in range(2))
    assert options == before and options.step_size == "auto"
    assert np.array_equal(first.draws, second.draws) and first.step_size == second.step_size


@pytest.mark.parametrize("n", [N, 5000])
def test_tuning_returns_a_result_and_changes_nothing(n: int) -> None:
    """Up to 62,500 examples, draws are thinned such that the gradients at them count, and refine the metric."""
    problem, dynamics = make("Logistic", n=n), Hamiltonian(1.0)
    mode, options = problem.minimize(), ChainOptions(problem, dynamics)
    metric = metric_at(problem, mode)
    first = Tuned(mode, mode, points_around(problem, mode, metric, 16), 150, metric, mode, "auto")
    steps = partial(ChainSteps, options.of_short_chains())
    fixed, free = (TuningOptions(first, dynamics, options.build_sampler, steps, x, x, False) for x in (False, True))
    found, other = tune(problem, fixed), tune(problem, free)
    assert found.anchor is mode and found.metric is metric and found.batch_size == 150 and found.step_size > 0.1
    assert other.metric is not metric and not np.array_equal(other.anchor, mode)
    assert found.starts.shape == (4, problem.dim) and first.step_size == "auto" and first.starts is mode
    with pytest.raises(AttributeError):
        found.step_size = 1.0  # type: ignore[misc]  # the point
