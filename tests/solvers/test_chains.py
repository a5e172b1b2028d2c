"""Control variates, Hamiltonian steps and preconditioning: arithmetic, resuming, divergence, widening.

The laws are tested in tests/statistical/test_posteriors.py.
"""

import math
import warnings
from typing import Any

import numpy as np
import pytest

import avare
from avare.problems import Generic
from avare.solvers import Chain, ConvergenceWarning, DivergenceWarning
from avare.solvers.chains import estimator_of
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.kernels import Work
from avare.solvers.tuning import Tuning, expected_norms, points_around
from avare.solvers.updates.metric import diagonal, metric_at
from linear_models import N, make, plainly, saved_and_loaded

SIZE = 2e-3
METHODS = {"sgld": avare.sgld, "sghmc": avare.sghmc}
pytestmark = pytest.mark.filterwarnings("ignore::avare.solvers.ConvergenceWarning")  # most chains here are short


def sgld(*arguments: Any, **options: Any) -> Chain:
    return avare.sgld(*arguments, **{"chains": 1, **options})


def draw(method: str, problem: Any, sampler: Any = None, size: Any = SIZE, **options: Any) -> Chain:
    if method == "sghmc":
        options = {"friction": 0.7, **options}
    chosen = avare.Calibrated(N, 6, seed=3) if sampler is None else sampler
    return METHODS[method](problem, chosen, size, **{"steps": 60, "burn_in": 11, "thin": 4, "seed": 2, "chains": 1, **options})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("control", ["none", "mode", "saga"])
def test_compiled_and_plain_loops_give_the_same_draws(
    method: str, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avare.solvers.chains._PERIOD", 7)
    for problem in (make("Logistic"), make("Softmax", bias=True)):
        fast = draw(method, problem, control=control, precondition="moments")
        with monkeypatch.context() as patch:
            patch.setattr("avare.solvers.steps.can_learn", lambda kernels: False)
            slow = draw(method, problem, control=control, precondition="moments")
        assert fast.draws.shape == (1, 12, problem.dim) and np.ptp(fast.draws) > 0.01
        assert np.array_equal(fast.draws, slow.draws)


def test_a_step_with_control_is_that_of_the_differences() -> None:
    problem = make("Logistic", sample_weight=np.linspace(0.5, 2.0, N))
    mode = problem.minimize() + 0.1  # any point serves
    chain = sgld(problem, avare.Avare(N, 5, seed=1), SIZE, control=mode, start=np.ones(4), steps=8, seed=4)
    sampler, noise = avare.Avare(N, 5, seed=1), np.random.default_rng(np.random.SeedSequence(4).spawn(2)[0])
    x, whole = np.ones(4), problem.batch_gradient(mode, np.arange(N), np.ones(N))[0]
    for t in range(8):
        batch = sampler.sample()
        gradient, norms = whole.copy(), []
        for index, weight in zip(batch.indices, batch.weights, strict=True):
            difference = problem.batch_gradient(x, [index], [1.0])[0] - problem.batch_gradient(mode, [index], [1.0])[0]
            gradient += weight * difference
            norms.append(np.linalg.norm(difference))
        x = x - SIZE * (gradient + 0.7 * x) + math.sqrt(2.0 * SIZE) * noise.standard_normal(4)
        sampler.update(batch.indices, norms)
        assert np.allclose(chain.draws[0, t], x, rtol=1e-9)


def test_the_table_of_saga_holds_the_last_slopes_and_their_sum() -> None:
    problem = make("Softmax", bias=True)
    x = np.random.default_rng(0).normal(size=problem.dim)
    estimator = estimator_of(problem, "saga", x, 8)
    assert isinstance(estimator, TableEstimator)
    slopes = estimator.memory.slopes
    before = slopes.copy()
    x += np.linspace(-0.3, 0.5, problem.dim)
    indices = np.array([5, 9, 5, 5, 2, 9, 0, 1])  # the same example several times changes the sum once
    weights = np.linspace(1.0, 3.0, 8)
    expected, norms = estimator.at(x, indices, weights)
    l2, chances = problem.penalty.l2, np.full(8, 1 / N)
    work = Work(x, problem.coefficients(x), estimator.gradient, l2, indices, chances, weights, np.empty(8))
    assert estimator.take(work, 0)
    assert np.allclose(work.gradient, expected) and np.allclose(work.norms, norms)
    changed = np.flatnonzero((slopes != before).any(axis=1))
    assert changed.tolist() == [0, 1, 2, 5, 9]
    assert np.allclose(slopes[changed], problem.survey(x).slopes[changed])
    rows = np.column_stack([np.asarray(problem.model.matrix.dense), np.ones(N)])
    assert np.allclose(estimator.memory.sums, slopes.T @ rows)


def test_estimates_are_unbiased_with_any_control() -> None:
    problem = make("Huber")
    x = np.array([0.3, -0.2, 0.1, 0.5])
    mode = np.array([0.5, -0.1, 0.0, 0.2])
    true = problem.gradient(x) - 0.7 * x
    for each in (problem, plainly(problem)):
        for control in ("none", "mode") + (("saga",) if each is problem else ()):
            estimator = estimator_of(each, control, mode.copy(), N, mode)
            whole, norms = estimator.at(x, np.arange(N), np.ones(N))  # all examples once: no noise is left
            assert np.allclose(whole, true) and np.allclose(estimator.norms(x), norms)
            parts = [estimator.at(x, np.array([i]), np.array([float(N)]))[0] for i in range(N)]
            assert np.allclose(np.mean(parts, axis=0), true)


def test_any_problem_takes_a_control_variate() -> None:
    problem = make("LeastSquares")
    mode = problem.minimize()
    linear, generic = (
        sgld(each, avare.Avare(N, 5, seed=1), SIZE, control=mode, steps=20, seed=4)
        for each in (problem, plainly(problem))
    )
    assert np.allclose(linear.draws, generic.draws, rtol=1e-9)
    found = sgld(plainly(problem), avare.Avare(N, 5, seed=1), SIZE, control="mode", steps=20, seed=4)
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
    "options",
    [
        {"method": "sgld", "control": "mode"},
        {"method": "sgld", "control": "saga", "precondition": "moments"},
        {"method": "sghmc", "control": "saga", "chains": 2},
        {"method": "sgld", "size": "auto"},
        {"method": "sgld", "sampler": "shuffled"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_resumes_to_the_same_draws(options: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avare.solvers.chains._PERIOD", 7)
    options = dict(options)
    shuffled = options.pop("sampler", None) is not None

    def run(stop: int | None = None, resume: Any = None) -> Chain:
        seed = None if resume else 9
        sampler = avare.Uniform(N, 7, reshuffle=True, seed=seed) if shuffled else avare.Calibrated(N, 6, seed=seed)
        return draw(
            problem=make("Logistic"),
            sampler=sampler,
            evaluate=10,
            resume=resume,
            callback=lambda now: now.step == stop,
            **{**options, "seed": None if resume else 3},
        )

    whole = run()
    for stop in (0, 10, 30):
        part = run(stop)
        rest = run(resume=saved_and_loaded(part.state_dict(), way))
        assert part.steps == stop and rest.steps == 60 and np.array_equal(rest.draws, whole.draws)
        assert rest.step_size == whole.step_size


def test_a_state_of_other_steps_is_refused() -> None:
    plain = draw("sgld", make("Logistic")).state_dict()
    controlled = draw("sgld", make("Logistic"), control="mode").state_dict()
    with pytest.raises(ValueError, match=r"resume\['control'\] = 'none': this run has 'mode'"):
        draw("sgld", make("Logistic"), control="mode", resume=plain)
    with pytest.raises(ValueError, match=r"resume\['control'\] = 'mode': this run has 'none'"):
        draw("sgld", make("Logistic"), resume=controlled)
    with pytest.raises(ValueError, match="must be 'sghmc'"):
        draw("sghmc", make("Logistic"), resume=plain)
    with pytest.raises(ValueError, match="resume lacks 'step_size'"):
        draw("sgld", make("Logistic"), size="auto", resume={k: v for k, v in plain.items() if k != "step_size"})


@pytest.mark.parametrize("method", METHODS)
def test_divergence_is_reported(method: str) -> None:
    with pytest.warns(DivergenceWarning, match="diverged at step"):
        chain = draw(method, make("LeastSquares"), avare.Avare(N, 5, seed=1), size=1e6, steps=1000, control="mode")
    assert chain.status == "diverged" and chain.steps < 1000 and np.isfinite(chain.draws).all()


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
def test_a_chain_says_how_much_wider_it_is() -> None:
    problem = make("Logistic")
    plain = sgld(problem, avare.Uniform(N, 2, seed=0), 0.02, steps=4000, burn_in=200, seed=0)
    controlled = sgld(problem, avare.Uniform(N, 2, seed=0), 0.02, control="mode", steps=4000, burn_in=200, seed=0)
    assert plain.noise is plain.noise and plain.noise.is_too_wide
    assert 'control="mode"' in str(plain.noise) and "wrong by +" in str(plain.noise)
    assert (controlled.noise.gradient < 0.5 * plain.noise.gradient).all()
    assert np.allclose(controlled.noise.step, plain.noise.step, rtol=0.3) and (plain.noise.step > 0.0).all()
    with pytest.warns(WideningWarning, match="gradient noise"):
        table = plain.summary(["a", "b", "c", "d"])
    assert table.index.tolist() == ["a", "b", "c", "d"] and table["r_hat"].isna().all()
    assert np.allclose(table["mean"], plain.mean()) and np.allclose(table["sd"], plain.std())
    assert np.allclose(table["50%"], plain.quantile(0.5)) and (table["ess_bulk"] > 10.0).all()
    assert np.array_equal(table["wider_by_noise"], plain.noise.gradient)


@pytest.mark.compiled
def test_automatic_steps_keep_the_widening_small() -> None:
    problem = make("Logistic")
    sizes = []
    for method in METHODS:
        for control in ("none", "mode", "saga"):
            sampler = avare.Uniform(N, 6, seed=3)
            chain = draw(method, problem, sampler, size="auto", control=control, steps=3000, burn_in=500, chains=2)
            sizes.append(chain.step_size)
            # 5 % is aimed at. With 150 examples and 3000 steps, the noise is not measured better than this.
            assert np.abs(chain.noise.total).max() < 0.15
    assert sizes[1] > 2.0 * sizes[0] and sizes[4] > 2.0 * sizes[3]  # control allows longer steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WideningWarning)  # the last one may be just above 10 %
        table = chain.summary()
    assert (table["r_hat"] < 1.2).all() and table.index[0] == "x[0]"


@pytest.mark.compiled
def test_widening_without_second_derivatives_and_of_wide_models(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make("LeastSquares")
    options: Any = {"size": 0.004, "control": "none", "steps": 4000, "burn_in": 500, "thin": 1}
    known = draw("sgld", problem, avare.Avare(N, 5, seed=1), **options).noise
    # The curvature is that which explains the draws.
    unknown = draw("sgld", plainly(problem), avare.Avare(N, 5, seed=1), **options).noise
    assert np.allclose(unknown.total, known.total, rtol=0.5) and (unknown.total > 0.02).all()
    # It is the curvature of the coordinates themselves, not of those that the preconditioner has scaled.
    halves: Any = {**options, "precondition": np.full(4, 0.25), "size": 0.016}
    scaled = draw("sgld", plainly(problem), avare.Avare(N, 5, seed=1), **halves).noise
    assert np.allclose(scaled.total, unknown.total, rtol=1e-3)  # the same steps, written in another way
    for module in ("variance_inflation", "updates.hamiltonian"):  # only diagonals count then
        monkeypatch.setattr(f"avare.solvers.{module}._WIDEST", 3)
    for method in METHODS:
        sampler = avare.Uniform(N, 5, seed=1)
        diagonal = draw(method, problem, sampler, **{**options, "size": "auto", "control": "mode"})
        assert np.abs(diagonal.noise.total).max() < 0.5 and diagonal.step_size > 0.01
    classes = draw("sgld", make("Softmax", bias=True), **options).noise
    assert classes.total.shape == (15,) and (classes.total > 0.0).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"control": "best"}, ValueError, "control = 'best': must be one of 'none', 'mode', 'saga'"),
        ({"control": np.zeros(3)}, ValueError, r"control has shape \(3,\): must be \(4,\)"),
        ({"precondition": "full"}, ValueError, "precondition = 'full': must be one of 'none', 'hessian', 'moments'"),
        ({"size": "large"}, TypeError, "step_size = 'large': must be \"auto\""),
        ({"precondition": "moments", "burn_in": 0}, ValueError, "burn_in = 0: precondition"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw("sgld", make("Logistic"), **arguments)


def test_bad_input_of_one_method() -> None:
    with pytest.raises(ValueError, match="friction = 0"):
        avare.sghmc(make("Logistic"), avare.Uniform(N, 5), SIZE, friction=0.0)
    with pytest.raises(ValueError, match=r"problem has l1 = 0.5"):
        sgld(make("Logistic", l1=0.5), avare.Uniform(N, 5), SIZE)
    problem = Generic(
        3, 1, batch_gradient=lambda x, i, w: (w.sum() * x, np.ones(len(i))), objective=lambda x: 1.5 * float(x @ x)
    )
    with pytest.raises(TypeError, match=r'"hessian": needs a linear model of avare.problems, not Generic'):
        sgld(problem, avare.Uniform(3, 1), SIZE, steps=2, precondition="hessian")
    with pytest.raises(TypeError, match=r'"auto": needs a linear model of avare.problems, not Generic'):
        sgld(problem, avare.Uniform(3, 1), steps=2)


def test_errors_name_what_is_missing_before_anything_is_minimised() -> None:
    blind = Generic(3, 1, batch_gradient=lambda x, i, w: (w.sum() * x, np.ones(len(i))))  # it has no objective
    for method in (avare.sgld, avare.sghmc):
        with pytest.raises(TypeError, match=r'step_size = "auto": needs a linear model of avare.problems, not Generic'):
            method(blind, avare.Uniform(3, 1), steps=2)
        with pytest.raises(TypeError, match=r"sampler = 'Static': a name needs a linear model"):
            method(blind, step_size=SIZE, steps=2)
        with pytest.raises(ValueError, match="objective was not given"):
            method(blind, avare.Uniform(3, 1), SIZE, control="mode", steps=2)
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
    assert np.allclose(expected_norms(problem, "none", mode), problem.norms(mode))
    # The mean norm of differences over draws of a normal law around the mode, with independent coordinates.
    scale = 1.0 / np.sqrt(np.diag(np.stack([problem.hessian_product(mode, row) for row in np.eye(4)])))
    estimator = estimator_of(problem, "mode", mode.copy(), 5, mode)
    draws = mode + 0.1 * scale * np.random.default_rng(0).normal(size=(400, 4))
    found = np.sqrt(np.mean([estimator.norms(x) ** 2 for x in draws], axis=0))
    ratio = found / expected_norms(problem, "mode", mode)
    some = problem.curvatures(mode) > 0.02  # far from it a curvature is not constant, and a floor counts
    # Curvatures are doubled and cut, which makes up a factor of 2; norms differ by more than that.
    assert np.ptp(np.log(ratio[some])) < 1.2 and np.ptp(np.log(found[some])) > 3.0
    chain = sgld(problem, "Calibrated", SIZE, batch_size=6, control="mode", steps=20, seed=4)
    again = sgld(problem, "Calibrated", SIZE, batch_size=6, control="mode", steps=20, seed=4)
    sampler = chain._checkpoints[0].sampler
    assert sampler is not None
    assert np.array_equal(chain.draws, again.draws) and (type(sampler), sampler.batch_size) == (avare.Calibrated, 6)
    with pytest.raises(TypeError, match=r"sampler = 'Static': a name needs a linear model"):
        sgld(plainly(make("LeastSquares")), "Static", SIZE, steps=2)
    with pytest.raises(ValueError, match="batch_size = 5: the sampler has its own"):
        sgld(problem, avare.Uniform(N, 5), SIZE, batch_size=5)
