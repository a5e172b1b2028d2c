"""Step sizes that are found: they converge on any scale, resume, and say what they need."""

from typing import Any

import numpy as np
import pytest

import avare
from avare.problems import Generic, LeastSquares, Logistic
from avare.schedules import Polynomial, auto
from avare.solvers import auto as search

pytestmark = pytest.mark.compiled


def squares(n: int = 400, scales: Any = 1.0, seed: int = 3) -> LeastSquares:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 4)) * scales
    return LeastSquares(X, X @ (np.array([1.0, -2.0, 0.5, 3.0]) / scales) + 0.1 * generator.normal(size=n), l2=0.0)


def sizes_of(run: avare.solvers.Run) -> Polynomial:
    assert isinstance(run.step_size, Polynomial)
    return run.step_size


def test_without_noise_the_size_is_one_over_the_curvature() -> None:
    # Batches of all examples: gradient descent, best between 1 and 2 over the curvature; steps fall from there.
    problem = squares()
    curvature = float(np.linalg.eigvalsh(problem.gram(np.zeros(4)))[-1])
    run = avare.sgd(problem, avare.Uniform(problem.n, problem.n, replacement=False, seed=0), steps=50)
    assert 0.5 <= sizes_of(run)(1) * curvature <= 2.5
    assert run.x == pytest.approx(problem.minimize(), abs=1e-3)
    assert run.search_seconds > 0.0


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_size_follows_the_scale_of_the_data(scale: float) -> None:
    sizes = [sizes_of(avare.sgd(squares(scales=each), avare.Avare(400, 8, seed=0), epochs=20)) for each in (1.0, scale)]
    # f(x) with rows times c is f(c x): with sizes over c^2 the iterates are the same over c, up to rounding.
    assert sizes[1].scale * scale**2 == pytest.approx(sizes[0].scale, rel=1e-3)


@pytest.mark.parametrize("sampler", ["Uniform", "Avare", "Calibrated"])
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_diverges_on_unscaled_data(sampler: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(1000, 5)) * np.logspace(-3, 3, 5) * generator.lognormal(0.0, 1.5, (1000, 1))
    problem = LeastSquares(X, X @ np.logspace(3, -3, 5) + generator.standard_t(2, size=1000), l2=0.0)
    with np.errstate(all="raise", under="ignore"):
        run = avare.sgd(problem, avare.samplers.build(sampler, problem, 8, seed=seed), epochs=5)
    assert run.status == "finished" and run.trace.objective[-1] < run.trace.objective[0]


def test_a_rare_huge_example_does_not_lead_astray() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(4000, 2))
    X[1234] = [300.0, 0.0]  # with uniform batches of 4, one step in 1000 meets it
    problem = LeastSquares(X, X @ [1.0, 1.0] + generator.normal(size=4000), l2=0.0)
    starts: list[int] = []
    run = avare.sgd(
        problem,
        avare.Uniform(4000, 4, seed=1),
        epochs=3,
        callback=lambda at: starts.append(at.step) if not at.step else None,
    )
    assert run.status == "finished" and run.trace.objective[-1] < run.trace.objective[0]
    assert len(starts) > 1  # it was started again


def test_a_problem_that_is_never_finite_ends() -> None:
    def gradient(x: Any, indices: Any, weights: Any) -> Any:
        return np.full(1, np.nan), np.ones(len(indices))

    problem = Generic(10, 1, batch_gradient=gradient, objective=lambda x: 1.0)
    with pytest.warns(avare.solvers.DivergenceWarning, match="diverged at step 1"):
        assert avare.sgd(problem, avare.Uniform(10, 2, seed=0), steps=5).status == "diverged"


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


def test_nothing_to_learn() -> None:
    problem = LeastSquares(np.zeros((20, 2)), np.ones(20), l2=0.0)
    run = avare.sgd(problem, avare.Uniform(20, 2, seed=0), epochs=2)
    assert run.status == "finished" and not run.x.any()


@pytest.mark.parametrize(("power", "steps"), [(0.0, 600), (1.0, 600), (0.5, 1), (0.5, 0)])
def test_kinds_and_short_runs(power: float, steps: int) -> None:
    problem = squares()
    run = avare.sgd(problem, avare.Avare(400, 8, seed=0), auto(power), steps=steps, averaging="none")
    assert run.steps == steps and sizes_of(run).power == power
    if steps > 1:
        assert run.trace.objective[-1] < 0.1 * run.trace.objective[0]


def test_large_data_are_judged_by_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_FEWEST_ROWS", 50)
    generator = np.random.default_rng(0)
    X = generator.normal(size=(5000, 3)) * generator.lognormal(0.0, 1.0, (5000, 1))
    problem = Logistic(X, X[:, 0] + generator.normal(size=5000) > 0.0, l2=1.0)
    sketch = search._sketch(problem, 600)
    assert sketch.n == 600 and search._sketch(problem, 2600) is problem
    # 600 rows drawn by their curvature: the objective at 0, 5000 log 2, has a relative error of about 1 / sqrt(600).
    assert sketch.objective(np.zeros(3)) == pytest.approx(problem.objective(np.zeros(3)), rel=0.25)
    run = avare.sgd(problem, avare.Avare(5000, 1, seed=0), steps=2000)
    assert run.trace.objective[-1] < run.trace.objective[0]


def test_resuming_gives_the_same_iterates() -> None:
    problem = squares()
    whole = avare.sgd(problem, avare.Avare(400, 8, seed=5), epochs=4)
    half = avare.sgd(problem, avare.Avare(400, 8, seed=5), epochs=4, callback=lambda at: at.epoch >= 2)
    assert half.status == "stopped" and half.step_size == whole.step_size
    rest = avare.sgd(problem, avare.Avare(400, 8), epochs=4, resume=half.state_dict())
    assert np.array_equal(rest.x, whole.x) and rest.step_size == whole.step_size and rest.search_seconds == 0.0
    fixed = avare.sgd(problem, avare.Avare(400, 8, seed=5), lambda t: 1e-4, epochs=1, averaging="recent")
    with pytest.raises(ValueError, match="resume lacks 'step_size'"):
        avare.sgd(problem, avare.Avare(400, 8), epochs=4, resume=fixed.state_dict())


def test_recent_iterates_have_the_most_weight() -> None:
    problem = squares()
    seen: list[Any] = []
    arguments: Any = {"steps": 30, "evaluate": 1, "callback": lambda at: seen.append(at.x.copy())}
    run = avare.sgd(problem, avare.Avare(400, 8, seed=5), 1e-3, averaging="recent", **arguments)
    t = np.arange(1.0, 31.0)
    weights = t * (t + 1.0) * (t + 2.0)  # what the recursion with (3 + 1) / (t + 3) gives
    assert run.x == pytest.approx(weights @ np.array(seen[1:]) / weights.sum(), rel=1e-9)


def test_what_is_refused() -> None:
    problem, sampler = squares(), avare.Avare(400, 8, seed=0)
    with pytest.raises(TypeError, match="step_size = 'fast': must be \"auto\""):
        avare.sgd(problem, sampler, "fast")  # type: ignore[arg-type]  # it is refused
    with pytest.raises(ValueError, match=r"power = 2\.0"):
        auto(2.0)
    blind = Generic(400, 1, batch_gradient=lambda x, i, w: (np.zeros(1), np.ones(len(i))))
    with pytest.raises(ValueError, match="needs an objective"):
        avare.sgd(blind, sampler)
    with pytest.raises(TypeError, match="step_size"):
        avare.sgld(problem, sampler, "fast")  # type: ignore[arg-type]  # it is refused
    assert sampler.steps == 0
