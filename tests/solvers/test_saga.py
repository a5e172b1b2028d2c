"""SAGA: against a plain transcription, exact laws, and everything around it."""

from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

import avare
from avare.problems import Generic, LeastSquares, Linear, Logistic
from avare.solvers import DivergenceWarning
from avare.solvers.preconditioner import diagonal_preconditioner, largest_curvatures
from linear_models import PROBLEMS, N, make, saved_and_loaded
from sampler_checks import own_names

Vector = NDArray[np.float64]
compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="minutes without compiled code")


def rows_of(problem: Linear) -> Vector:
    dense, csr, bias = problem.model.matrix
    rows = np.asarray(dense) if csr is None else sparse.csr_matrix((csr.values, csr.columns, csr.starts)).toarray()
    return np.hstack([rows, np.ones((problem.n, 1))]) if bias else rows


def slopes_at(problem: Linear, x: Vector, indices: Any) -> Vector:
    """The derivatives of some examples' losses by their outputs, from their gradients' definition; 0 for the others."""
    rows = rows_of(problem)
    found = np.zeros((problem.n, problem.outputs))
    for i in indices:
        gradient = problem.batch_gradient(x, [i], [1.0])[0].reshape(problem.outputs, problem.width)
        place = int(np.abs(rows[i]).argmax())
        found[i] = gradient[:, place] / rows[i, place] if rows[i, place] else 0.0
    return found


class Plain:
    """SAGA as it is defined, one line of algebra after another."""

    def __init__(self, problem: Linear, metric: Any, size: float) -> None:
        self.problem, self.metric, self.size = problem, metric, size
        self.x = np.zeros((problem.outputs, problem.width))
        self.table = np.zeros((problem.n, problem.outputs))

    def step(self, indices: Any, weights: Any) -> Vector:
        problem, metric, rows = self.problem, self.metric, rows_of(self.problem)
        new = slopes_at(problem, self.x.ravel(), indices)
        total = self.table.T @ rows
        estimate = total.copy()
        for index, weight in zip(indices, weights, strict=True):
            estimate += weight * np.outer(new[index] - self.table[index], rows[index])
        norms = np.linalg.norm(new[indices] - self.table[indices], axis=1) * metric.lengths[indices]
        l1, l2 = (each[: problem.width] for each in (problem.penalty.l1, problem.penalty.l2))
        centre = metric.shift
        centred = estimate - estimate[:, -1:] * centre
        sizes = self.size * metric.inverse
        there = self.x - sizes * centred
        there = np.sign(there) * np.maximum(np.abs(there) - sizes * l1, 0.0) / (1.0 + sizes * l2)
        there[:, -1] -= (there - self.x)[:, :-1] @ centre[:-1]  # the outputs are those of centred columns
        self.x = there
        self.table[indices] = new[indices]
        return np.asarray(norms)


CASES = [
    (name, csr, options)
    for name, (csr, options) in product(
        ("Logistic", "Softmax"),
        [
            (False, {"bias": "free"}),
            (False, {"bias": "free", "l1": 0.4}),
            (True, {"bias": "free", "l1": 0.4}),
            (True, {"l2": 0.0}),
        ],
    )
]


@pytest.mark.parametrize(("name", "csr", "options"), CASES)
def test_steps_are_those_of_the_plain_transcription(name: str, csr: bool, options: dict[str, Any]) -> None:
    weights = np.random.default_rng(1).lognormal(0.0, 1.0, N)
    problem = make(name, csr=csr, sample_weight=weights, **options)
    twin = avare.Calibrated(N, 7, replacement=True, seed=2)  # with replacement: some are drawn twice
    plain = Plain(problem, diagonal_preconditioner(problem), 0.05)
    repeats = 0
    for _ in range(30):
        batch = twin.sample()
        repeats += 7 - len(set(batch.indices.tolist()))
        twin.update(batch.indices, plain.step(batch.indices, batch.weights))
    sampler = avare.Calibrated(N, 7, replacement=True, seed=2)
    stopped = avare.saga(problem, sampler, 0.05, epochs=2, tol=0.0, evaluate=[30], callback=lambda now: True)
    assert repeats > 0 and stopped.steps == 30
    # Both add up the same terms in another order: a few hundred roundings.
    assert np.allclose(stopped.x, plain.x.ravel(), rtol=1e-9, atol=1e-11)
    assert np.abs(stopped.x).max() > 1e-3


def test_the_estimate_is_unbiased_for_any_table() -> None:
    problem = make("Logistic", n=6, bias="free")
    metric = diagonal_preconditioner(problem)
    plain = Plain(problem, metric, 0.02)
    for index in (1, 4, 4, 2):
        plain.step(np.array([index]), np.array([6.0]))
    x, table = plain.x.copy(), plain.table.copy()
    p = np.array([0.3, 0.05, 0.2, 0.15, 0.1, 0.2])
    mean, rows, new = np.zeros(problem.width), rows_of(problem), slopes_at(problem, x.ravel(), range(6))
    for first, second in product(range(6), repeat=2):  # all batches of two with replacement
        estimate = table.T @ rows
        for index in (first, second):
            estimate += (new[index] - table[index]) * rows[index] / (2.0 * p[index])
        mean += p[first] * p[second] * estimate.ravel()
    assert np.allclose(mean, problem.loss_gradient(x.ravel()), rtol=1e-12)
    assert np.abs(table).min() == 0.0 and np.abs(table).max() > 0.0  # some slopes are known, and stale


@compiled_only
@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize(
    "name", ["Logistic", *(pytest.param(name, marks=pytest.mark.slow) for name in PROBLEMS if name != "Logistic")]
)
def test_converges_to_the_minimum(name: str, csr: bool) -> None:
    weights = np.random.default_rng(4).lognormal(0.0, 1.5, N)
    problem = make(name, csr=csr, bias="free", sample_weight=weights)
    optimum = problem.minimize()
    run = avare.saga(problem, epochs=3000, tol=1e-9, seed=5, evaluate="never")
    assert run.status == "converged"
    assert np.allclose(run.x, optimum, rtol=1e-5, atol=1e-6 * np.abs(optimum).max())
    least = problem.objective(optimum)
    assert problem.objective(run.x) - least <= 1e-10 * least


@compiled_only
@pytest.mark.parametrize("csr", [False, True])
def test_convergence_is_linear_to_the_last_digits(csr: bool) -> None:
    generator = np.random.default_rng(14)
    turn = np.linalg.qr(generator.normal(size=(6, 6)))[0]
    X = generator.normal(size=(600, 6)) * np.logspace(0.0, -1.0, 6) @ turn
    y = X @ turn.T @ np.logspace(0.0, 1.0, 6) + generator.logistic(size=600) > 0.0
    problem = Logistic(sparse.csr_matrix(X) if csr else X, y, l2=1e-8)  # curvatures from 1 to 1e-2
    least = problem.objective(problem.minimize())
    runs = [avare.saga(problem, epochs=each, tol=0.0, seed=3, evaluate="never") for each in (200, 400, 800)]
    left = [max(problem.objective(run.x) / least - 1.0, 0.0) for run in runs]
    assert left[2] <= 1e-10
    # Linear: each half brings as many digits, up to noise and the last digits of the objective.
    assert left[1] <= max(left[0] ** 1.4, 1e-13) and left[2] <= max(left[1] ** 1.4, 1e-13)


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("bias", [False, "free"])
def test_the_preconditioner_is_one_over_the_curvature_of_each_column(csr: bool, bias: Any) -> None:
    problem = make("Logistic", csr=csr, bias=bias, sample_weight=np.random.default_rng(1).lognormal(0.0, 1.0, N))
    curvatures, found, rows = largest_curvatures(problem), diagonal_preconditioner(problem), rows_of(problem)
    if bias and not csr:
        weights = problem.model.sample_weight
        rows[:, :-1] -= weights @ rows[:, :-1] / weights.sum()
    curvature = curvatures @ rows**2 + problem.penalty.l2
    assert np.allclose(found.inverse, 1.0 / curvature, rtol=1e-10)
    assert np.allclose(found.lengths, np.sqrt(rows**2 @ found.inverse), rtol=1e-5)  # float32
    scaled = rows * np.sqrt(curvatures[:, None] * found.inverse)
    largest = float(np.linalg.eigvalsh(scaled.T @ scaled)[-1])
    # The power method on a sample of the rows: L is right to a third.
    assert 1.0 / (5.0 * (scaled**2).sum() / 4 + 13.0 * largest) < found.step_size(problem, 4)
    assert found.step_size(problem, 4) < 1.0 / (5.0 * (scaled**2).sum() / 4 + 6.7 * largest)


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_survey_is_all_sums(name: str, csr: bool) -> None:
    problem = make(name, csr=csr, bias=True, sample_weight=np.random.default_rng(1).lognormal(0.0, 1.0, N))
    x = np.random.default_rng(2).normal(size=problem.dim)
    found = problem.survey(x)
    assert np.allclose(found.gradient, problem.loss_gradient(x), rtol=1e-12)
    assert np.allclose(found.slopes, slopes_at(problem, x, range(N)), atol=1e-12)
    assert found.loss == pytest.approx(problem.total_loss(x), rel=1e-12)


@compiled_only
@pytest.mark.parametrize("csr", [False, True])
def test_the_elastic_net_has_the_same_zeros(csr: bool) -> None:
    problem = make("LeastSquares", csr=csr, bias="free", l1=60.0)
    optimum = problem.minimize()
    assert (optimum == 0.0).sum() == 1 and np.linalg.norm(problem.gradient(optimum)) < 1e-9
    run = avare.saga(problem, epochs=3000, tol=1e-7, seed=5, evaluate="never")
    assert run.status == "converged" and np.array_equal(run.x == 0.0, optimum == 0.0)
    assert np.allclose(run.x, optimum, rtol=1e-6)


def test_columns_of_any_scale_give_the_same_steps() -> None:
    problem = make("Logistic", bias="free", l2=0.0)
    scale, shift = np.array([1e4, 1e-5, 1.0, 30.0]), np.array([0.0, 3e-5, -7.0, 100.0])
    rows, signs = np.asarray(problem.model.matrix.dense), problem.model.targets
    other = Logistic(rows * scale + shift, signs, l2=0.0, bias="free")
    runs = [avare.saga(each, epochs=5, tol=0.0, seed=6) for each in (problem, other)]
    # The same numbers up to rounding, amplified by the distance of the columns from 0.
    assert np.allclose(runs[0].trace.objective, runs[1].trace.objective, rtol=1e-5)
    assert runs[0].trace.objective[-1] < 0.9 * runs[0].trace.objective[0]


@compiled_only
def test_an_automatic_step_does_not_diverge_on_heavy_rows() -> None:
    generator = np.random.default_rng(7)
    X = generator.standard_cauchy((400, 6)) * generator.lognormal(0, 4, 6)
    problem = LeastSquares(X, generator.standard_cauchy(400), sample_weight=generator.lognormal(0, 3, 400), l2=1e-6)
    run = avare.saga(problem, epochs=200, tol=0.0, seed=8)
    assert run.status == "finished" and np.isfinite(run.x).all()
    assert run.trace.objective[-1] <= run.trace.objective[0]


def test_a_given_step_that_is_too_large_is_reported() -> None:
    problem = make("LeastSquares")
    with pytest.warns(DivergenceWarning, match="diverged at step"):
        run = avare.saga(problem, step_size=1e9, epochs=50, seed=1)
    assert run.status == "diverged"


QUICK = ("Calibrated", "Uniform", "Safe")


@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
@pytest.mark.parametrize(  # each that brings kernels takes seconds to compile
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in own_names()]
)
def test_every_sampler_runs(name: str) -> None:
    problem = make("Logistic", bias="free")
    run = avare.saga(problem, name, epochs=20, batch_size=5, tol=0.0, seed=6)
    assert run.status == "finished" and run.epochs == 20 and run.solver == "saga"
    assert run.trace.objective[-1] < 0.9 * run.trace.objective[0]


@pytest.mark.parametrize(
    ("csr", "way", "sampler"),
    [(False, "pickle", "Calibrated"), (False, "savez", "Uniform"), (True, "savez", "Uniform")],
)
def test_resumes_to_the_same_iterates(csr: bool, way: str, sampler: str) -> None:
    problem = make("Softmax", csr=csr, bias="free", l1=0.1 if csr else 0.0)
    options: dict[str, Any] = {"sampler": sampler, "epochs": 12, "tol": 0.0, "batch_size": 6}
    whole = avare.saga(problem, seed=9, **options)
    at = 130  # in an epoch of 25 steps
    first = avare.saga(
        problem, seed=9, evaluate=sorted({*range(0, 301, 25), at}), callback=lambda now: bool(now.step >= at), **options
    )
    assert first.status == "stopped" and first.steps == at
    state = saved_and_loaded(first.state_dict(), way)
    rest = avare.saga(problem, resume=state, **options)
    assert np.array_equal(whole.x, rest.x) and np.any(whole.x != 0.0)
    assert state["estimator/slopes"].nbytes == 8 * problem.n * problem.outputs


def test_a_state_that_does_not_fit_is_refused() -> None:
    problem = make("Logistic")
    state = avare.saga(problem, epochs=1, tol=0.0, seed=1).state_dict()
    cases = [
        ({**state, "estimator/slopes": np.zeros((3, 1))}, r"resume\['estimator/slopes'\] has shape \(3, 1\)"),
        ({key: value for key, value in state.items() if key != "estimator/sums"}, "lacks 'estimator/sums'"),
        ({**state, "method": "sgd"}, "this run has 'saga'"),
    ]
    for damaged, message in cases:
        with pytest.raises(ValueError, match=message):
            avare.saga(problem, epochs=2, resume=damaged)
    with pytest.raises(ValueError, match="step_size"):
        avare.saga(problem, step_size=0.1, epochs=2, resume=state)


def test_it_converges_only_if_that_is_certified() -> None:
    problem = make("Logistic", bias="free")
    least, constant = problem.objective(problem.minimize()), problem.best_constant()
    for tol in (1e-2,) if numba.config.DISABLE_JIT else (1e-2, 1e-5):
        run = avare.saga(problem, epochs=500, tol=tol, seed=2, evaluate="never")
        assert run.status == "converged" and "converged after step" in run.message
        gap = problem.gap(run.x)
        rounding = 1e-14 * constant  # of the sums of 150 losses
        assert problem.objective(run.x) - least - rounding <= gap <= tol**2 * constant + rounding


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"step_size": "fast"}, ValueError, "step_size = 'fast': must be a number or \"auto\""),
        ({"step_size": 0.0}, ValueError, "step_size = 0.0: must be above 0"),
        ({"epochs": -1}, ValueError, "epochs = -1: must be at least 0"),
        ({"tol": -1.0}, ValueError, "tol = -1.0: must be at least 0"),
        ({"sampler": "Nobody"}, ValueError, "sampler = 'Nobody': must be one of"),
        ({"sampler": avare.Uniform(N, 4), "seed": 1}, ValueError, "seed = 1: the sampler has its own"),
        ({"sampler": avare.Uniform(N, 4), "batch_size": 2}, ValueError, "batch_size = 2: the sampler has its own"),
        ({"sampler": avare.Uniform(N + 1, 4)}, ValueError, "must match the problem's"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        avare.saga(make("Logistic"), **options)


def test_it_needs_a_linear_model_and_others_need_no_l1() -> None:
    plain = Generic(3, 2, batch_gradient=lambda x, i, w: (x, np.ones(len(i))))
    with pytest.raises(TypeError, match="problem is of type Generic: must be a linear model"):
        avare.saga(plain)  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match=r"problem has l1 = 0\.5: use avare\.saga"):
        avare.sgd(make("Logistic", l1=0.5), avare.Uniform(N, 4), 0.1)
    with pytest.raises(ValueError, match="bias = 'no': must be True, False or \"free\""):
        make("Logistic", bias="no")
