"""SAGA: against a plain transcription, exact laws, and everything around it."""

import math
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

import avare
from avare.problems import Generic, LeastSquares, Linear, Logistic, Softmax
from avare.solvers import DivergenceWarning
from avare.solvers.estimators.lagged import glide
from avare.solvers.linear import preconditioner as preconditioners
from avare.solvers.linear import subsampled_newton
from avare.solvers.linear.choose import start_from_sample
from avare.solvers.linear.dual_ascent import DualAscent, is_strong
from avare.solvers.linear.preconditioner import bends_of, preconditioner_of
from avare.solvers.linear.saga_steps import SagaSteps
from avare.solvers.linear.subsampled_newton import sample_of
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
        self.matrix = metric.matrix
        if len(metric.basis):
            self.matrix = np.diag(metric.inverse) - metric.basis.T @ metric.basis

    def step(self, indices: Any, weights: Any) -> Vector:
        problem, metric, rows = self.problem, self.metric, rows_of(self.problem)
        new = slopes_at(problem, self.x.ravel(), indices)
        total = self.table.T @ rows
        estimate = total.copy()
        for index, weight in zip(indices, weights, strict=True):
            estimate += weight * np.outer(new[index] - self.table[index], rows[index])
        norms = np.linalg.norm(new[indices] - self.table[indices], axis=1) * metric.lengths[indices]
        l1, l2 = (each[: problem.width] for each in (problem.penalty.l1, problem.penalty.l2))
        centre = np.zeros(problem.width)
        centre[: len(metric.shift)] = metric.shift
        centre[-1:] *= 0.0 if len(metric.shift) else 1.0
        if len(self.matrix):
            estimate += l2 * self.x
        along = estimate[:, -1:] if len(metric.shift) else np.zeros((problem.outputs, 1))
        centred = estimate - along * centre
        if len(self.matrix):
            there = self.x - self.size * centred @ self.matrix
        else:
            sizes = self.size * metric.inverse
            there = self.x - sizes * centred
            there = np.sign(there) * np.maximum(np.abs(there) - sizes * l1, 0.0) / (1.0 + sizes * l2)
        if len(metric.shift):  # the outputs are those of centred columns
            there[:, -1] -= (there - self.x)[:, :-1] @ centre[:-1]
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
    plain = Plain(problem, preconditioner_of(problem, bends_of(problem)), 0.05)
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


@pytest.mark.parametrize(("name", "bias"), [("Logistic", False), ("Softmax", "free")])
def test_steps_with_many_columns(name: str, bias: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preconditioners, "_WIDEST", 0)
    weights = np.random.default_rng(1).lognormal(0.0, 1.0, N)
    problem = make(name, bias=bias, sample_weight=weights)
    scales = preconditioner_of(problem, bends_of(problem))
    assert len(scales.basis) == 1 and scales.shares.sum() == pytest.approx(1.0)
    plain, twin = Plain(problem, scales, 0.05), avare.Calibrated(N, 7, seed=2)
    first = slopes_at(problem, np.zeros(problem.dim), range(N))
    level, noise, period = math.sqrt(N * ((first.T * scales.lengths) ** 2).sum()), 0.0, N // 7
    for step in range(1, 31):
        batch = twin.sample()
        norms = plain.step(batch.indices, batch.weights)
        # Half of the draws follow the smoothness: as many as the norms of the last epoch add up to.
        twin.update(batch.indices, norms + level * scales.shares[batch.indices].astype(np.float64))
        noise += float((batch.weights * norms**2 / batch.probabilities).sum())
        if step % period == 0:
            level, noise = math.sqrt(noise / period), 0.0
    sampler = avare.Calibrated(N, 7, seed=2)
    stopped = avare.saga(problem, sampler, 0.05, epochs=2, tol=0.0, evaluate=[30], callback=lambda now: True)
    assert stopped.steps == 30 and np.abs(stopped.x).max() > 1e-3
    assert np.allclose(stopped.x, plain.x.ravel(), rtol=1e-9, atol=1e-11)  # the same terms in another order
    assert np.allclose(sampler.probabilities(), twin.probabilities(), rtol=1e-9)


def correlated(n: int = 3000, width: int = 300, **options: Any) -> Logistic:
    """Columns like pixels: positive, and strongly correlated."""
    generator = np.random.default_rng(15)
    turn = np.linalg.qr(generator.normal(size=(width, width)))[0]
    X = 3.0 + generator.normal(size=(n, width)) * np.linspace(1.0, width, width) ** -1.0 * 20.0 @ turn
    y = (X - 3.0) @ generator.normal(size=width) / 5.0 + generator.logistic(size=n) > 0.0
    return Logistic(X, y, **{"l2": 1.0, **options})


@compiled_only
@pytest.mark.parametrize("bias", [False, "free"])
def test_many_columns_are_flattened_along_the_largest_curvatures(bias: Any) -> None:
    problem = correlated(bias=bias, sample_weight=np.random.default_rng(0).lognormal(0.0, 1.0, 3000))
    bends = bends_of(problem)
    scales = preconditioner_of(problem, bends)
    rows = rows_of(problem)
    if bias:
        rows[:, :-1] -= bends @ rows[:, :-1] / bends.sum()
    matrix = np.diag(scales.inverse) - scales.basis.T @ scales.basis
    whole = (rows * bends[:, None]).T @ rows + np.diag(problem.penalty.l2)
    largest = [np.linalg.eigvals(each @ whole).real.max() for each in (matrix, np.diag(scales.inverse))]
    assert largest[0] < 0.1 * largest[1] and np.linalg.eigvalsh(matrix).min() > 0.0
    assert np.allclose(scales.lengths, np.sqrt(np.einsum("ij,jk,ik->i", rows, matrix, rows)), rtol=1e-3)  # float32
    size, most = preconditioners.step_size_of(problem, scales, bends, 32)
    total = float(bends @ scales.lengths.astype(np.float64) ** 2)
    # The power method on some rows: L is right to a third.
    assert 0.67 < most * (total / 32 + 2.0 * largest[0]) < 1.5 and most == pytest.approx(5.0 * size)


@compiled_only
def test_many_correlated_columns_with_uneven_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = correlated(sample_weight=np.random.default_rng(0).lognormal(0.0, 1.5, 3000))
    least = problem.objective(problem.minimize(tolerance=1e-6))
    left = [avare.saga(problem, epochs=30, tol=0.0, seed=1).trace.objective / least - 1.0]
    monkeypatch.setattr(preconditioners, "_RANK", 0)
    left.append(avare.saga(problem, epochs=30, tol=0.0, seed=1).trace.objective / least - 1.0)
    assert left[0][-1] < 1e-6 and left[1][-1] > 100.0 * left[0][-1]
    assert (np.diff(left[0]) < 1e-9).all()  # no epoch is lost to noise


def test_the_estimate_is_unbiased_for_any_table() -> None:
    problem = make("Logistic", n=6, bias="free")
    metric = preconditioner_of(problem, bends_of(problem))
    plain = Plain(problem, metric._replace(matrix=np.empty((0, 0))), 0.02)
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


@pytest.mark.parametrize("l1", [0.0, 0.3])
@pytest.mark.parametrize("l2", [0.0, 0.7])
def test_many_lagged_steps_are_the_steps_one_by_one(l1: float, l2: float) -> None:
    generator = np.random.default_rng(3)
    crossed = rested = 0
    for _ in range(300):
        x, gradient = generator.normal(size=2)
        size, steps = float(generator.lognormal(-3.0, 1.5)), int(generator.integers(1, 60))
        expected, signs = x, set()
        for _ in range(steps):
            there = expected - size * gradient
            expected = math.copysign(max(abs(there) - size * l1, 0.0), there) / (1.0 + size * l2)
            signs.add(np.sign(expected))
        found = glide(x, gradient, size, math.log1p(size * l2), l1, l2, steps)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
        crossed += {-1.0, 1.0} <= signs
        rested += expected == 0.0
    assert crossed > 5 and (rested > 5) == (l1 > 0.0)


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
def test_convergence_is_linear_to_the_last_digits_on_an_ill_conditioned_problem(csr: bool) -> None:
    generator = np.random.default_rng(14)
    turn = np.linalg.qr(generator.normal(size=(6, 6)))[0]
    X = generator.normal(size=(600, 6)) * np.logspace(0.0, -1.0 if csr else -4.0, 6) @ turn
    y = X @ turn.T @ np.logspace(0.0, 1.0 if csr else 4.0, 6) + generator.logistic(size=600) > 0.0
    problem = Logistic(sparse.csr_matrix(X) if csr else X, y, l2=1e-8)  # curvatures from 1 to 1e-8, or to 1e-2
    least = problem.objective(problem.minimize())
    epochs = [10, 20, 40] if not csr else [100, 200, 400]
    runs = [avare.saga(problem, epochs=each, tol=0.0, seed=3, evaluate="never") for each in epochs]
    left = [max(problem.objective(run.x) / least - 1.0, 0.0) for run in runs]
    assert left[2] <= 1e-10
    # Linear: each half brings as many digits, up to noise and the last digits of the objective.
    assert left[1] <= max(left[0] ** 1.4, 1e-13) and left[2] <= max(left[1] ** 1.4, 1e-13)


def many_rows(weighted: bool = False, csr: bool = False, **options: Any) -> Logistic:
    """20,000 rows of four columns, a tenth of them positive."""
    generator = np.random.default_rng(12)
    X = generator.normal(size=(20_000, 4)) * generator.lognormal(0.0, 1.0, (20_000, 1))
    y = X @ [1.0, -1.0, 0.5, 0.0] + generator.logistic(size=20_000) > 4.0
    weights = generator.lognormal(0.0, 1.5, 20_000) if weighted else None
    return Logistic(sparse.csr_matrix(X) if csr else X, y, **{"l2": 1.0, "sample_weight": weights, **options})


def fit_sample(sample: Linear, epochs: int, tol: float) -> Vector:
    return avare.saga(sample, epochs=epochs, tol=tol, evaluate="never", seed=0).x


@compiled_only
@pytest.mark.parametrize("weighted", [False, True])
def test_many_rows_start_from_the_fit_of_some(weighted: bool) -> None:
    problem = many_rows(weighted)
    found = start_from_sample(problem, fit_sample)
    assert found is not None
    # 1250 rows: an excess of about 4 / 2500 per row of unit weight, some times that if weights are uneven.
    least = problem.objective(problem.minimize())
    assert least < problem.objective(found) < least + 20.0 * 20_000 * 4.0 / 2500.0
    rows, signs = np.asarray(problem.model.matrix.dense), problem.model.targets
    assert start_from_sample(Logistic(rows[:15_000], signs[:15_000]), fit_sample) is None
    assert start_from_sample(Logistic(rows, signs, sample_weight=np.zeros(20_000)), fit_sample) is None


def test_a_sample_estimates_all_sums() -> None:
    problem = make("Logistic", sample_weight=np.random.default_rng(1).lognormal(0.0, 1.0, N))
    x, generator = np.array([0.3, -0.5, 0.2, 0.1]), np.random.default_rng(2)
    for scores in (problem.sampling_scores(), np.random.default_rng(3).lognormal(0.0, 0.5, N)):
        found = np.array([sample_of(problem, 50, scores, generator).loss_gradient(x) for _ in range(400)])
        error = found.std(axis=0) / 20.0
        assert (np.abs(found.mean(axis=0) - problem.loss_gradient(x)) < 4.0 * error).all()  # 8 comparisons at 4 sigma
    positive = problem.model.targets > 0.0
    assert problem.sampling_scores()[positive].sum() == pytest.approx(problem.sampling_scores()[~positive].sum())


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_survey_is_all_sums_in_one_pass(name: str, csr: bool) -> None:
    problem = make(name, csr=csr, bias=True, sample_weight=np.random.default_rng(1).lognormal(0.0, 1.0, N))
    x = np.random.default_rng(2).normal(size=problem.dim)
    found = problem.survey(x)
    assert np.allclose(found.gradient, problem.loss_gradient(x), rtol=1e-12)
    assert np.allclose(found.curvatures, problem.curvatures(x), rtol=1e-12)
    assert np.allclose(found.slopes, slopes_at(problem, x, range(N)), atol=1e-12)
    assert found.loss == pytest.approx(problem.total_loss(x), rel=1e-12)


@compiled_only
@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("bias", [False, "free"])
def test_with_many_rows_a_few_passes_are_enough(csr: bool, bias: Any) -> None:
    problem = many_rows(weighted=True, csr=csr, bias=bias, l2=0.01)
    least = problem.objective(problem.minimize())
    run = avare.saga(problem, epochs=6, tol=0.0, seed=3)
    left = run.trace.objective / least - 1.0
    # The sample has 300 rows per column: a pass leaves about 1/300 of it. Weights make this some times as much.
    assert (left[1:5] < 0.1 * left[:4]).all() and left[-1] < 1e-9
    stopped = avare.saga(problem, tol=1e-5, seed=3, evaluate="never")
    assert stopped.status == "converged" and stopped.epochs <= 5
    assert problem.objective(stopped.x) <= (1.0 + 1e-8) * least


@compiled_only
def test_columns_with_few_entries_get_their_share_of_the_samples() -> None:
    generator = np.random.default_rng(3)
    X = (generator.random((20_000, 30)) < 0.001).astype(np.float64)  # 20 entries in a column
    X[:, 0] = 1.0
    problem = Logistic(X, X @ generator.normal(size=30) * 3.0 + generator.logistic(size=20_000) > 1.0, l2=0.01)
    bends = bends_of(problem)
    metric = preconditioner_of(problem, bends)
    whole = (X * bends[:, None]).T @ X + 0.01 * np.eye(30)
    found = np.linalg.eigvals(metric.matrix @ whole).real  # all 1 if all rows were used; 1200 are, 40 per column
    assert found.min() > 0.5 and found.max() < 2.0
    least = problem.objective(problem.minimize())
    run = avare.saga(problem, epochs=10, tol=0.0, seed=1)
    assert run.trace.objective[-1] < (1.0 + 1e-7) * least


@compiled_only
def test_classes_of_different_curvatures_end_the_passes() -> None:
    generator = np.random.default_rng(4)
    X, truth = generator.normal(size=(20_000, 6)), generator.normal(size=(6, 5))
    y = (30.0 * X @ truth + generator.gumbel(size=(20_000, 5))).argmax(axis=1)
    problem = Softmax(X, y, l2=1.0, bias="free")
    run = avare.saga(problem, epochs=10, tol=0.0, seed=1)
    objective = run.trace.objective
    assert (objective[1:] <= objective[:-1]).all()
    assert run.method == "saga" and run.epochs == 10
    assert 1 < run.trace.step[2] < run.steps and run.trace.epoch[-1] == 10.0  # a pass is one step
    only = avare.saga(problem, method="subsampled_newton", epochs=10, tol=0.0, seed=1)
    assert only.status == "stopped" and only.epochs < 10 and "did not fall" in only.message


@compiled_only
@pytest.mark.parametrize("tol", [0.0, 1e-12])
def test_passes_resume_to_the_same_iterates(tol: float) -> None:
    problem = many_rows()
    whole = avare.saga(problem, epochs=4, tol=tol, seed=9)
    first = avare.saga(problem, epochs=4, tol=tol, seed=9, evaluate=[2], callback=lambda now: True)
    assert first.steps == 2 and first.method == "subsampled_newton"
    rest = avare.saga(problem, epochs=4, tol=tol, resume=saved_and_loaded(first.state_dict(), "pickle"))
    assert np.array_equal(whole.x, rest.x) and rest.method == "subsampled_newton"


@compiled_only
def test_saga_after_passes_resumes_to_the_same_iterates(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = many_rows()
    monkeypatch.setattr(subsampled_newton, "corrected_minimum", lambda problem, x, *more: (x + 3.0, 1.0))
    whole = avare.saga(problem, epochs=4, tol=0.0, seed=9)
    stop = 1 + 625 + 100  # a pass, an epoch of SAGA, and a part of the next
    first = avare.saga(problem, epochs=4, tol=0.0, seed=9, evaluate=[stop], callback=lambda now: True)
    assert first.steps == stop and first.method == whole.method == "saga"
    rest = avare.saga(problem, epochs=4, tol=0.0, resume=saved_and_loaded(first.state_dict(), "savez"))
    assert np.array_equal(whole.x, rest.x) and rest.epochs == 4 and rest.steps == 1 + 3 * 625


def wide(kind: str, bias: Any = False, weighted: bool = False) -> Any:
    """A dense problem with too many columns for a whole matrix, and curvatures over four powers of ten."""
    generator = np.random.default_rng(7)
    turn = np.linalg.qr(generator.normal(size=(300, 300)))[0]
    X = 0.2 + (generator.normal(size=(900, 300)) * np.logspace(0.7, -1.3, 300)) @ turn
    outputs = X @ generator.normal(size=(300, 3)) + generator.logistic(size=(900, 3))
    y = outputs.argmax(axis=1) if kind == "Softmax" else outputs[:, 0] > 0.0
    weight = generator.lognormal(0.0, 1.5, 900) if weighted else None
    return getattr(avare.problems, kind)(X, y, l2=1.0, bias=bias, sample_weight=weight)


def own_preconditioner(problem: Linear) -> Any:
    return preconditioner_of(problem, bends_of(problem))


@compiled_only
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "bias"), [("Logistic", False), ("Logistic", "free"), ("Softmax", "free")])
def test_many_dense_columns_are_flattened_and_converge(kind: str, bias: Any, weighted: bool) -> None:
    problem = wide(kind, bias, weighted)
    least = problem.objective(problem.minimize())
    run = avare.saga(problem, epochs=400, tol=1e-7, seed=2)
    assert len(own_preconditioner(problem).basis) > 0
    assert run.status == "converged" and problem.objective(run.x) <= least * (1.0 + 1e-10)


@compiled_only
def test_a_flattened_metric_lies_between_zero_and_the_diagonal() -> None:
    metric = own_preconditioner(wide("Logistic"))
    root = np.sqrt(metric.inverse)
    values = np.linalg.eigvalsh((metric.basis / root) @ (metric.basis / root).T)
    assert values.min() >= 0.0 and 0.5 < values.max() < 1.0


@compiled_only
@pytest.mark.parametrize("step", [40, 170])
def test_many_dense_columns_resume_to_the_same_iterates(step: int) -> None:
    problem = wide("Logistic", "free")
    options: dict[str, Any] = {"epochs": 8, "tol": 0.0, "batch_size": 25}
    whole = avare.saga(problem, seed=9, **options)
    first = avare.saga(problem, seed=9, evaluate=[step], callback=lambda now: True, **options)
    assert first.steps == step  # of 36 in an epoch
    rest = avare.saga(problem, resume=saved_and_loaded(first.state_dict(), "pickle"), **options)
    assert np.array_equal(whole.x, rest.x) and np.any(whole.x != 0.0)


@compiled_only
@pytest.mark.parametrize("csr", [False, True])
def test_a_pass_that_does_not_help_is_undone(csr: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = many_rows(csr=csr)
    least = problem.objective(problem.minimize())
    right, calls = subsampled_newton.corrected_minimum, []

    def wrong(problem: Any, x: Vector, *more: Any) -> tuple[Vector, float]:
        calls.append(problem.n)
        found, promised = right(problem, x, *more)
        return found + 3.0, promised

    monkeypatch.setattr(subsampled_newton, "corrected_minimum", wrong)
    run = avare.saga(problem, epochs=8, tol=0.0, seed=1)
    assert calls == [20_000] and run.trace.objective[1] > 1.1 * run.trace.objective[0]
    assert run.trace.objective[2] < run.trace.objective[0] and run.method == "saga"  # SAGA does the rest
    assert run.trace.objective[-1] < 1.0001 * least


@pytest.mark.parametrize("csr", [False, True])
def test_a_sampler_and_its_name_do_the_same(csr: bool) -> None:
    problem = make("Logistic", csr=True, l2=4.0) if csr else many_rows()
    expected = "dual_ascent" if csr else "subsampled_newton"
    calibrated = avare.Calibrated(problem.n, 5, seed=1)
    runs = [
        avare.saga(problem, calibrated, epochs=2, tol=0.0),
        avare.saga(problem, "Calibrated", batch_size=5, epochs=2, tol=0.0, seed=1),
    ]
    assert [run.method for run in runs] == [expected] * 2 and np.array_equal(runs[0].x, runs[1].x)
    assert calibrated.steps == 0 and calibrated.generator.random() == np.random.default_rng(1).random()
    for sampler in ("Uniform", avare.Uniform(problem.n, 5, seed=1)):  # draws were asked for
        assert avare.saga(problem, sampler, epochs=1, tol=0.0).method == "saga"


def test_methods_that_draw_nothing_pretend_no_draws() -> None:
    problem, seen = make("Logistic", csr=True, l2=4.0), list[Any]()
    run = avare.saga(problem, epochs=3, tol=0.0, seed=1, callback=lambda now: seen.append(now.sampler))
    assert run.method == "dual_ascent" and seen == [None] * 4
    assert run.trace.step.tolist() == [0, 1, 2, 3] and run.trace.epoch.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert np.isnan(run.trace.gain).all() and np.isnan(run.trace.cost).all()
    assert run.steps == run.epochs == 3 and not any(key.startswith("sampler/") for key in run.state_dict())
    assert run.plot().get_suptitle() == "Objective  f(x), dual_ascent"


@pytest.mark.parametrize(
    ("method", "problem", "message"),
    [
        ("newton", {}, "method = 'newton': must be one of 'auto', 'saga', 'dual_ascent', 'subsampled_newton'"),
        ("dual_ascent", {}, "needs a sparse X and l2 > 0"),
        ("dual_ascent", {"csr": True, "l2": 0.0}, "needs a sparse X and l2 > 0"),
        ("dual_ascent", {"csr": True, "l2": 4.0}, "starts at 0"),
        ("subsampled_newton", {}, "needs l1 = 0, few columns, and 16,000 rows"),
    ],
)
def test_a_method_that_does_not_fit_is_refused(method: Any, problem: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        avare.saga(make("Logistic", **problem), method=method, start=np.ones(4))


# --- dual steps ----------------------------------------------------------------------------


class PlainDual:
    """Dual coordinate ascent as it is defined."""

    def __init__(self, problem: Linear, method: DualAscent) -> None:
        self.problem, self.rows = problem, rows_of(problem)
        self.table = np.zeros((problem.n, problem.outputs))
        self.l2, self.l1 = (each[: problem.width].copy() for each in (problem.penalty.l2, problem.penalty.l1))
        self.l2[-1:] = method._stiffness
        self.centre = np.zeros(problem.outputs)
        weights = problem.model.sample_weight
        smooth = problem.curvature * (weights if len(weights) else 1.0) * (self.rows**2 / self.l2).sum(axis=1)
        self.rates = 1.0 + smooth

    @property
    def x(self) -> Vector:
        total = self.table.T @ self.rows
        x = -np.sign(total) * np.maximum(np.abs(total) - self.l1, 0.0) / self.l2
        x[:, -1] += self.centre
        return np.asarray(x)

    def visit(self, index: int) -> None:
        new = slopes_at(self.problem, self.x.ravel(), [index])[index]
        self.table[index] += (new - self.table[index]) / self.rates[index]


def dual_of(problem: Linear, tol: float = 0.0) -> DualAscent:
    assert is_strong(problem, None)
    return DualAscent(problem, np.zeros(problem.dim), 4, tol=tol)


@pytest.mark.parametrize("name", ["Logistic", "Softmax"])
@pytest.mark.parametrize("options", [{"bias": "free"}, {"bias": True, "l1": 0.4}, {}, {"bias": "free", "l1": 0.4}])
def test_dual_steps_are_those_of_the_plain_transcription(name: str, options: dict[str, Any]) -> None:
    weights = np.random.default_rng(1).lognormal(0.0, 1.0, N)
    problem = make(name, csr=True, l2=4.0, sample_weight=weights, **options)
    method = dual_of(problem)
    plain = PlainDual(problem, method)
    for epoch in range(2):
        method.advance(epoch, np.ones(1), np.empty((0, 0)))
        for index in method._order_of(epoch):
            plain.visit(int(index))
        assert np.allclose(method.x, plain.x.ravel(), rtol=1e-9, atol=1e-11)
        method.check(epoch + 1)
        if options.get("bias") == "free":
            plain.centre = plain.x[:, -1].copy()
    assert np.abs(method.x).max() > 1e-2


def test_visits_are_spread_evenly_and_follow_the_smoothness() -> None:
    weights = np.random.default_rng(1).lognormal(0.0, 1.5, N)
    problem = make("Logistic", csr=True, l2=4.0, sample_weight=weights)
    method = dual_of(problem)
    rates = 1.0 + 0.25 * weights * (rows_of(problem) ** 2).sum(axis=1) / 4.0
    rates /= rates.mean()
    visits = np.zeros(N)
    for epoch in range(20):
        visits += np.bincount(method._order_of(epoch), minlength=N)
        assert np.abs(visits - (epoch + 1) * rates).max() < 1.0 + 1e-9
    assert not np.array_equal(method._order_of(3), np.sort(method._order_of(3)))


@compiled_only
def test_dual_steps_converge_on_a_wide_problem_with_uneven_weights() -> None:
    generator = np.random.default_rng(5)
    X = sparse.random(400, 1500, density=0.02, random_state=6, format="csr")
    y = X @ generator.normal(size=1500) + 0.3 * generator.logistic(size=400) > 0.0
    problem = Logistic(X, y, l2=0.5, bias="free", sample_weight=generator.lognormal(0.0, 1.5, 400))
    least = problem.objective(problem.minimize())
    run = avare.saga(problem, epochs=200, tol=1e-7, seed=1)
    assert run.status == "converged" and run.step_size == math.inf
    assert run.trace.objective[-1] <= (1.0 + 1e-11) * least
    loose = avare.saga(problem, epochs=200, tol=1e-2, seed=1, evaluate="never")
    assert loose.status == "converged" and loose.epochs < run.epochs


def test_dual_steps_are_for_strong_penalties_and_starts_at_zero() -> None:
    problem = make("Logistic", csr=True, bias="free", l2=4.0)
    assert is_strong(problem, np.array([0.0, 0.0, 0.0, 0.0, 2.0]))
    assert not is_strong(problem, np.array([0.0, 0.1, 0.0, 0.0, 2.0]))
    for options in ({"csr": True, "l2": 0.01}, {"csr": True, "l2": 0.0}, {"l2": 4.0}):
        assert not is_strong(make("Logistic", **options), None)  # type: ignore[arg-type]  # of several types


@compiled_only
@pytest.mark.parametrize("csr", [False, True])
def test_the_elastic_net_has_the_same_zeros(csr: bool) -> None:
    problem = make("LeastSquares", csr=csr, bias="free", l1=60.0)
    optimum = problem.minimize()
    assert (optimum == 0.0).sum() == 1 and np.linalg.norm(problem.gradient(optimum)) < 1e-9
    run = avare.saga(problem, epochs=3000, tol=1e-9, seed=5, evaluate="never")
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
@pytest.mark.parametrize("widest", [256, 0])
def test_an_automatic_step_never_diverges(widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preconditioners, "_WIDEST", widest)
    generator = np.random.default_rng(7)
    X = generator.standard_cauchy((400, 6)) * generator.lognormal(0, 4, 6)
    problem = LeastSquares(X, generator.standard_cauchy(400), sample_weight=generator.lognormal(0, 3, 400), l2=1e-6)
    run = avare.saga(problem, epochs=200, tol=0.0, seed=8)
    assert run.status == "finished" and np.isfinite(run.x).all()
    assert run.trace.objective[-1] <= run.trace.objective[0]


def test_it_retreats_and_halves_a_step_that_is_too_large() -> None:
    problem = make("LeastSquares", bias="free")
    metric, sampler = own_preconditioner(problem), avare.Calibrated(N, 5, seed=1)
    method = SagaSteps(problem, sampler, np.zeros(problem.dim), metric, size=None, tol=0.0)
    method.pacing.size *= 300.0
    method.resumed()
    for epoch in range(1, 40):
        assert method.advance((epoch - 1) * 30, np.ones(30), np.empty((0, problem.dim))) == 30
        method.check(epoch * 30)
    assert method.pacing.scale < 1.0 and np.isfinite(method.x).all()
    assert problem.objective(method.x) < problem.objective(np.zeros(problem.dim))


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
    assert run.status == "finished" and run.epochs == 20
    assert run.trace.objective[-1] < 0.9 * run.trace.objective[0]


@pytest.mark.parametrize(
    ("csr", "way", "sampler", "table", "widest"),
    [
        (False, "pickle", "Calibrated", "estimator/slopes", 256),
        (False, "savez", "Calibrated", "estimator/slopes", 0),
        (True, "savez", "Uniform", "estimator/slopes", 256),
        (True, "savez", "Calibrated", "dual/table", 256),
    ],
)
def test_resumes_to_the_same_iterates(
    csr: bool, way: str, sampler: str, table: str, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preconditioners, "_WIDEST", widest)
    problem = make("Softmax", csr=csr, bias="free", l1=0.1 if csr else 0.0, l2=4.0 if csr else 0.7)
    options: dict[str, Any] = {"sampler": sampler, "epochs": 12, "tol": 0.0, "batch_size": 6}
    whole = avare.saga(problem, seed=9, **options)

    at, last = (5, 12) if table == "dual/table" else (130, 300)  # in an epoch of 25 steps, after curvatures changed

    def stop(now: Any) -> bool:
        return bool(now.step >= at)

    first = avare.saga(problem, seed=9, evaluate=sorted({*range(0, last + 1, 25), at}), callback=stop, **options)
    assert first.status == "stopped" and first.steps == at
    state = saved_and_loaded(first.state_dict(), way)
    rest = avare.saga(problem, resume=state, **options)
    assert np.array_equal(whole.x, rest.x) and np.any(whole.x != 0.0)
    assert state[table].nbytes == 8 * problem.n * problem.outputs


def test_a_state_that_does_not_fit_is_refused() -> None:
    problem = make("Logistic")
    state = avare.saga(problem, epochs=1, tol=0.0, seed=1).state_dict()
    cases = [
        ({**state, "estimator/slopes": np.zeros((3, 1))}, r"resume\['estimator/slopes'\] has shape \(3, 1\)"),
        ({key: value for key, value in state.items() if key != "pacing/last_x"}, "lacks 'pacing/last_x'"),
        ({**state, "solver": "sgd"}, "must be 'saga'"),
    ]
    for damaged, message in cases:
        with pytest.raises(ValueError, match=message):
            avare.saga(problem, epochs=2, resume=damaged)
    with pytest.raises(ValueError, match="step_size"):
        avare.saga(problem, step_size=0.1, epochs=2, resume=state)


def test_stops_when_the_gradient_is_small_and_not_before() -> None:
    problem = make("Logistic", bias="free")
    scale = math.sqrt(2.0 * problem.total_loss(np.zeros(problem.dim)))
    metric = preconditioner_of(problem, bends_of(problem))
    for tol in (1e-2,) if numba.config.DISABLE_JIT else (1e-2, 1e-5):
        run = avare.saga(problem, epochs=500, tol=tol, seed=2, evaluate="never")
        gradient = problem.gradient(run.x)
        gradient[:-1] -= metric.shift[:-1] * gradient[-1]
        # The curvatures may have been measured again: by at most a factor 100, and the metric with them.
        assert run.status == "converged" and math.sqrt(gradient @ metric.matrix @ gradient) <= tol * scale
        assert "converged after step" in run.message


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"step_size": "fast"}, ValueError, "step_size = 'fast': must be a number or \"auto\""),
        ({"step_size": 0.0}, ValueError, "step_size = 0.0: must be above 0"),
        ({"epochs": -1}, ValueError, "epochs = -1: must be at least 0"),
        ({"tol": -1.0}, ValueError, "tol = -1.0: must be at least 0"),
        ({"sampler": "Nobody"}, ValueError, "name = 'Nobody': must be one of"),
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
