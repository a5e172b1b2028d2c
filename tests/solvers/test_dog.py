"""Step sizes that are found: they converge on any scale, resume, and say what they need."""

from typing import Any

import numpy as np
import pytest

import avare
from avare.problems import Generic, LeastSquares, SmoothedHinge
from avare.schedules import auto
from linear_models import without_compiled_loop


def squares(n: int = 400, scales: Any = 1.0, seed: int = 3) -> LeastSquares:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 4)) * scales
    return LeastSquares(X, X @ (np.array([1.0, -2.0, 0.5, 3.0]) / scales) + 0.1 * generator.normal(size=n), l2=0.0)


def size_of(run: avare.solvers.Run) -> float:
    assert isinstance(run.step_size, float)
    return run.step_size


def test_the_sizes_are_the_distance_over_the_root_of_the_sum_of_squares() -> None:
    # A transcription of the rule: one example, so that each step has the same gradient function.
    problem = LeastSquares(np.array([[1.0, 2.0]]), [3.0], l2=0.5)
    run = avare.sgd(problem, avare.Uniform(1, 1, seed=0), steps=40, averaging="none")
    x, total = np.zeros(2), 0.0
    here = problem.gradient(x)
    furthest = float(np.linalg.norm(here)) / (5.0 + 0.5)  # the first move: gradient over smoothness, |a|^2 + l2
    for _ in range(40):
        here = problem.gradient(x)
        total += float(here @ here)
        size = furthest / np.sqrt(total)
        x = x - size * here
        furthest = max(furthest, float(np.linalg.norm(x)))
    assert run.x == pytest.approx(x, rel=1e-12)
    assert size_of(run) == pytest.approx(furthest / np.sqrt(total), rel=1e-12)


@pytest.mark.compiled
def test_a_loss_that_is_flat_or_straight_at_the_start() -> None:
    # Smoothed hinge has no curvature where the margin is below 0: the first move must not come from there.
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 5))
    problem = SmoothedHinge(X, X @ np.arange(5.0) + generator.normal(size=300) > 0.0, l2=1.0)
    run = avare.sgd(problem, avare.Uniform(300, 8, seed=0), epochs=20)
    assert run.trace.objective[-1] < 1.1 * problem.objective(problem.minimize())


@pytest.mark.compiled
def test_without_noise_the_size_is_about_one_over_the_curvature() -> None:
    # Batches of all examples: gradient descent, which converges with sizes up to 2 over the curvature.
    problem = squares()
    curvature = float(np.linalg.eigvalsh(problem.gram(np.zeros(4)))[-1])
    run = avare.sgd(problem, avare.Uniform(problem.n, problem.n, replacement=False, seed=0), steps=200)
    assert 0.2 <= size_of(run) * curvature <= 2.0
    assert run.x == pytest.approx(problem.minimize(), abs=1e-3)


@pytest.mark.compiled
@pytest.mark.parametrize("scale", [2.0**-17, 2.0**17])
def test_the_size_follows_the_scale_of_the_data(scale: float) -> None:
    sizes = [size_of(avare.sgd(squares(scales=each), avare.Avare(400, 8, seed=0), epochs=20)) for each in (1.0, scale)]
    # f(x) with rows times c is f(c x): with sizes over c^2 the iterates are the same over c, up to rounding, and
    # a power of 2 keeps the draws.
    assert sizes[1] * scale**2 == pytest.approx(sizes[0], rel=1e-3)


@pytest.mark.filterwarnings("ignore::avare.solvers.ConvergenceWarning")  # small columns are far from their minimum
@pytest.mark.compiled
@pytest.mark.parametrize("sampler", ["Uniform", "Avare", "Calibrated"])
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_diverges_on_unscaled_data(sampler: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(1000, 5)) * np.logspace(-3, 3, 5) * generator.lognormal(0.0, 1.5, (1000, 1))
    problem = LeastSquares(X, X @ np.logspace(3, -3, 5) + generator.standard_t(2, size=1000), l2=0.0)
    with np.errstate(all="raise", under="ignore"):
        run = avare.sgd(problem, avare.samplers.build(sampler, problem, 8, seed=seed), epochs=5)
    assert run.status == "finished" and run.trace.objective[-1] < run.trace.objective[0]


@pytest.mark.compiled
def test_a_rare_huge_example_does_not_lead_astray() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(4000, 2))
    X[1234] = [300.0, 0.0]  # with uniform batches of 4, one step in 1000 meets it
    problem = LeastSquares(X, X @ [1.0, 1.0] + generator.normal(size=4000), l2=0.0)
    for seed in range(4):
        run = avare.sgd(problem, avare.Uniform(4000, 4, seed=seed), epochs=3)
        assert run.status == "finished" and run.trace.objective[-1] < 0.2 * run.trace.objective[0]


def test_a_problem_that_is_never_finite_ends() -> None:
    def gradient(x: Any, indices: Any, weights: Any) -> Any:
        return np.full(1, np.nan), np.ones(len(indices))

    problem = Generic(10, 1, batch_gradient=gradient, objective=lambda x: 1.0)
    with pytest.warns(avare.solvers.DivergenceWarning, match="diverged at step 1"):
        assert avare.sgd(problem, avare.Uniform(10, 2, seed=0), steps=5).status == "diverged"


@pytest.mark.compiled
def test_a_problem_of_python_functions() -> None:
    places = np.random.default_rng(0).normal(size=(200, 2)) ** 3
    problem = Generic(
        200,
        2,
        batch_gradient=lambda x, i, w: (w @ (x - places[i]), np.linalg.norm(x - places[i], axis=1)),
        objective=lambda x: 0.5 * float(((x - places) ** 2).sum()),
    )
    run = avare.sgd(problem, avare.Avare(200, 8, seed=0), epochs=40)
    # The error of a mean over 1000 steps of 8 draws, with most weight on the last quarter: about 0.05.
    assert run.x == pytest.approx(places.mean(axis=0), abs=0.25)
    blind = Generic(400, 1, batch_gradient=lambda x, i, w: (w.sum() * (x - 2.0), np.full(len(i), abs(x[0] - 2.0))))
    run = avare.sgd(blind, avare.Avare(400, 8, seed=0), steps=300, evaluate="never")  # it has no objective
    assert run.x == pytest.approx([2.0], abs=1e-2)


def test_nothing_to_learn() -> None:
    problem = LeastSquares(np.zeros((20, 2)), np.ones(20), l2=0.0)
    run = avare.sgd(problem, avare.Uniform(20, 2, seed=0), epochs=2)
    assert run.status == "finished" and not run.x.any()


@pytest.mark.compiled
@pytest.mark.parametrize(("power", "steps"), [(0.0, 600), (1.0, 600), (0.5, 1), (0.5, 0)])
def test_kinds_and_short_runs(power: float, steps: int) -> None:
    problem = squares()
    run = avare.sgd(problem, avare.Avare(400, 8, seed=0), auto(power), steps=steps, averaging="none")
    assert run.steps == steps
    if steps > 1:
        assert run.trace.objective[-1] < 0.1 * run.trace.objective[0]
        # Found in the first tenth of the steps: a run that ends there has the same size at its end.
        pilot = avare.sgd(problem, avare.Avare(400, 8, seed=0), steps=steps // 10, averaging="none")
        assert size_of(run) == pytest.approx(size_of(pilot) * 10.0**-power, rel=1e-12)


@pytest.mark.compiled
def test_a_start_at_the_minimum_stays_near_it() -> None:
    problem = squares()
    best = problem.minimize()
    run = avare.sgd(problem, avare.Avare(400, 8, seed=0), start=best, epochs=2)
    assert run.trace.suboptimality[-1] < 0.01 * problem.objective(best)


@pytest.mark.compiled
@pytest.mark.parametrize("power", [None, 0.5])
def test_resuming_gives_the_same_iterates(power: float | None) -> None:
    problem, wanted = squares(), auto(power)
    whole = avare.sgd(problem, avare.Avare(400, 8, seed=5), wanted, epochs=4)
    half = avare.sgd(problem, avare.Avare(400, 8, seed=5), wanted, epochs=4, callback=lambda at: at.epoch >= 2)
    assert half.status == "stopped"
    rest = avare.sgd(problem, avare.Avare(400, 8), wanted, epochs=4, resume=half.state_dict())
    assert np.array_equal(rest.x, whole.x) and rest.step_size == whole.step_size
    fixed = avare.sgd(problem, avare.Avare(400, 8, seed=5), lambda t: 1e-4, epochs=1, averaging="recent")
    with pytest.raises(ValueError, match=r"resume\['adapt_until'\] = 0"):
        avare.sgd(problem, avare.Avare(400, 8), wanted, epochs=4, resume=fixed.state_dict())
    if power is not None:
        with pytest.raises(ValueError, match="adapt_until"):  # found in a tenth of other steps
            avare.sgd(problem, avare.Avare(400, 8), wanted, epochs=8, resume=half.state_dict())


@pytest.mark.compiled
def test_samplers_without_kernels_get_the_same_sizes() -> None:
    problem = squares()
    kinds = (avare.Avare, without_compiled_loop(avare.Avare))
    runs = [avare.sgd(problem, kind(400, 8, seed=5), epochs=4) for kind in kinds]
    assert [run.compiled for run in runs] == [True, False]
    assert runs[0].x == pytest.approx(runs[1].x, rel=1e-9) and runs[0].step_size == pytest.approx(runs[1].step_size)
