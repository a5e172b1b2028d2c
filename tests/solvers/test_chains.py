"""Control variates, Hamiltonian steps and preconditioning: arithmetic, resuming, divergence, widening.

The laws are tested in tests/statistical/test_posteriors.py.
"""

import math
import pickle
import re
import warnings
from typing import Any

import arviz
import numba
import numpy as np
import pandas
import pytest
from scipy import sparse

import avare
from avare.diagnostics import convergence
from avare.problems import Generic
from avare.solvers import Chain, ConvergenceWarning, DivergenceWarning
from avare.solvers.chains import build_estimator
from avare.solvers.convergence import convergence_report
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.kernels import Work
from avare.solvers.metric import balanced_metric, blank, colour, coloured, diagonal, metric_at, whiten, whitened
from avare.solvers.tuning import expected_norms, points_around
from linear_models import N, make, plainly, saved_and_loaded, without_compiled_loop

SIZE = 2e-3
DECREASING = avare.schedules.polynomial(1e-3, 5.0, 0.4)
METHODS = {"sgld": avare.sgld, "sghmc": avare.sghmc}
pytestmark = pytest.mark.filterwarnings("ignore::avare.solvers.ConvergenceWarning")  # most chains here are short


def sgld(*arguments: Any, **options: Any) -> Chain:
    return avare.sgld(*arguments, **{"chains": 1, **options})


def draw(method: str, problem: Any, sampler: Any = None, size: Any = SIZE, **options: Any) -> Chain:
    if method == "sghmc":
        options = {"friction": 0.7, **options}
    chosen = avare.Calibrated(N, 6, seed=3) if sampler is None else sampler
    return METHODS[method](
        problem, chosen, size, **{"steps": 60, "burn_in": 11, "thin": 4, "seed": 2, "chains": 1, **options}
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("control", ["none", "mode", "saga"])
def test_compiled_and_plain_loops_give_the_same_draws(method: str, control: str) -> None:
    plain = without_compiled_loop(avare.Calibrated)
    for problem in (make("Logistic"), make("Softmax", bias=True)):
        fast, slow = (
            draw(method, problem, kind(N, 6, seed=3), control=control, precondition="moments", evaluate=20)
            for kind in (avare.Calibrated, plain)
        )
        assert fast.draws.shape == (1, 12, problem.dim) and np.ptp(fast.draws) > 0.01
        assert np.array_equal(fast.draws, slow.draws) and np.allclose(fast.trace.regret, slow.trace.regret, rtol=1e-12)


@pytest.mark.parametrize("control", [False, True])
def test_a_step_is_that_of_sgd_and_noise(control: bool) -> None:
    problem, every = make("Logistic", sample_weight=np.linspace(0.5, 2.0, N)), np.arange(N)
    mode = problem.minimize() + 0.1  # any point serves
    known = [problem.batch_gradient(mode, [i], [1.0])[0] * control for i in every]
    options: Any = {"control": mode} if control else {}
    chain = sgld(problem, avare.Avare(N, 5, seed=1), DECREASING, start=np.ones(4), steps=8, seed=4, **options)
    sampler, noise = avare.Avare(N, 5, seed=1), np.random.default_rng(np.random.SeedSequence(4).spawn(2)[0])
    x = np.ones(4)
    for t in range(8):
        batch, size = sampler.sample(), DECREASING(t + 1)
        terms = [problem.batch_gradient(x, [i], [1.0])[0] - known[i] for i in batch.indices]
        gradient = np.sum(known, axis=0) + batch.weights @ np.array(terms)
        x = x - size * (gradient + 0.7 * x) + math.sqrt(2.0 * size) * noise.standard_normal(4)
        sampler.update(batch.indices, np.linalg.norm(terms, axis=1))
        assert np.allclose(chain.draws[0, t], x, rtol=1e-9)
    # Up to NumPy 2.0, powers of arrays and of single numbers may differ in the last bit.
    assert chain.step_sizes == pytest.approx([DECREASING(t) for t in range(1, 9)], rel=4e-16)


def test_the_table_of_saga_holds_the_last_slopes_and_their_sum() -> None:
    problem = make("Softmax", bias=True)
    x = np.random.default_rng(0).normal(size=problem.dim)
    estimator = build_estimator(problem, "saga", x, 8)
    assert isinstance(estimator, TableEstimator)
    slopes = estimator.state.slopes
    before = slopes.copy()
    x += np.linspace(-0.3, 0.5, problem.dim)
    indices = np.array([5, 9, 5, 5, 2, 9, 0, 1])  # the same example several times changes the sum once
    weights = np.linspace(1.0, 3.0, 8)
    expected, norms = estimator.at(x, indices, weights)
    l2, chances = problem.penalty.l2, np.full(8, 1 / N)
    work = Work(
        x, problem.coefficients(x), estimator.gradient, l2, indices, chances, weights, np.empty(8), estimator.scratch
    )
    assert estimator.take(work)
    assert np.allclose(work.gradient, expected) and np.allclose(work.norms, norms)
    changed = np.flatnonzero((slopes != before).any(axis=1))
    assert changed.tolist() == [0, 1, 2, 5, 9]
    assert np.allclose(slopes[changed], problem.survey(x).slopes[changed])
    rows = np.column_stack([np.asarray(problem.model.matrix.dense), np.ones(N)])
    assert np.allclose(estimator.state.sums, slopes.T @ rows)


def test_estimates_are_unbiased_with_any_control() -> None:
    problem = make("Huber")
    x = np.array([0.3, -0.2, 0.1, 0.5])
    mode = np.array([0.5, -0.1, 0.0, 0.2])
    true = problem.gradient(x) - 0.7 * x
    for each in (problem, plainly(problem)):
        for control in ("none", "mode") + (("saga",) if each is problem else ()):
            estimator = build_estimator(each, control, mode.copy(), N, mode)
            whole, norms = estimator.at(x, np.arange(N), np.ones(N))  # all examples once: no noise is left
            assert np.allclose(whole, true) and np.allclose(estimator.norms(x), norms)
            parts = [estimator.at(x, np.array([i]), np.array([float(N)]))[0] for i in range(N)]
            assert np.allclose(np.mean(parts, axis=0), true)


def test_any_problem_takes_a_control_variate() -> None:
    problem = make("LeastSquares")
    mode = problem.minimize()
    linear, generic = (
        # At the mode all differences are 0 but for rounding: a sampler that learns them would draw by rounding.
        sgld(each, avare.Uniform(N, 5, seed=1), SIZE, control=mode, steps=20, seed=4)
        for each in (problem, plainly(problem))
    )
    assert np.allclose(linear.draws, generic.draws, rtol=1e-9)
    found = sgld(plainly(problem), avare.Uniform(N, 5, seed=1), SIZE, control="mode", steps=20, seed=4)
    assert np.allclose(found.draws, linear.draws, atol=1e-3)  # the same mode, found by gradients alone
    with pytest.raises(TypeError, match=r'control = "saga": needs a linear model of avare.problems, not Generic'):
        sgld(plainly(problem), avare.Avare(N, 5), SIZE, control="saga", steps=2)


def test_samplers_in_python_and_those_that_follow_the_path() -> None:
    problem = make("Logistic")
    for sampler in (
        avare.Safe(N, 5, smoothness=problem.smoothness, seed=1),
        avare.Optimal(N, 5, seed=1),
        avare.Stratified(N, 5, seed=1),
    ):
        chain = draw("sghmc", problem, sampler, control="mode")
        assert np.isfinite(chain.draws).all() and chain.steps == 60


@pytest.mark.compiled
@pytest.mark.parametrize("way", ["pickle", "savez"])
@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        ("sgld", "Avare", {"size": DECREASING}),
        ("sgld", "Avare", {"size": DECREASING, "chains": 2}),
        ("sgld", "Calibrated", {"control": "mode"}),
        ("sgld", "Calibrated", {"control": "saga", "precondition": "moments"}),
        ("sghmc", "Calibrated", {"control": "saga", "chains": 2}),
        ("sgld", "Calibrated", {"size": "auto"}),
        ("sgld", "Uniform", {"reshuffle": True}),
    ],
)
def test_resumes_to_the_same_draws(method: str, kind: str, options: dict[str, Any], way: str) -> None:
    more = {"reshuffle": True} if "reshuffle" in options else {}
    options = {"steps": 600, "thin": 7, "evaluate": 100} | {k: v for k, v in options.items() if k not in more}

    def run(stop: int | None = None, resume: Any = None) -> Chain:
        sampler = getattr(avare, kind)(N, 6, seed=None if resume else 9, **more)
        given = {**options, "resume": resume, "callback": lambda now: now.step == stop, "seed": None if resume else 3}
        return draw(method, make("Logistic"), sampler, **given)

    whole = run()  # the noise is measured after 250 and 500 steps
    for stop in (0, 100, 300, 600):
        part = run(stop)
        rest = run(resume=saved_and_loaded(part.state_dict(), way))
        assert part.status == "stopped" and part.steps == stop and rest.steps == 600
        assert np.array_equal(rest.draws, whole.draws) and rest.step_size == whole.step_size
        assert np.array_equal(rest.traces[-1].regret, whole.traces[-1].regret)


def test_a_state_of_other_steps_is_refused() -> None:
    plain = draw("sgld", make("Logistic")).state_dict()
    controlled = draw("sgld", make("Logistic"), control="mode").state_dict()
    with pytest.raises(ValueError, match=r"resume\['control'\] = 'none': this run has 'mode'"):
        draw("sgld", make("Logistic"), control="mode", resume=plain)
    with pytest.raises(ValueError, match=r"resume\['control'\] = 'mode': this run has 'none'"):
        draw("sgld", make("Logistic"), resume=controlled)
    with pytest.raises(ValueError, match="this call has 'sghmc'"):
        draw("sghmc", make("Logistic"), resume=plain)
    with pytest.raises(ValueError, match=r"resume\['chains'\] = 1: this call has 3"):
        draw("sgld", make("Logistic"), chains=3, resume=plain)
    with pytest.raises(ValueError, match="resume lacks 'noise'"):
        draw("sgld", make("Logistic"), resume={k: v for k, v in plain.items() if k != "0/noise"})
    with pytest.raises(ValueError, match="resume lacks 'step_size'"):
        draw("sgld", make("Logistic"), size="auto", resume={k: v for k, v in plain.items() if k != "step_size"})


@pytest.mark.parametrize(("method", "chains"), [("sgld", 2), ("sghmc", 1)])
def test_divergence_is_reported(method: str, chains: int) -> None:
    problem, options = make("LeastSquares"), {"size": 1e6, "steps": 1000, "burn_in": 0, "thin": 1, "control": "mode"}
    with pytest.warns(DivergenceWarning, match="chain [01] diverged at step" if chains > 1 else "^diverged at step"):
        chain = draw(method, problem, avare.Avare(N, 5, seed=1), chains=chains, **options)
    assert chain.status == "diverged" and 0 < chain.steps < 1000 and np.isfinite(chain.draws).all()
    assert chain.draws.shape[1] == chain.steps and repr(chain).startswith(f"Chain(diverged after {chain.steps} steps")


@pytest.mark.parametrize("method", METHODS)
def test_a_last_step_that_overflows_is_a_divergence(method: str) -> None:
    scale = np.full(4, 1e300)
    with pytest.warns(DivergenceWarning, match="diverged at step 1,"):
        chain = draw(method, make("LeastSquares"), size=1e150, precondition=scale, steps=1, burn_in=0, thin=1)
    assert chain.status == "diverged" and chain.steps == 0 and chain.draws.shape == (1, 0, 4)


def test_columns_of_any_scale_do_not_matter_with_preconditioning() -> None:
    scales = np.array([1.0, 1e3, 1e-3, 7.0])
    one = make("Logistic", l2=0.0)
    other = type(one)(np.asarray(one.model.matrix.dense) * scales, one.model.targets, l2=0.0)
    first, second = (
        sgld(each, avare.Uniform(N, 5, seed=1), 0.01, precondition="hessian", control="mode", steps=30, seed=4)
        for each in (one, other)
    )
    assert np.allclose(first.draws, second.draws * scales, rtol=1e-5)


@pytest.mark.compiled
def test_a_chain_says_what_is_wrong_with_it() -> None:
    problem = make("Logistic")
    with pytest.warns(ConvergenceWarning, match=r"standard deviations are wrong by \+.*control=\"mode\"") as caught:
        plain = avare.sgld(problem, avare.Uniform(N, 2, seed=0), 0.02, steps=8000, burn_in=200, seed=0)
    assert len(caught) == 1 and plain.noise is not None and "; ".join(plain.warnings) == str(caught[0].message)
    assert "standard deviations are wrong by +" in str(plain.noise) and "Nothing is wrong" not in str(plain.noise)
    controlled = avare.sgld(problem, avare.Uniform(N, 2, seed=0), 0.02, control="mode", steps=8000, burn_in=200, seed=0)
    assert controlled.noise is not None and plain.draws.shape == (4, 7800, 4)  # four chains by default
    assert (controlled.noise.widening < 0.5 * plain.noise.widening).all()
    with pytest.warns(ConvergenceWarning, match="standard deviations are wrong"):
        table = plain.summary(["a", "b", "c", "d"])
    assert table.attrs["warnings"] == plain.warnings and table.index.tolist() == ["a", "b", "c", "d"]
    assert np.allclose(table["mean"], plain.mean()) and np.allclose(table["sd"], plain.std())
    assert np.allclose(table["50%"], plain.quantile(0.5)) and np.array_equal(table["ess"], plain.noise.ess)
    assert np.array_equal(table["widening"], plain.noise.widening) and (table["r_hat"] < 1.2).all()


def test_no_all_clear_without_draws_that_agree() -> None:
    # Exact gradients, steps much too small: standard deviations would be right, were there more than a few draws.
    problem = make("LeastSquares")
    starts = problem.minimize() + np.array([[-1.0], [1.0]]) * np.ones(4)
    with pytest.warns(ConvergenceWarning, match=r"R-hat .* at x\[.*effective draws at x\["):
        chain = avare.sgld(problem, avare.Uniform(N, N, seed=0), 1e-7, steps=300, chains=2, start=starts, seed=0)
    assert chain.noise is not None and (chain.noise.r_hat > 1.5).all() and (chain.noise.ess < 20.0).all()
    assert "Nothing is wrong" not in str(chain.noise)
    with pytest.warns(ConvergenceWarning, match="R-hat nan"):  # too few draws for any verdict
        draw("sgld", problem, steps=20)


def test_r_hat_and_effective_draws_are_those_of_arviz() -> None:
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(3, 501, 40))
    for t in range(1, 501):
        draws[:, t] += np.linspace(-0.5, 0.98, 40) * draws[:, t - 1]
    draws[1, :, :5] += 2.0
    data = arviz.convert_to_dataset(draws)
    r_hat, ess = convergence(draws)
    assert np.allclose(r_hat, arviz.rhat(data, method="split")["x"], rtol=1e-10)
    assert np.allclose(ess, arviz.ess(data, method="mean")["x"], rtol=0.08)  # it cuts the last pair a little later
    assert np.isnan(convergence(draws[:, :3])).all() and np.isnan(convergence(0.0 * draws)[0]).all()


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.3, 0.0), (0.7, 0.4)])
def test_the_identities_measure_what_is_wrong_with_draws_of_a_normal_law(scale: float, shift: float) -> None:
    problem = make("LeastSquares")
    mode, covariance = problem.minimize(), np.linalg.inv(problem.hessian(problem.minimize()))
    draws = np.random.default_rng(1).multivariate_normal(np.zeros(4), covariance, size=(4, 2000))
    draws = mode + scale * draws + shift * np.sqrt(np.diag(covariance))
    estimator, sampler = build_estimator(problem, "none", mode.copy(), N), avare.Uniform(N, N, seed=0)
    found = convergence_report(draws, np.full(8000, 1 / 8000), estimator, sampler, 8000)
    # Standard deviations of 8000 draws are right to 1 / sqrt(16000). What is wrong is measured at 512 of them. Both are
    # taken five times. Shifts are in standard deviations of the draws, and S / P is the square of the scale.
    tolerance = 5.0 * (1.0 / np.sqrt(16_000) + np.sqrt(2.0 / 512) * abs(scale**2 - 1.0) / (2.0 * scale))
    assert np.abs(found.widening - (scale - 1.0)).max() < tolerance
    assert np.abs(found.shift - shift * scale).max() < 0.06
    assert bool(found.warnings()) == ((scale, shift) != (1.0, 0.0))
    noisy = convergence_report(
        draws, np.full(8000, 1 / 8000), estimator, avare.Uniform(N, 30, seed=0), 1
    )  # exact all the same: few
    assert np.array_equal(noisy.widening, found.widening)
    estimator = build_estimator(plainly(problem), "mode", mode.copy(), N, mode)
    noisy = convergence_report(draws, np.full(8000, 1 / 8000), estimator, avare.Uniform(N, 30, seed=0), 1)  # by batches
    assert (np.abs(noisy.widening - found.widening) < 5.0 * noisy.widening_error + 1e-3).all()
    assert (noisy.widening_error > found.widening_error).all()


@pytest.mark.parametrize("widest", [256, 10])
def test_the_metric_makes_all_directions_alike(widest: int) -> None:
    generator = np.random.default_rng(0)
    kinds = generator.integers(0, 39, 3000)
    X = np.eye(39)[kinds] * 10.0 ** generator.uniform(-2, 2, 39)
    problem = avare.problems.Logistic(X, generator.random(3000) < 0.4, l2=1e-3, bias=True)
    mode = problem.minimize()
    metric = metric_at(problem, mode, widest)
    assert [each.shape for each in blank(40, widest)] == [each.shape for each in metric]
    factor = coloured(metric, np.eye(40)).T
    values = np.linalg.eigvalsh(factor.T @ problem.hessian(mode) @ factor)
    # Exact if the metric is a whole matrix. Otherwise 32 of the 40 directions are, and the diagonal is an estimate.
    assert np.allclose(values, 1.0, rtol=1e-6) if widest == 256 else (values.max() / values.min() < 10.0)
    plain = np.sqrt(np.diag(problem.hessian(mode)))
    assert np.linalg.cond(problem.hessian(mode) / np.outer(plain, plain)) > 50.0  # a diagonal would not do
    vector, result = generator.normal(size=40), np.empty(40)
    whiten(metric, vector, result)
    assert np.allclose(result, whitened(metric, vector[None])[0]) and np.allclose(result, factor.T @ vector)
    expected = factor @ vector
    colour(metric, vector, result)
    assert np.allclose(result, expected)


def test_draws_that_overflow_are_judged_too() -> None:
    problem = make("LeastSquares")
    draws = np.zeros((2, 20, problem.dim))
    draws[1, 7] = np.inf
    found = convergence_report(
        draws, np.full(40, 1 / 40), build_estimator(problem, "none", np.zeros(problem.dim), 5), avare.Uniform(N, 5), 40
    )
    assert any("standard deviations are wrong by +nan%" in each for each in found.warnings())


@pytest.mark.parametrize("count", [5, 40, 5000])
def test_the_metric_of_draws_and_gradients(count: int) -> None:
    """For a normal law it is its covariance, wherever the draws are, and it stays positive with few of them."""
    generator = np.random.default_rng(3)
    root = generator.normal(size=(12, 12))
    curvature = root @ root.T + 0.1 * np.eye(12)
    start = diagonal(np.ones(12))._replace(factor=np.eye(12))
    away = generator.normal(size=(count, 12)) @ generator.normal(size=(12, 12))  # not draws of the law
    found = balanced_metric(start, away - away.mean(axis=0), away @ curvature)
    scaled = np.linalg.eigvalsh(found.factor.T @ curvature @ found.factor)
    before = np.linalg.eigvalsh(curvature)
    assert scaled.max() <= before.max() * (1.0 + 1e-9) and scaled.min() > 0.0
    assert count < 5000 or (np.abs(scaled - 1.0) < 0.5).all()  # 20 draws of the old metric count too


def test_steps_are_short_enough_for_a_wall() -> None:
    """One step inwards from the steepest draws, the curvature is still stable."""
    if numba.config.DISABLE_JIT:
        pytest.skip("a minute and a half without compiled code; the compiled run tests it")
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 1))
    problem = avare.problems.Logistic(X, X[:, 0] > 0.0, l2=1e-4)
    sizes = {}
    for name, method in METHODS.items():
        with pytest.warns(ConvergenceWarning):  # 20 steps
            sizes[name] = method(problem, seed=0, steps=20, chains=1).step_size
    assert sizes["sghmc"] < 0.5 and sizes["sgld"] < 0.1  # 0.7 and 0.19 for a normal posterior


@pytest.mark.compiled
def test_wide_models_take_a_metric_of_low_rank() -> None:
    generator = np.random.default_rng(0)
    X = np.diag(10.0 ** generator.uniform(-1.0, 1.0, 1100))  # above 1000 columns the metric is not a whole matrix
    for k in range(0, 24, 2):  # 12 pairs that are nearly collinear: a diagonal would not do
        X[:, k + 1] = X[:, k] + 0.1 * X[:, k + 1]
    problem = avare.problems.LeastSquares(sparse.csr_matrix(X), generator.normal(size=1100), l2=0.01)
    exact = np.sqrt(np.diag(np.linalg.inv(problem.hessian(np.zeros(1100)))))
    chain = avare.sghmc(problem, steps=5000, seed=0)
    # More than 3000 effective draws: 1 / sqrt(6000), five times over.
    assert chain.noise is not None and chain.noise.ess.min() > 3000.0 and not chain.warnings
    assert np.abs(chain.std() / exact - 1.0).max() < 0.065


@pytest.mark.compiled
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dim", [300, 1100])
def test_more_steep_directions_than_a_metric_of_low_rank_has(method: str, dim: int) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 25)) @ generator.normal(size=(25, dim))
    problem = avare.problems.LeastSquares(X, X[:, 0] + generator.normal(size=80), l2=1.0)
    chain = METHODS[method](problem, steps=300, chains=2, seed=0)
    assert chain.status == "finished" and (dim > 300 or chain.step_size > 0.1)  # it diverged, or steps are short


@pytest.mark.parametrize("method", METHODS)
def test_automatic_steps_are_stable_in_any_metric(method: str) -> None:
    problem = make("LeastSquares")  # with curvatures up to 100
    chain = METHODS[method](problem, precondition="none", control="mode", steps=100, chains=1, seed=0)
    largest = np.linalg.eigvalsh(problem.hessian(np.zeros(4)))[-1]
    power = {"sgld": 1.0, "sghmc": 0.5}[method]
    assert 0.1 < chain.step_size * largest**power < 1.0  # 2 is stable


@pytest.mark.compiled
def test_automatic_steps_keep_the_widening_small() -> None:
    problem = make("Logistic")
    sizes = []
    for method in METHODS:
        for control in ("none", "mode", "saga"):
            sampler = avare.Uniform(N, 6, seed=3)
            chain = draw(method, problem, sampler, size="auto", control=control, steps=20_000, burn_in=500, chains=2)
            sizes.append(chain.step_size)
            assert sampler.steps == 20_000  # short chains draw with copies
            # 5 % is aimed at. Without control there are 150 effective draws: 1 / sqrt(300), not quite twice over.
            assert chain.noise is not None and np.abs(chain.noise.widening).max() < 0.15
    assert sizes[1] > 2.0 * sizes[0] and sizes[4] > 2.0 * sizes[3]  # control allows longer steps


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"control": "best"}, ValueError, "control = 'best': must be one of none, mode, saga"),
        ({"control": np.zeros(3)}, ValueError, r"control has shape \(3,\): must be \(4,\)"),
        ({"precondition": "full"}, ValueError, "precondition = 'full': must be one of none, hessian, moments"),
        ({"size": "large"}, TypeError, "step_size = 'large': must be \"auto\""),
        ({"precondition": "moments", "burn_in": 0}, ValueError, "burn_in = 0: precondition"),
        ({"steps": -1}, ValueError, "steps = -1"),
        ({"burn_in": -1}, ValueError, "burn_in = -1"),
        ({"thin": 0}, ValueError, "thin = 0"),
        ({"chains": 0}, ValueError, "chains = 0"),
        ({"start": np.zeros((3, 4)), "chains": 2}, ValueError, r"start has shape \(3, 4\): must be \(4,\) or \(2, 4\)"),
        ({"progress": "yes"}, TypeError, "progress = 'yes'"),
        ({"resume": {"method": "sgd"}}, ValueError, "resume lacks 'chains'"),
        ({"callback": lambda now: None}, ValueError, 'after each evaluation, and evaluate = "never"'),
        ({"problem": make("Logistic", l1=0.5)}, ValueError, r"problem has l1 = 0.5"),
        ({"method": "sghmc", "friction": 0.0}, ValueError, "friction = 0"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw(**{"method": "sgld", "problem": make("Logistic"), **arguments})


def test_errors_name_what_is_missing_before_anything_is_minimised() -> None:
    blind = Generic(3, 1, batch_gradient=lambda x, i, w: (w.sum() * x, np.ones(len(i))))  # it has no objective
    for method in (avare.sgld, avare.sghmc):
        with pytest.raises(TypeError, match=r'step_size = "auto": needs a linear model of avare.problems, not Generic'):
            method(blind, avare.Uniform(3, 1), steps=2)
        with pytest.raises(TypeError, match=r"sampler = None: a name needs a linear model"):
            method(blind, step_size=SIZE, steps=2)
        with pytest.raises(ValueError, match="objective was not given"):
            method(blind, avare.Uniform(3, 1), SIZE, control="mode", steps=2)
        with pytest.raises(TypeError, match=r'"hessian": needs a linear model of avare.problems, not Generic'):
            method(blind, avare.Uniform(3, 1), SIZE, precondition="hessian", steps=2)
        with pytest.raises(TypeError, match=r"problem is of type str: must be one of avare.problems"):
            method("foo")  # type: ignore[arg-type]  # the point
    assert sgld(blind, avare.Uniform(3, 1, seed=0), SIZE, steps=2, seed=0).steps == 2


def test_noise_is_measured_with_a_copy_of_the_sampler() -> None:
    sampler = avare.Calibrated(N, 6, seed=3)
    draw("sghmc", make("Logistic"), sampler, steps=600)  # measured after 250 and 500 steps
    assert sampler.steps == 600
    sampler = avare.Calibrated(N, 6, seed=3)
    draw("sgld", make("Logistic"), sampler, steps=100, burn_in=40, precondition="moments")
    assert sampler.steps == 100


@pytest.mark.compiled
def test_a_sampler_by_name_is_built_from_the_norms_near_the_mode() -> None:
    problem = make("Logistic", sample_weight=np.linspace(0.5, 2.0, N))
    mode = problem.minimize()
    points = points_around(problem, mode, metric_at(problem, mode), 400)
    assert np.allclose(expected_norms(problem, "none", mode, points), problem.norms(mode))
    # The root of the mean square of differences, in the metric: the slopes' changes times the lengths of the rows.
    rows = whitened(metric_at(problem, mode), np.asarray(problem.model.matrix.dense))
    changes = np.array([problem.survey(x).slopes[:, 0] for x in points]) - problem.survey(mode).slopes[:, 0]
    found = np.sqrt(np.mean(changes**2, axis=0)) * np.linalg.norm(rows, axis=1)
    floor = 0.05 * 0.25 * problem.model.sample_weight * np.linalg.norm(rows, axis=1) ** 2
    some = found > 4.0 * floor
    ratio = found[some] / expected_norms(problem, "mode", mode, points)[some]
    assert np.abs(np.log(ratio)).max() < 0.3 and np.ptp(np.log(found[some])) > 1.5  # by 400 points, and by the floor
    chain = sgld(problem, "Calibrated", SIZE, batch_size=6, control="mode", steps=20, seed=4)
    again = sgld(problem, "Calibrated", SIZE, batch_size=6, control="mode", steps=20, seed=4)
    state = chain.state_dict()
    assert np.array_equal(chain.draws, again.draws)
    assert (state["0/sampler/sampler"], state["0/sampler/batch_size"]) == ("Calibrated", 6)
    with pytest.raises(TypeError, match=r"sampler = 'Static': a name needs a linear model"):
        sgld(plainly(make("LeastSquares")), "Static", SIZE, steps=2)
    with pytest.raises(ValueError, match="batch_size = 5: the sampler has its own"):
        sgld(problem, avare.Uniform(N, 5), SIZE, batch_size=5)


def improper_and_proper() -> list[Any]:
    generator = np.random.default_rng(0)
    X, kinds = generator.normal(size=(600, 3)), np.eye(4)[generator.integers(0, 4, 600)]
    y = generator.random(600) < 1.0 / (1.0 + np.exp(-X[:, 0]))
    pure = y | (kinds[:, 2] > 0.0)  # one column has one class only
    rare = np.arange(600) < 2
    wide = generator.normal(size=(600, 300))
    wide[:, -1] = 3.0 * wide[:, 0]
    flat = r"f does not rise along x\[.*: these columns determine each other, or occur with one class only"
    logistic, squares = avare.problems.Logistic, avare.problems.LeastSquares
    return [
        pytest.param(logistic(X, X[:, 0] > 0.2, l2=0.0, bias=True), "separate the classes", id="separable"),
        pytest.param(logistic(kinds, y, l2=0.0, bias=True), flat, id="dummies and an intercept"),
        pytest.param(squares(kinds, X[:, 0], l2=0.0, bias=True), flat, id="dummies, squares"),
        pytest.param(logistic(kinds, pure, l2=0.0), r"not rise along x\[2\]: these", id="a column with one class"),
        pytest.param(avare.problems.Softmax(X, y + pure, l2=0.0), flat, id="softmax"),
        pytest.param(
            squares(X[:3], X[:3, 0], l2=0.0, bias=True), "4 coefficients have no prior, more than", id="d > n"
        ),
        pytest.param(squares(wide, X[:, 0], l2=0.0), r"not rise along x\[0\], x\[299\]: these", id="300 columns"),
        pytest.param(
            logistic(kinds, pure, l2=[1.0, 1.0, 0.0, 1.0]), r"not rise along x\[2\]: these", id="a prior for some"
        ),
        pytest.param(logistic(X * [1e-6, 1.0, 1e6], y, l2=0.0, bias=True), None, id="scaled columns"),
        pytest.param(logistic(X, rare, l2=0.0, bias=True), None, id="rare events"),
        pytest.param(logistic(kinds, y, l2=1.0, bias="free"), None, id="dummies with a prior"),
        pytest.param(logistic(X, X[:, 0] > 0.2, l2=1e-6), None, id="separable with a prior"),
    ]


@pytest.mark.compiled  # the warning is that of the mode, whatever the steps do
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("problem", "reason"), improper_and_proper())
@pytest.mark.filterwarnings("ignore::avare.solvers.DivergenceWarning")
def test_an_improper_posterior_is_named(problem: Any, reason: str | None, method: str) -> None:
    chain = METHODS[method](problem, steps=400, chains=2, seed=0)
    assert chain.noise is not None
    if reason is None:
        assert not chain.noise.improper and "improper" not in str(chain.noise)
    else:
        (text,) = chain.noise.warnings()
        assert re.fullmatch(rf"the posterior is improper \(.*{reason}.*\): pass l2 > 0", text)
        assert text in chain.warnings and text in str(chain.noise)
        again = METHODS[method](problem, steps=500, chains=2, seed=0, resume=chain.state_dict())
        assert again.noise is not None and again.noise.improper


def test_the_columns_of_a_data_frame_name_the_coordinates() -> None:
    generator = np.random.default_rng(0)
    frame = pandas.DataFrame(generator.normal(size=(60, 2)), columns=["age", "height"])
    y = generator.integers(0, 3, 60)
    problem = avare.problems.Logistic(frame, y > 0, bias=True)
    chain = avare.sghmc(problem, steps=20, chains=2, seed=0)
    assert list(chain.summary().index) == list(chain.to_frame().columns)[1:] == ["age", "height", "bias"]
    assert any("effective draws at" in each and "age" in each for each in chain.warnings)
    assert pickle.loads(pickle.dumps(chain)).names == problem.names
    assert avare.problems.Softmax(frame, y).names[:3] == ["0: age", "0: height", "1: age"]
    assert avare.problems.Logistic(frame.to_numpy(), y > 0).names == ["x[0]", "x[1]"]
    assert avare.problems.Logistic(pandas.DataFrame(frame.to_numpy()), y > 0).names == ["x[0]", "x[1]"]


@pytest.mark.compiled
def test_a_mode_that_rounding_limits_is_no_warning() -> None:
    X = np.random.default_rng(0).normal(size=(300, 2)) * 1e6
    problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0] + 1e3, l2=1e-6)
    with pytest.warns(avare.problems.ToleranceWarning, match="above tolerance"):
        problem.minimize()
    with warnings.catch_warnings():
        warnings.simplefilter("error", avare.problems.ToleranceWarning)
        assert not avare.sghmc(problem, seed=0).warnings


@pytest.mark.parametrize("method", METHODS)
def test_a_level_with_one_class_and_a_weak_prior_is_no_crash(method: str) -> None:
    """The metric stays regular with a prior of standard deviation 300, and chains that are too short say so."""
    if numba.config.DISABLE_JIT:
        pytest.skip("a minute without compiled code; the compiled run tests it")
    generator = np.random.default_rng(1)
    X, level = generator.normal(size=(800, 3)), generator.integers(0, 5, 800)
    y = (generator.random(800) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0, 0.5]))) | (level == 4)
    problem = avare.problems.Logistic(np.c_[X, np.eye(5)[level][:, 1:]], y, l2=1e-5, bias=True)
    with pytest.warns(ConvergenceWarning, match="effective draws at .*: run more steps"):
        chain = METHODS[method](problem, seed=0)
    assert chain.std()[6] < 400.0  # 189 by importance sampling; it was 10^4 and more
