"""Dual coordinate ascent: it ends at the minimum, certifies it, and leaves to Newton what is not for it."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from avare.linear import constant_model, dual_ascent, newton
from avare.linear.dual_ascent import DualAscent, primal_point
from avare.linear.solver import Minimum, solve
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax
from linear_tasks import task_of

KINDS = [Logistic, LeastSquares, Huber, SmoothedHinge]
every_kind = pytest.mark.parametrize("kind", KINDS)


def wide_problem(kind: type[Linear], seed: int = 0, **options: Any) -> Linear:
    """Forty rows of very different lengths, and 300 columns."""
    generator = np.random.default_rng(seed)
    X = sp.random(40, 300, density=0.05, format="csr", random_state=seed, data_rvs=generator.standard_normal)
    X = sp.csr_matrix(sp.diags(generator.lognormal(0.0, 1.0, 40)) @ X)
    y = X[:, :20].sum(axis=1).A1 + generator.normal(size=40) > 0.0
    options = {"l2": 0.1, "sample_weight": generator.lognormal(0.0, 1.0, 40), **options}
    return kind(X, y * (1.0 if kind in (Logistic, SmoothedHinge) else 3.0), **options)


def by_newton(problem: Linear) -> Minimum:
    return solve(problem, tol=1e-12, strategies=[newton])


@every_kind
@pytest.mark.parametrize("bias", [False, True, "free"])
@pytest.mark.parametrize("l2", [1e-3, 0.1, 10.0])
def test_it_ends_at_the_minimum(kind: type[Linear], bias: Any, l2: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DualAscent, "needed", lambda self, goal: 0.0)  # however long it takes
    problem = wide_problem(kind, bias=bias, l2=l2)
    found = solve(problem, tol=1e-8, steps=1000, strategies=[dual_ascent])
    other = by_newton(problem)
    assert (found.method, found.status, other.method) == ("dual ascent", "converged", "newton")
    assert found.objective == pytest.approx(problem.objective(found.table.ravel()), rel=1e-12)
    assert found.gap <= 1e-8 * found.scale
    assert -1e-12 * found.scale <= found.objective - other.objective + other.gap <= found.gap + 1e-11 * found.scale


@every_kind
def test_orthogonal_rows_need_one_epoch(kind: type[Linear]) -> None:
    values = np.array([1.0, 30.0, 0.1, 4.0, 2.0])
    X = sp.csr_matrix((values, np.arange(5), np.arange(6)), shape=(5, 100))
    problem = kind(X, [1.0, 0.0, 0.0, 1.0, 0.0], l2=0.5)
    task = task_of(problem)
    total, ascent = task.total, DualAscent(task.total, task.point)
    ascent.advance()
    ascent.advance()  # a visit leaves a hundredth
    assert primal_point(total, ascent.outputs)[1] <= 1e-3 * constant_model(problem)[1]


@every_kind
@pytest.mark.parametrize("bias", [False, "free"])
def test_every_epoch_gives_a_lower_bound(kind: type[Linear], bias: Any) -> None:
    problem = wide_problem(kind, seed=1, bias=bias)
    least = by_newton(problem)
    task = task_of(problem)
    total, ascent = task.total, DualAscent(task.total, task.point)
    for _ in range(6):
        ascent.advance()
        reached, gap = primal_point(total, ascent.outputs)
        assert gap >= reached.objective - least.objective - 1e-12 * least.scale
    assert 0.01 * gap <= ascent.left <= 100.0 * gap  # an estimate, for which the order of magnitude is enough


def test_rows_that_disturb_each_other_are_left_to_newton() -> None:
    generator = np.random.default_rng(0)
    column = generator.normal(size=(60, 1))
    X = sp.csr_matrix(np.hstack([column + 0.1 * generator.normal(size=(60, 8)), np.zeros((60, 100))]))
    found = solve(Logistic(X, column[:, 0] + generator.normal(size=60) > 0.0, l2=1e-4), tol=1e-8)
    assert (found.method, found.status) == ("newton", "converged") and found.steps > 4


def test_epochs_are_steps() -> None:
    problem, calls = wide_problem(Logistic, bias="free"), list[tuple[int, float, float]]()
    found = solve(problem, tol=1e-12, steps=2, strategies=[dual_ascent], callback=lambda *values: calls.append(values))
    assert (found.method, found.status, found.steps) == ("dual ascent", "finished", 2)
    assert [call[:2] for call in calls] == [(2, found.objective)] and calls[0][2] == pytest.approx(found.gap)
    assert 1e-12 * found.scale < found.gap < math.inf


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("l2", [1e-5, 1.0])
def test_the_end_is_never_above_the_beginning(steps: int, l2: float) -> None:
    problem = wide_problem(Logistic, l2=l2, bias="free")  # a single epoch with a weak penalty leads to 3 times the loss
    found, least = solve(problem, tol=1e-12, steps=steps, strategies=[dual_ascent, newton]), by_newton(problem)
    assert found.steps == steps and found.objective <= found.scale * (1.0 + 1e-12)
    assert found.gap >= found.objective - least.objective - 1e-9 * found.scale


@pytest.mark.parametrize(
    "problem",
    [
        Logistic(np.ones((3, 9)) * np.arange(9), [0, 1, 0]),
        Logistic(sp.csr_matrix(np.eye(3, 9)), [0, 1, 0], l2=0.0),
        Logistic(sp.csr_matrix(np.eye(3, 9)), [0, 1, 0], l2=np.arange(1.0, 10.0)),
        Logistic(sp.csr_matrix(np.eye(9, 3)), [0, 1, 0] * 3),
        Softmax(sp.csr_matrix(np.eye(3, 9)), [0, 1, 2]),
    ],
    ids=["dense", "no penalty", "uneven penalty", "many rows", "several outputs"],
)
def test_problems_for_which_it_is_not_made(problem: Linear) -> None:
    assert dual_ascent.expected_cost(task_of(problem)) == math.inf


def test_it_begins_at_a_constant_model_only() -> None:
    task = task_of(wide_problem(Logistic))
    assert dual_ascent.expected_cost(task) < math.inf
    task.point.table[0, 0] = 0.1
    assert dual_ascent.expected_cost(task) == math.inf


@every_kind
def test_rows_without_entries_or_weight(kind: type[Linear]) -> None:
    X = sp.csr_matrix(np.vstack([np.zeros((2, 90)), np.eye(4, 90), np.eye(2, 90)]))
    y = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    found = solve(kind(X, y, sample_weight=[1, 2, 1, 0, 0, 3, 1, 0], bias="free"), tol=1e-9)
    assert found.status == "converged"


@pytest.mark.parametrize("size", [1e50, 1e-50])
def test_entries_of_any_size(size: float) -> None:
    X = sp.csr_matrix(size * np.eye(4, 90))
    found = solve(Logistic(X, [0, 1, 1, 0], l2=1e-6), tol=1e-6)
    assert found.gap <= 1e-6 * found.scale or found.status != "converged"
    assert found.objective <= found.scale


def test_a_loss_without_a_conjugate_is_left_to_newton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeastSquares, "slope_range", None)
    found = solve(wide_problem(LeastSquares, l2=100.0), tol=1e-6)
    assert found.method == "newton"


def test_slopes_that_cannot_be_balanced_certify_nothing() -> None:
    problem = wide_problem(Huber, delta=1e-3, bias="free")
    total = task_of(problem).total
    beyond = problem.model.targets[:, None] + 1.0  # all slopes are at the end of their range, where nothing is curved
    with np.errstate(over="ignore", invalid="ignore"):
        assert primal_point(total, beyond)[1] == math.inf
