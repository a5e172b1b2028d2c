"""Newton's method: its gap is a bound, for every loss and shape, and every way to a step leads to the same minimum."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import rel_entr

from avare.linear import newton, samples
from avare.linear.certificates import gap_by_rounding
from avare.linear.design import Design
from avare.linear.losses import fenchel_young
from avare.linear.newton_system import NewtonSystem
from avare.linear.objective import Objective
from avare.linear.preconditioners import Jacobi, by_classes, by_columns
from avare.linear.solver import solve
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax
from extreme_problems import LOSSES, exact_objective, extreme_problem, lowest
from linear_tasks import task_of

every_loss = pytest.mark.parametrize("kind", LOSSES)


def random_problem(kind: type[Linear], seed: int, **options: Any) -> Linear:
    """Shapes, scales, weights, penalties and a bias that are drawn, unless they are given."""
    generator = np.random.default_rng(seed)
    n, columns = int(generator.integers(5, 300)), int(generator.integers(1, 50))
    X: Any = generator.normal(size=(n, columns)) * np.exp(generator.normal(size=columns))
    if generator.random() < 0.5:
        X += 3.0 * generator.normal(size=columns)
    else:
        X = sp.csr_array(X * (generator.random(X.shape) < 0.3))
    y = generator.integers(0, 3 if kind is Softmax else 2, n)
    y[:3] = [0, 1, 2 if kind is Softmax else 1]
    settings: dict[str, Any] = {
        "l2": float(np.exp(generator.uniform(-6.0, 5.0))),
        "sample_weight": generator.lognormal(size=n) if generator.random() < 0.5 else None,
        "bias": [False, True, "free"][generator.integers(3)],
    }
    targets = 5.0 + 3.0 * generator.normal(size=n) if kind in (LeastSquares, Huber) else y
    return kind(X, targets, **{**settings, **options})


@every_loss
@pytest.mark.parametrize("seed", range(8))
def test_the_gap_is_a_bound(kind: type[Linear], seed: int) -> None:
    problem = random_problem(kind, seed)
    least = problem.objective(problem.minimize(tolerance=1e-9))
    for tol in (1e-2, 1e-9):
        found = solve(problem, tol=tol)
        assert found.status == "converged" and found.gap <= tol * found.scale
        reached = problem.objective(found.table.ravel())
        assert reached == pytest.approx(found.objective, rel=1e-10)
        # Both objectives are rounded: sums of some hundred numbers, right to about 1e-13 of the scale.
        assert reached - least <= found.gap + 1e-12 * found.scale
        assert reached <= found.scale * (1.0 + 1e-12)


@every_loss
def test_without_a_penalty_the_gap_is_that_of_the_corrected_slopes(kind: type[Linear]) -> None:
    X = np.random.default_rng(1).normal(size=(400, 4)) + 2.0
    y = np.random.default_rng(2).integers(0, 3 if kind is Softmax else 2, 400)
    problem = kind(X, y, l2=0.0, bias="free")
    found = solve(problem, tol=1e-8)
    least = problem.objective(problem.minimize(tolerance=1e-7))
    assert found.status == "converged" and found.gap <= 1e-8 * found.scale
    assert found.objective - least <= found.gap + 1e-12 * found.scale


def test_separable_classes_without_a_penalty_are_not_called_converged() -> None:
    X = np.random.default_rng(3).normal(size=(50, 2))
    found = solve(Logistic(X, X[:, 0] > 0.0, l2=0.0), tol=1e-9)
    assert found.status != "converged"


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9])
def test_targets_far_from_0(offset: float) -> None:
    generator = np.random.default_rng(4)
    X = generator.normal(size=(300, 3)) + 100.0
    y = X @ [1.0, 2.0, 3.0] + generator.normal(size=300)
    near = solve(LeastSquares(X, y, l2=0.5, bias="free"), tol=1e-12)
    # Outputs of 1e9 are rounded to 1e-7, and the objective to about 1e-8 of the scale.
    far = solve(LeastSquares(X, y + offset, l2=0.5, bias="free"), tol=1e-12 + 1e-17 * offset)
    assert near.status == far.status == "converged"
    # Targets of 1e9 are rounded to 1e-7, and coefficients to about as much.
    assert np.allclose(far.table[:, :-1], near.table[:, :-1], atol=1e-16 * max(offset, 1.0) * 100.0 + 1e-9)


@every_loss
@pytest.mark.parametrize("shape", [(80, 6), (12, 60)])
@pytest.mark.parametrize("bias", [False, "free"])
@pytest.mark.parametrize("make", [Jacobi, by_columns, by_classes])
def test_every_preconditioner(kind: type[Linear], shape: tuple[int, int], bias: Any, make: Any) -> None:
    X = np.random.default_rng(5).normal(size=shape) + 1.0
    problem = kind(X, np.arange(shape[0]) % (3 if kind is Softmax else 2), l2=0.7, bias=bias)
    total = task_of(problem).total
    point = total.at(np.random.default_rng(6).normal(size=total.l2.shape) / shape[1])
    gradient = total.gradient(point)
    step = NewtonSystem(total, make(total, point)).solve(point, gradient, 1e-8, 0.0)
    assert np.linalg.norm(step.residual) <= 1e-6 * np.linalg.norm(gradient)
    assert np.allclose(gradient + total.curve(point, step.table)[1], step.residual, atol=1e-9 * np.abs(gradient).max())


def test_samples_come_first_and_save_passes() -> None:
    generator = np.random.default_rng(6)
    X = generator.normal(size=(20_000, 3)) * [1.0, 10.0, 0.1]
    y = X @ [2.0, 0.1, 5.0] + generator.logistic(size=len(X)) > 1.0
    problem = Logistic(X, y, l2=1.0, bias="free")
    found, whole = (solve(problem, tol=1e-8, strategies=each) for each in ([samples, newton], [newton]))
    assert found.status == whole.status == "converged" and found.steps < whole.steps
    assert found.objective == pytest.approx(whole.objective, rel=1e-7)


@pytest.mark.parametrize("columns", [5, 900])
@pytest.mark.parametrize("bias", [False, "free"])
def test_least_squares_take_one_step_if_its_factor_is_cheap(columns: int, bias: Any) -> None:
    generator = np.random.default_rng(7)
    X = generator.normal(size=(5_000 if columns == 5 else 50, columns)) + 1.0
    y = 3.0 + X[:, 0] + generator.normal(size=len(X))
    found = solve(LeastSquares(X, y, l2=2.0, bias=bias), tol=1e-9)
    assert found.status == "converged" and found.steps == 1


def test_l1_with_collinear_columns_reaches_a_small_gap() -> None:
    generator = np.random.default_rng(8)
    factors = np.column_stack([generator.integers(0, 12, 2_000) + 12 * k for k in range(4)])
    X = sp.csr_matrix((np.ones(8_000), factors.ravel(), np.arange(0, 8_001, 4)))  # the columns of a factor sum to 1
    y = generator.random(2_000) < 0.2 + 0.05 * (factors[:, 0] % 12)
    found = solve(Logistic(X, y, l2=0.0, l1=0.05, bias="free"), tol=1e-10)
    assert found.status == "converged" and found.steps < 100


def test_start_callback_and_the_last_step() -> None:
    problem = random_problem(Logistic, 3)
    found = solve(problem, tol=1e-10)
    seen: list[tuple[int, float, float]] = []
    again = solve(problem, tol=1e-10, start=found.table, callback=lambda *now: seen.append(now))
    assert again.steps <= 1 and seen[-1][2] == pytest.approx(again.gap, abs=1e-12 * again.scale)
    short = solve(problem, tol=1e-300, steps=1)
    assert short.status == "finished" and short.steps == 1 and short.objective <= short.scale


def test_all_targets_the_same() -> None:
    found = solve(LeastSquares(np.eye(4)[:, :2], np.full(4, 7.0), l2=1.0, bias="free"), tol=1e-9)
    assert found.status == "converged" and found.objective == found.gap == 0.0
    assert found.table.tolist() == [[0.0, 0.0, 7.0]]


@pytest.mark.parametrize("n", [20, 20_000])
def test_no_example_counts(n: int) -> None:
    X = np.random.default_rng(7).normal(size=(n, 2))
    found = solve(Logistic(X, X[:, 0] > 0.0, l2=1.0, sample_weight=np.zeros(n), bias="free"), tol=1e-9)
    assert found.status == "converged" and found.objective == 0.0 and not found.table[:, :2].any()


def test_conjugates_outside_of_their_domain_are_infinite() -> None:
    X, y = np.eye(3), np.array([0, 1, 1])
    for problem in (Logistic(X, y), SmoothedHinge(X, y), Huber(X, y, delta=0.5), Softmax(X, [0, 1, 2])):
        slopes = np.tile([9.0, -9.0, 0.0] if problem.outputs > 1 else [9.0], (3, 1))
        outputs = np.zeros_like(slopes)
        assert fenchel_young(problem, outputs, problem.terms_at(outputs), slopes) == math.inf


@pytest.mark.parametrize("weighted", [False, True])
def test_the_excess_of_softmax_is_a_divergence(weighted: bool) -> None:
    generator = np.random.default_rng(9)
    weights = generator.lognormal(size=50) * (np.arange(50) > 0) if weighted else None
    problem = Softmax(np.eye(50), np.arange(50) % 4, sample_weight=weights)
    outputs = 20.0 * generator.normal(size=(50, 4))
    for change in (0.0, 1e-6, 0.1, 30.0):
        others = problem.terms_at(outputs + change * generator.normal(size=(50, 4)))
        p, q = others.curvature, problem.terms_at(outputs).curvature
        expected = problem.weighted_sum(rel_entr(p, q).sum(axis=1))
        found = fenchel_young(problem, outputs, problem.terms_at(outputs), others.slopes)
        # Probabilities near 1 are rounded by 1e-16; the bound is above by the fourth power of the change.
        assert expected * (1.0 - 1e-9) - 1e-12 <= found <= expected * (1.0 + 0.01) + 1e-12


def test_a_sample_of_all_classes_is_near_the_whole() -> None:
    generator = np.random.default_rng(10)
    X, y = generator.normal(size=(20_000, 3)) + 1.0, generator.integers(0, 4, 20_000)
    problem = Softmax(X, y, l2=5.0, sample_weight=generator.lognormal(size=len(X)))
    total = Objective(problem)
    table = generator.normal(size=(4, 3))
    point, right = total.at(table, total.rows.outputs(table)), generator.normal(size=(4, 3))
    exact, part = (by_classes(total, point, share) for share in (1.0, 0.25))
    assert np.allclose(total.curve(point, exact.solve(right))[1], right)
    # 5,000 rows for 12 coefficients: an error of 5 % in the metric of H is 1 standard error.
    error = part.solve(right) - exact.solve(right)
    assert np.vdot(error, total.curve(point, error)[1]) <= 0.04 * np.vdot(right, exact.solve(right))
    assert exact.exact and not part.exact


@pytest.mark.parametrize("seed", range(60))
def test_no_objective_is_lower_than_the_gap_allows(seed: int) -> None:
    problem = extreme_problem(seed)
    found = solve(problem, tol=1e-4)
    reached = exact_objective(problem, found.table.ravel())
    assert reached <= problem.best_constant() * (1.0 + 1e-12)
    if found.status == "converged":
        assert found.gap <= 1e-4 * found.scale
    assert reached - found.gap <= lowest(problem, found.table.ravel()) + 1e-10 * found.scale  # rounding


@pytest.mark.compiled
def test_most_extreme_problems_are_certified() -> None:
    status = [solve(extreme_problem(seed), tol=1e-4).status for seed in range(60)]
    assert status.count("converged") >= 55, status


@pytest.mark.parametrize("bias", [False, True, "free"])
def test_an_l1_term_that_leaves_no_coefficient(bias: Any) -> None:
    generator = np.random.default_rng(0)
    X, y = 1e3 + generator.normal(size=(30, 4)), generator.integers(0, 3, 30)
    problem = Softmax(X, y, l2=0.0, l1=1e6, bias=bias)
    table = problem.coefficients(problem.minimize())
    assert not table[:, :4].any() and problem.objective(table.ravel()) <= 30 * np.log(3) * (1 + 1e-12)  # rounding


def test_the_gap_includes_the_rounding_of_large_products() -> None:
    """Parts of 1e9 cancel in each output, which is then rounded to some 1e-7: no objective is known to 1e-12."""
    generator = np.random.default_rng(21)
    X = generator.normal(size=(300, 6))
    X[:, 5] = X[:, 4] + 1e-9 * generator.normal(size=300)
    y = X[:, 0] + 1e9 * (X[:, 5] - X[:, 4]) + generator.logistic(size=300) > 0.0
    problem = Logistic(X, y, l2=1e-18)
    found = solve(problem, tol=1e-12)
    assert np.abs(found.table).max() > 1e8 and found.status == "stalled" and found.gap > 1e-11 * found.scale
    assert solve(problem, tol=0.0).gap > 1e-11 * found.scale
    x, longer = found.table.ravel(), np.longdouble
    margins = np.where(y, 1, -1) * (X.astype(longer) @ x.astype(longer))
    exact = float(np.logaddexp(0, -margins).sum() + 0.5e-18 * np.sum(x.astype(longer) ** 2))
    assert abs(problem.objective(x) - exact) <= problem.gap(x)
    assert solve(problem, tol=1e-6).status == "converged"


@pytest.mark.parametrize("seed", range(8))
def test_a_penalty_that_rounding_hides_bounds_nothing(seed: int) -> None:
    """Sums of 300 numbers of 1e18 are multiples of a hundred: half of the square, the bound by l2 = 1, is 5,000.

    The bound is then that of a coefficient without a penalty, and the minimum that of the column in other units.
    """
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(300, 4))
    y = X[:, 0] + 2.0 * X[:, 1] + generator.logistic(size=300) > 0.0
    for bias in ("free", False):
        steep = solve(Logistic(X * [1.0, 1e18, 1.0, 1.0], y, l2=1.0, bias=bias), tol=1e-9)
        l2 = [1.0, 1e-36, 1.0, 1.0]
        plain = solve(Logistic(X, y, l2=l2, bias=bias), tol=1e-13)
        assert steep.status == "converged" and steep.objective - plain.objective <= 1e-9 * plain.scale
        assert 1e18 * steep.table[0, 1] == pytest.approx(plain.table[0, 1], rel=1e-4)


def test_timestamps_are_columns_like_others() -> None:
    """Nanoseconds since 1970: 1.7e18, which vary by 1e17. Rounding is then no reason for a warning."""
    generator = np.random.default_rng(1)
    late, X = generator.random(500), generator.normal(size=(500, 2))
    y = 4.0 * late - 2.0 + X[:, 0] + generator.logistic(size=500) > 0.0
    found = solve(Logistic(np.column_stack([1.7e18 + 1e17 * late, X]), y, l2=1.0, bias="free"), tol=1e-9)
    plain = solve(Logistic(np.column_stack([late, X]), y, l2=[1e-34, 1.0, 1.0], bias="free"), tol=1e-13)
    assert found.status == "converged" and found.objective == pytest.approx(plain.objective, rel=1e-9)
    # Without curvature rounding could hide a minimum far away: l2 is then all that bounds it.
    flat = Logistic(np.column_stack([1e18 * late, X]), y, l2=1.0)
    point = flat.terms_at(np.full((500, 1), 800.0))
    errors = Design.of(flat).rounding_of_sums(point.slopes)
    assert gap_by_rounding(flat, np.zeros((1, 3)), point, np.eye(3)[:1] * errors) == pytest.approx(0.5 * errors[0] ** 2)


def test_a_residual_that_underflows_ends_a_step() -> None:
    generator = np.random.default_rng(22)
    X, y = 1e6 * generator.normal(size=(20, 5)), 1e-150 * generator.normal(size=20)
    problem = LeastSquares(X, y, l2=1e-12)
    assert np.isfinite(problem.gap(np.zeros(5))) and solve(problem, tol=1e-9).gap <= 1e-300


@pytest.mark.parametrize("kind", [Logistic, SmoothedHinge, Softmax])
def test_an_objective_below_the_goal_is_its_own_certificate(kind: type[Linear]) -> None:
    """Classes that columns separate, and a weak penalty: no loss is below 0, so that the minimum is not either."""
    generator = np.random.default_rng(30)
    X = generator.normal(size=(600, 400))
    y = (X[:, 0] > 0.0).astype(int) + (X[:, 1] > 0.0) * (kind is Softmax)
    problem = kind(X, y, l2=1e-4)
    found = solve(problem, tol=1e-2)
    assert found.status == "converged" and found.gap <= found.objective * (1.0 + 1e-6) <= 1e-2 * found.scale
    assert found.objective - solve(problem, tol=1e-10).objective <= found.gap


def test_losses_of_ones_own_may_be_negative() -> None:
    assert not Linear.is_positive and all(kind.is_positive for kind in LOSSES)
