"""The strategies and their order: each reaches the certified minimum, and leaves to the others what is not for it."""

import ast
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from avare import linear
from avare.linear import newton, row_basis, small
from avare.linear.solver import STRATEGIES, solve
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax
from linear_tasks import task_of


def example(kind: type[Linear], seed: int, *, n: int = 60, columns: int = 4, **options: Any) -> Linear:
    """Dense or sparse, with weights of which some are 0, columns of different scales, by turns of the seed."""
    generator = np.random.default_rng(seed)
    X: Any = generator.normal(size=(n, columns)) * np.exp(generator.normal(size=columns)) + 2.0 * (seed % 2)
    X[7] = X[3]
    score = X[:, 0] + generator.normal(size=n)
    weights = generator.lognormal(size=n) * (generator.random(n) < 0.9) if seed % 3 == 0 else None
    if seed % 4 < 2:
        X = sp.csr_array(X * (generator.random(X.shape) < 0.6))
    y = score if kind in (LeastSquares, Huber) else np.arange(n) % 4 if kind is Softmax else score > np.median(score)
    settings = {"l2": 0.3, "sample_weight": weights, "bias": [False, True, "free"][seed % 3]}
    settings |= {"delta": 5.0} if kind is Huber else {}  # with less, steps are often too long for `small`
    return kind(X, y, **{**settings, **options})


@pytest.mark.parametrize(
    ("strategy", "kind", "shape"),
    [
        *((small, kind, (60, 4)) for kind in (Logistic, LeastSquares, Huber)),
        *((row_basis, kind, (30, 200)) for kind in (Logistic, LeastSquares, Huber, SmoothedHinge, Softmax)),
    ],
)
@pytest.mark.parametrize("seed", range(6))
def test_the_minimum_is_that_of_newton(strategy: Any, kind: type[Linear], shape: tuple[int, int], seed: int) -> None:
    problem = example(kind, seed, n=shape[0], columns=shape[1])
    other = solve(problem, tol=1e-12, strategies=[newton])
    for tol in (1e-2, 1e-9):
        assert strategy.expected_cost(task_of(problem)) < math.inf
        assert strategy.solve(task_of(problem, tol)).status == "converged"
        found = solve(problem, tol=tol, strategies=[strategy, newton])
        assert found.status == "converged" and found.gap <= tol * found.scale and found.gap_kind == "bound"
        # Both objectives are sums of some ten numbers, right to about 1e-13 of the scale.
        assert problem.objective(found.table.ravel()) == pytest.approx(found.objective, rel=1e-12)
        assert -1e-12 * found.scale <= found.objective - other.objective + other.gap
        assert found.objective - other.objective <= found.gap + 1e-12 * found.scale


@pytest.mark.parametrize("shape", [(80, 3), (20, 30)])
def test_columns_far_from_0_cost_no_accuracy(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(7)
    X, y = generator.normal(size=shape), generator.integers(0, 2, shape[0])
    near, far = (solve(Logistic(Z, y, bias="free"), tol=1e-9) for Z in (X, X + 1e6))
    assert near.status == far.status == "converged"
    np.testing.assert_allclose(near.table[:, :-1], far.table[:, :-1], rtol=1e-4, atol=1e-6)


def test_what_each_strategy_is_for() -> None:
    def named(problem: Linear) -> set[str]:
        task = task_of(problem)
        able = [each for each in STRATEGIES if each.expected_cost(task) < math.inf]
        return {each.__name__.rpartition(".")[2] for each in able}  # type: ignore[attr-defined]  # of a module

    generator = np.random.default_rng(2)
    wide = generator.normal(size=(30, 200))
    assert named(example(Logistic, 2)) == {"small", "newton"}
    assert named(example(Logistic, 2, n=300, columns=300)) == {"newton"}
    assert named(example(Logistic, 2, l2=0.0)) == {"newton"}
    assert named(Softmax(np.eye(3), [0, 1, 2])) == {"newton"}
    assert named(example(Logistic, 2, n=500_000, columns=2)) == {"samples", "newton"}
    assert named(Logistic(wide, np.arange(30) % 2)) == {"row_basis", "newton"}
    assert named(Logistic(wide, np.arange(30) % 2, l2=np.linspace(1.0, 2.0, 200))) == {"newton"}
    assert "dual_ascent" in named(Logistic(sp.csr_array(wide * (wide > 1.5)), np.arange(30) % 2))
    assert named(example(Logistic, 2, l2=0.0, l1=0.1)) == {"coordinate_descent", "working_sets"}
    assert named(Softmax(wide, np.arange(30) % 3, l1=0.1)) == {"working_sets"}
    places = (np.repeat(np.arange(2_000), 2), generator.integers(0, 20_000, 4_000))
    few = sp.csr_array((generator.random(4_000), places), shape=(2_000, 20_000))  # products with X are cheap
    assert named(Softmax(few, np.arange(2_000) % 3)) == {"newton"}


def test_what_is_read_of_a_problem_is_listed_and_public() -> None:
    found = set()
    for path in Path(linear.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            owner = node.value if isinstance(node, ast.Attribute) else None
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if isinstance(node, ast.Attribute) and name == "problem":
                found.add(node.attr)
    listed = re.findall("`([a-z0-9_]+)`", (linear.__doc__ or "").partition("What is read")[2])
    assert found == set(listed) and len(listed) == len(found)


def test_what_does_not_converge_quickly_is_left_to_newton() -> None:
    problem = example(Logistic, 2)
    found = small.solve(task_of(problem, steps=1))
    assert found.steps == 1 and found.gap == np.inf and found.point.objective < problem.best_constant()
    assert solve(problem, tol=1e-9, steps=1).status == "finished"
    # A column twice, with almost no penalty: the Hessian is singular.
    generator = np.random.default_rng(8)
    X = generator.normal(size=(50, 1))
    twice = Logistic(np.hstack([X, X]), generator.integers(0, 2, 50), l2=1e-15)
    assert small.solve(task_of(twice, 1e-6))[1:4] == (np.inf, 0, "started")
    assert solve(twice, tol=1e-6).status == "converged"
    # No loss is curved at the best constant: nothing holds the bias.
    heavy = Huber(X, np.where(np.arange(50) % 2, 1e6, -1e6), bias="free")
    assert solve(heavy, tol=1e-6).status == "converged"
    assert all(solve(example(SmoothedHinge, seed), tol=1e-9).status == "converged" for seed in range(6))


def test_newton_continues_where_a_small_model_ended() -> None:
    """Rows of very different lengths, nearly separable: short steps make some way, and newton certifies the rest."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(120, 12)) * (1.0 + generator.pareto(1.0, (120, 1)))
    problem = Logistic(X, X[:, 0] + 0.1 * generator.logistic(size=120) > 0.0, l2=1e-6)
    part = small.solve(task_of(problem, steps=9))
    assert part.steps == 9 and part.gap == np.inf
    found = solve(problem, tol=1e-9, steps=10)
    assert found.steps == 10 and found.status == "finished"
    assert found.objective <= part.point.objective < found.scale
    whole = solve(problem, tol=1e-9)
    assert whole.status == "converged" and whole.objective <= found.objective


def test_what_rounding_hides_in_the_basis_is_found_with_all_columns() -> None:
    problem = example(Softmax, 2, n=30, columns=200, l2=1e-6)
    found, plain = solve(problem, tol=1e-13), solve(problem, tol=1e-13, strategies=[newton])
    assert found.status == "converged"
    assert found.objective == pytest.approx(plain.objective, rel=1e-6, abs=1e-12 * found.scale)


def test_the_basis_begins_where_another_strategy_ended() -> None:
    problem = example(Logistic, 2, n=30, columns=200)
    best = solve(problem, tol=1e-12)
    again = solve(problem, tol=1e-9, start=best.table, strategies=[row_basis])
    assert again.status == "converged" and again.steps == 0


def test_a_class_without_weight_leaves_no_minimum() -> None:
    X, y = np.random.default_rng(4).normal(size=(40, 3)), np.arange(40) % 2
    for weights in (y, 1 - y):
        found = solve(Logistic(X, y, l2=1.0, bias="free", sample_weight=weights), tol=1e-6)
        assert found.status == "stalled" and found.gap == np.inf
        assert solve(Logistic(X, y, l2=1.0, bias=True, sample_weight=weights), tol=1e-6).status == "converged"
    three = np.arange(40) % 3
    assert solve(Softmax(X, three, l2=1.0, bias="free", sample_weight=1.0 * (three > 0)), tol=1e-6).status == "stalled"


# --- what a gap is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "bound"),
        ({"l2": 0.0, "l1": 0.1}, "bound"),
        ({"l2": [0.3, 0.0, 1.0, 1.0], "l1": 0.1}, "bound"),
        ({"l2": [0.3, 0.0, 1.0, 1.0]}, "estimate"),
        ({"l2": 0.0}, "estimate"),
    ],
)
def test_a_gap_is_a_bound_if_every_column_has_a_penalty(options: dict[str, Any], kind: str) -> None:
    problem = example(Logistic, 2, **options)
    found = solve(problem, tol=1e-9)
    assert (found.status, found.gap_kind) == ("converged", kind)


def test_a_gap_that_is_the_whole_objective_is_a_bound_without_a_penalty_too() -> None:
    X = np.random.default_rng(5).normal(size=(40, 2))
    found = solve(SmoothedHinge(X, X[:, 0] > 0.0, l2=0.0), tol=1e-6)
    assert (found.status, found.gap_kind) == ("converged", "bound") and found.gap >= found.objective


def test_a_gap_with_estimated_rounding_is_an_estimate() -> None:
    """Parts of 1e9 cancel in each linear predictor, which is then rounded to some 1e-7."""
    generator = np.random.default_rng(21)
    X = generator.normal(size=(300, 6))
    X[:, 5] = X[:, 4] + 1e-9 * generator.normal(size=300)
    y = X[:, 0] + 1e9 * (X[:, 5] - X[:, 4]) + generator.logistic(size=300) > 0.0
    assert solve(Logistic(X, y, l2=1e-18), tol=1e-12).gap_kind == "estimate"
    assert solve(Logistic(X, y, l2=1.0), tol=1e-9).gap_kind == "bound"
