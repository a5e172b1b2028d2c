"""First-order steps: what they remember, where they end, and when they are made."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from avare.linear import newton
from avare.linear.lbfgs import LbfgsDirection, approach_by_lbfgs
from avare.linear.line_search import line_search
from avare.linear.losses import clip, fenchel_young
from avare.linear.objective import Objective, Point
from avare.linear.preconditioners import Jacobi
from avare.linear.solver import solve
from avare.problems import Huber, Linear, Logistic, SmoothedHinge, Softmax

KINDS = [Logistic, SmoothedHinge, Huber, Softmax]
every_kind = pytest.mark.parametrize("kind", KINDS)


def heavy_problem(kind: type[Linear], **options: Any) -> Linear:
    """Rows of very different lengths: the second derivatives change much along a step."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 20)) * (1.0 + generator.pareto(1.5, (300, 1)))
    y = np.argmax(X[:, :3] + generator.gumbel(size=(300, 3)), axis=1)
    return kind(X, y if kind is Softmax else (y > 0).astype(float), **{"l2": 0.01, "bias": "free", **options})


def first_point(problem: Linear) -> tuple[Objective, Point]:
    total = Objective(problem)
    table = np.zeros((problem.outputs, problem.width))
    return total, total.at(table, total.rows.outputs(table))


class Unit:
    """The identity, as a solver."""

    exact = False

    def solve(self, right: Any) -> Any:
        return right.copy()


def system_of(expected: float, preconditioner: Any = None) -> Any:
    """A system of Newton's method that takes so many nanoseconds."""
    ladder = SimpleNamespace(current=preconditioner, replace_first=mock.Mock())
    return SimpleNamespace(expected=expected, ladder=ladder)


@pytest.mark.parametrize("count", [1, 4, 25])  # fewer pairs than are remembered, and more
def test_the_memory_is_right_about_the_last_step(count: int) -> None:
    generator = np.random.default_rng(1)
    root = generator.normal(size=(6, 6))
    hessian, memory = root @ root.T + np.eye(6), LbfgsDirection(Unit(), (2, 3))
    for _ in range(count):
        step = generator.normal(size=(2, 3))
        change = (hessian @ step.ravel()).reshape(2, 3)
        memory.add(step, change)
    assert np.allclose(memory.solve(change), step)
    inverse = np.array([memory.solve(each.reshape(2, 3)).ravel() for each in np.eye(6)])
    assert np.allclose(inverse, inverse.T) and np.linalg.eigvalsh(inverse).min() > 0.0


def test_the_memory_forgets_steps_without_curvature() -> None:
    memory = LbfgsDirection(Unit(), (1, 2))
    memory.add(np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]]))
    assert memory.solve(np.array([[3.0, 4.0]])).tolist() == [[3.0, 4.0]]


@every_kind
@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3])
def test_a_search_ends_where_the_objective_is_lower_and_flatter(kind: type[Linear], length: float) -> None:
    total, point = first_point(heavy_problem(kind))
    direction = -length * total.gradient(point)
    decrease = -float(np.vdot(total.gradient(point), direction))
    found = line_search(total, point, direction, total.rows.outputs(direction), decrease)
    assert found is not None and found.objective < point.objective
    assert abs(float(np.vdot(total.gradient(found), direction))) <= 0.51 * decrease  # half, and rounding


def test_a_search_ends_at_a_slope_that_jumps() -> None:
    # Of the long rows, the slope jumps from -1 to 1 at 0: Newton's method goes from one side to the other.
    X, weights = np.array([[1e4], [1e4], [3.1], [3.1]]), np.array([1e-4, 1e-4, 0.85, 0.85])
    problem = Logistic(X, [0, 1, 0, 1], l2=0.95, sample_weight=weights)
    total, start, direction = Objective(problem), np.array([[-0.49]]), np.array([[1.0]])
    point = total.at(start, total.rows.outputs(start))
    decrease = -float(np.vdot(total.gradient(point), direction))
    with mock.patch.object(total, "at", wraps=total.at) as evaluated:
        found = line_search(total, point, direction, total.rows.outputs(direction), decrease)
    assert found is not None and found.objective < point.objective and evaluated.call_count <= 5


@pytest.mark.parametrize("effort", [1.0, 30.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_a_search_with_an_l1_term_is_as_fine_as_steps_are_expensive(effort: float, scale: float) -> None:
    problem = heavy_problem(Logistic, l2=0.0, l1=2.0)
    total = Objective(problem)
    generator = np.random.default_rng(3)
    table = generator.normal(size=(1, 21)) * (generator.random((1, 21)) < 0.7)
    table[0, :-1] *= 0.01
    point = total.at(table, total.rows.outputs(table))
    gradient = total.gradient(point) + total.l1 * np.sign(table)
    direction = -scale * gradient / (total.diagonal(point) + 1.0)
    outputs = total.rows.outputs(direction)
    decrease = -float(np.vdot(gradient, direction))
    further = line_search(total, point, direction, outputs, decrease, effort)
    lengths = np.linspace(0.0, 8.0 / scale, 4001)
    on_line = [total.at(table + each * direction, point.outputs + each * outputs).objective for each in lengths]
    assert 0 < np.argmin(on_line) < 4000, "the lowest point lies inside"
    assert further is not None
    left = (further.objective - min(on_line)) / (point.objective - min(on_line))
    assert left <= (0.5 if effort == 1.0 else 0.01)


def test_a_search_finds_nothing_lower_where_there_is_nothing() -> None:
    total, point = first_point(heavy_problem(Logistic))
    upwards = total.gradient(point)
    assert line_search(total, point, upwards, total.rows.outputs(upwards), 1.0) is None


@every_kind
def test_first_order_steps_end_near_the_minimum(kind: type[Linear]) -> None:
    problem = heavy_problem(kind, **({"gamma": 2.0} if kind is SmoothedHinge else {}))  # its losses are curved at 0
    total, point = first_point(problem)
    least, goal = problem.objective(problem.minimize(tolerance=1e-6)), 1e-5 * point.objective
    system = system_of(1e15)  # Newton's method would take days
    reached = approach_by_lbfgs(total, system, point, goal)
    assert reached.objective - least <= 30.0 * goal  # the estimate of what is left is rough
    assert isinstance(system.ladder.replace_first.call_args[0][0], LbfgsDirection)


def test_no_first_order_steps_if_newtons_method_is_cheap() -> None:
    total, point = first_point(heavy_problem(Logistic))
    assert approach_by_lbfgs(total, system_of(1.0), point, 1e-5) is point
    assert approach_by_lbfgs(total, system_of(1.0, Jacobi(total, point)), point, 1e-5) is not point


@every_kind
def test_a_goal_of_zero_ends_where_rounding_does(kind: type[Linear]) -> None:
    problem = heavy_problem(kind, l2=1.0)
    total, point = first_point(problem)
    system = system_of(1e15, Jacobi(total, first_point(heavy_problem(kind))[1]))
    assert approach_by_lbfgs(total, system, point, 0.0).objective <= point.objective
    found = solve(problem, tol=0.0)
    assert found.gap <= 1e-10 * found.scale  # rounding of sums of 300 losses of long rows


@every_kind
@pytest.mark.parametrize("weighted", [False, True])
def test_dual_variables_are_clipped_to_the_domains_of_conjugates(kind: type[Linear], weighted: bool) -> None:
    generator = np.random.default_rng(2)
    weights = generator.lognormal(size=300) * (generator.random(300) < 0.9) if weighted else None
    problem = heavy_problem(kind, sample_weight=weights)
    outputs = generator.normal(size=(300, problem.outputs))
    terms = problem.terms_at(outputs)
    assert np.allclose(clip(problem, terms.slopes), terms.slopes, rtol=1e-12, atol=1e-12)
    if weights is not None:
        terms.slopes[weights == 0.0] = 0.0
    far = terms.slopes * generator.uniform(-3.0, 3.0, size=(300, 1))
    assert fenchel_young(problem, outputs, terms, far) == np.inf
    assert 0.0 <= fenchel_young(problem, outputs, terms, clip(problem, far)) < np.inf


@every_kind
def test_clipped_dual_variables_give_a_bound(kind: type[Linear]) -> None:
    problem = heavy_problem(kind, l2=1e-4)
    least = problem.objective(problem.minimize(tolerance=1e-7))
    found = solve(problem, tol=1e-3, strategies=[newton])
    assert found.status == "converged" and found.gap <= 1e-3 * found.scale
    assert found.objective - least <= found.gap + 1e-12 * found.scale  # rounding
