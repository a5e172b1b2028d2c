"""Coordinate descent on columns: the same minimum by sweeps and by the matrix, and slopes that certify it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from avare.linear import coordinate_descent, working_sets
from avare.linear.coordinate_descent import CoordinateDescent
from avare.linear.objective import Objective
from avare.linear.solver import solve
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge

Way = Callable[[pytest.MonkeyPatch], None]
KINDS: list[type[Linear]] = [LeastSquares, Logistic, Huber, SmoothedHinge]


def problem_of(
    kind: type[Linear],
    *,
    n: int = 80,
    d: int = 30,
    l1: float = 3.0,
    l2: float = 0.0,
    bias: Any = "free",
    is_sparse: bool = False,
    dtype: Any = np.float64,
) -> Linear:
    generator = np.random.default_rng(0)
    X = (generator.normal(size=(n, d)) + generator.normal(size=(n, 1))) * generator.lognormal(0.0, 1.0, d)
    X = (X * (generator.random((n, d)) < (0.3 if is_sparse else 1.0))).astype(dtype)
    y = X[:, :3].sum(axis=1) + generator.normal(size=n)
    y = y if kind.target == "numbers" else y > 0.0
    data = sparse.csr_matrix(X) if is_sparse else X
    return kind(data, y, l1=l1, l2=l2, bias=bias, sample_weight=generator.lognormal(size=n))


def only_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinate_descent, "_OVERHEAD", 1e12)  # the matrix seems too expensive


def only_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinate_descent, "_FEW_SWEEPS", np.inf)
    monkeypatch.setattr(coordinate_descent, "_FEW_SWEEPS_ONCE", np.inf)


def sweeps_then_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinate_descent, "_OVERHEAD", 0.0)
    monkeypatch.setattr(coordinate_descent, "_FEW_SWEEPS", 0.0)
    monkeypatch.setattr(coordinate_descent, "_FEW_SWEEPS_ONCE", 0.0)


@pytest.mark.parametrize("way", [only_sweeps, only_matrix, sweeps_then_matrix])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("bias", [False, "free"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_reach_the_certified_minimum(
    kind: type[Linear], bias: Any, is_sparse: bool, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(kind, bias=bias, is_sparse=is_sparse)
    best = problem.objective(problem.minimize(tolerance=1e-7))
    way(monkeypatch)
    found = solve(problem, tol=1e-7)
    assert found.status == "converged"
    assert found.objective - best <= found.gap + 1e-12 * found.scale  # the gap is a bound, up to rounding
    assert found.gap <= 1e-7 * found.scale


@pytest.mark.parametrize("kind", [LeastSquares, Logistic])
def test_elastic_net_and_more_columns_than_a_set(kind: type[Linear], monkeypatch: pytest.MonkeyPatch) -> None:
    only_sweeps(monkeypatch)
    problem = problem_of(kind, n=60, d=400, l1=0.3, l2=0.2)
    found = solve(problem, tol=1e-8)
    assert found.status == "converged"
    assert np.linalg.norm(problem.gradient(found.table.ravel())) < 0.05 * np.linalg.norm(
        problem.gradient(np.zeros(401))
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_columns_are_copied_when_they_are_first_needed(
    is_sparse: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_sweeps(monkeypatch)
    problem = problem_of(Logistic, is_sparse=is_sparse, dtype=dtype)
    total = Objective(problem)
    steps, point = CoordinateDescent(total), total.at(np.zeros((1, 31)), np.zeros((80, 1)))
    for chosen in (np.array([2, 5]), np.array([0, 5, 29])):
        step = steps.solve(point, total.gradient(point), chosen, 1e-9)
        assert set(np.flatnonzero(step.table[0, :30])) <= set(chosen)
        np.testing.assert_allclose(step.outputs, total.rows.outputs(step.table), atol=1e-12)


@pytest.mark.parametrize("way", [only_sweeps, only_matrix])
@pytest.mark.parametrize("bias", [False, "free"])
def test_predicted_slopes_are_those_of_the_model(bias: Any, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    way(monkeypatch)
    problem = problem_of(Logistic, bias=bias)
    total = Objective(problem)
    point = total.at(np.zeros((1, problem.width)), np.zeros((80, 1)))
    step = CoordinateDescent(total).solve(point, total.gradient(point), np.arange(30), 1e-9)
    np.testing.assert_allclose(step.residual, point.terms.slopes + point.terms.curvature * step.outputs, atol=1e-12)
    if bias == "free":
        assert abs(step.residual.sum()) < 1e-12 * np.abs(step.residual).sum()


def test_a_constant_column_and_an_empty_one_do_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    only_sweeps(monkeypatch)
    generator = np.random.default_rng(0)
    X = np.column_stack([generator.normal(size=50), np.full(50, 3.0), np.zeros(50)])
    found = solve(LeastSquares(X, X[:, 0] + 5.0, l2=0.0, l1=0.1, bias="free"), tol=1e-10)
    assert found.status == "converged"
    assert (found.table[0, 1:3] == 0.0).all()


def test_no_coefficient_is_worth_its_penalty() -> None:
    problem = problem_of(Logistic, l1=1e6)
    found = solve(problem, tol=1e-9)
    assert found.status == "converged"
    assert not found.table[0, :-1].any()
    again = solve(problem, tol=1e-9, start=np.append(np.zeros(30), 5.0)[None])  # only the bias is far off
    assert again.status == "converged"
    np.testing.assert_allclose(again.table, found.table, atol=1e-6)


def test_a_mapped_file_is_not_copied_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.memmap(tmp_path / "X", dtype=np.float64, mode="w+", shape=(200, 5))
    X[:] = np.random.default_rng(0).normal(size=X.shape)
    monkeypatch.setattr(CoordinateDescent, "_load", None)  # would be an error
    found = solve(Logistic(X, X[:, 0] > 0.2, l2=0.0, l1=1.0, bias="free"), tol=1e-6)
    assert found.status == "converged"


def test_losses_that_are_flat_at_the_start_use_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinateDescent, "solve", None)  # would be an error
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 5))
    problem = Huber(X, 100.0 * X[:, 0], l2=0.0, l1=0.1, bias="free")  # residuals far beyond delta
    assert solve(problem, tol=1e-6).status == "converged"


def test_the_mean_of_steps_changes_the_least() -> None:
    generator = np.random.default_rng(0)
    columns, bends = np.array([4, 1, 6]), generator.lognormal(size=8)
    kept = generator.normal(size=(3, 3))
    changes, before = np.diff(kept, axis=0) * np.sqrt(bends[columns]), kept.copy()
    coordinate_descent._mean_of_steps(columns, bends, kept, np.empty((2, 3)))
    shares = np.linspace(-5.0, 5.0, 100_001)
    norms = np.linalg.norm(shares[:, None] * changes[0] + (1.0 - shares[:, None]) * changes[1], axis=1)
    best = shares[norms.argmin()]
    assert 0.01 < abs(best) < 4.9, "the best of the grid lies inside"
    assert kept[0] == pytest.approx(best * before[1] + (1.0 - best) * before[2], abs=1e-3)  # the grid has steps of 1e-4
    assert (kept[1:] == before[1:]).all()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_extrapolated_steps_need_fewer_sweeps(is_sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    only_sweeps(monkeypatch)
    problem = problem_of(LeastSquares, n=60, d=40, l1=0.3, bias=False, is_sparse=is_sparse)
    total = Objective(problem)
    half = total.rows.gram(problem.model.sample_weight)
    gram = np.tril(half) + np.tril(half, -1).T

    def plain_sweep(x: Any, slopes: Any) -> float:
        """Move each coefficient to its minimum, without extrapolation; return the largest violation before."""
        largest = 0.0
        for j, bend in enumerate(np.diag(gram)):
            free = x[j] - slopes[j] / bend
            change = np.sign(free) * max(abs(free) - 0.3 / bend, 0.0) - x[j]
            x[j] += change
            slopes += change * gram[j]
            largest = max(largest, abs(change) * bend)
        return largest

    x, slopes = np.zeros(40), problem.gradient(np.zeros(40))
    for _ in range(20):
        plain_sweep(x, slopes)
    point = total.at(x[None].copy(), total.rows.outputs(x[None]))
    goal = 1.01 * (point.objective - solve(problem, tol=1e-13).objective)  # the step falls by less: it may be the last
    descend, spent = coordinate_descent._descend, list[float]()

    def count(*arguments: Any) -> Any:
        found = descend(*arguments)
        spent.append(found[0])
        return found

    monkeypatch.setattr(coordinate_descent, "_descend", count)
    CoordinateDescent(total).solve(point, total.gradient(point), np.arange(40), goal)
    sweeps = 1
    while plain_sweep(x, slopes) > 0.25 * goal / np.abs(x).sum():
        sweeps += 1
    assert sweeps > 20
    assert spent[0] < 0.7 * sweeps


def test_a_matrix_that_was_needed_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps_then_matrix(monkeypatch)
    monkeypatch.setattr(coordinate_descent, "_MOST_SWEEPS", 0.0)  # one round of sweeps, which is never enough
    problem = problem_of(Logistic, l1=0.3)
    with mock.patch.object(coordinate_descent, "_descend", wraps=coordinate_descent._descend) as descend:
        found = solve(problem, tol=1e-9)
    assert found.status == "converged"
    assert found.steps > 2
    assert descend.call_count == 1


def test_coefficients_that_block_a_step_do_not_slow_the_others() -> None:
    """Heavy rows make columns nearly the same: the step to the minimum changes many signs on its way."""
    generator = np.random.default_rng(4)
    X = generator.normal(size=(40, 8)) * (1.0 + generator.pareto(1.0, (40, 1))) + generator.pareto(0.7, (40, 1))
    gram, target = X.T @ X, X.T @ generator.normal(size=40)
    start, l1 = generator.normal(size=8), np.full(8, 0.3 * np.abs(target).max())
    gradient = gram @ start - target
    with mock.patch.object(working_sets, "_MOST_ROUNDS", 20):
        step = working_sets.minimise_model(gram, gradient, start, l1, 1e300)  # so large a goal asks for the minimum
    slopes, end = gradient + gram @ step, start + step
    used = end != 0.0
    assert 0 < used.sum() < 8
    assert slopes[used] == pytest.approx(-l1[used] * np.sign(end[used]), rel=1e-9)  # rounding is 1e-12 of them
    assert (np.abs(slopes[~used]) <= l1[~used]).all()
