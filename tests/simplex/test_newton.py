import itertools

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize

from avare.simplex.newton import newton_step

compiled = not numba.config.DISABLE_JIT
Vector = NDArray[np.float64]
Problem = tuple[Vector, Vector, Vector, Vector]  # point, slope, metric, floors


def some_problem(n: int, generator: np.random.Generator) -> Problem:
    """A point with some coordinates at their floors, and a metric of condition up to 1e5."""
    floors = generator.random(n) * 0.3 / n * (generator.random(n) < 0.5)
    mass = generator.dirichlet(np.full(n, 0.4)) * (generator.random(n) < 0.7)
    mass[generator.integers(n)] += 1e-3
    point = floors + mass / mass.sum() * (1.0 - floors.sum())
    metric = 0.1 * np.eye(n)
    for _ in range(generator.integers(0, 30)):
        gradient = generator.random(n)
        metric += generator.choice([0.01, 1.0, 100.0]) * np.outer(gradient, gradient)
    return point, -generator.random(n) * generator.choice([0.01, 0.1, 10.0]), metric, floors


def by_enumeration(point: Vector, slope: Vector, metric: Vector, floors: Vector) -> Vector:
    """The best of the minima for all sets of coordinates that are fixed at their floors."""
    n = len(point)
    best, found = np.inf, point
    for held in itertools.product([False, True], repeat=n):
        h = np.array(held)
        f, d = ~h, np.where(h, floors - point, 0.0)
        size = f.sum()
        if size == 0:
            continue
        system = np.block([[metric[np.ix_(f, f)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
        d[f] = np.linalg.solve(system, np.append(-slope[f] - metric[np.ix_(f, h)] @ d[h], -d[h].sum()))[:-1]
        value = float(slope @ d + d @ metric @ d / 2)
        if (point + d >= floors - 1e-13).all() and value < best:
            best, found = value, point + d
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_exact(n: int) -> None:
    generator = np.random.default_rng(n)
    bound = 0
    for _ in range(200 if compiled else 30):
        problem = some_problem(n, generator)
        x = newton_step(*problem)
        # Systems of condition 1e5, solved up to 2^-53: 1e-11, and a bit more for the reference.
        assert np.allclose(x, by_enumeration(*problem), rtol=0.0, atol=1e-10)
        assert (x >= problem[3]).all() and abs(x.sum() - 1.0) < 1e-15
        bound += int((x == problem[3]).sum())
    assert bound > 0 or n == 1


@pytest.mark.parametrize("n", [3, 10, 21, 60])
def test_no_direction_leads_down(n: int) -> None:
    generator = np.random.default_rng(n)
    for _ in range(100 if compiled else 3):
        point, slope, metric, floors = some_problem(n, generator)
        x = newton_step(point, slope, metric, floors)
        slopes = slope + metric @ (x - point)
        level = slopes[x > floors].mean()
        # The metric is at least 0.1, so x is within ten times this of the only minimum.
        tolerance = 1e-11 * np.abs(metric).max()
        assert np.abs(slopes - level)[x > floors].max() < tolerance
        assert (slopes > level - tolerance).all()
        assert (x >= floors).all() and abs(x.sum() - 1.0) < 1e-14


def test_agrees_with_scipy() -> None:
    generator = np.random.default_rng(0)
    for n in (3, 8, 21):
        point, slope, metric, floors = some_problem(n, generator)
        x = newton_step(point, slope, metric, floors)

        def value(z: Vector, problem: Problem = (point, slope, metric, floors)) -> float:
            d = z - problem[0]
            return float(problem[1] @ d + d @ problem[2] @ d / 2)

        found = optimize.minimize(
            value,
            np.full(n, 1.0 / n),
            bounds=[(floor, 1.0) for floor in floors],
            constraints={"type": "eq", "fun": lambda z: z.sum() - 1.0},
            options={"ftol": 1e-14, "maxiter": 1000},
            method="SLSQP",
        )
        assert np.allclose(x, found.x, rtol=0.0, atol=1e-4)  # SLSQP's finite differences are not more exact
        assert value(x) <= found.fun + 1e-9


def test_is_the_projection_of_the_full_step() -> None:
    # In the norm of the metric: no point of the simplex is nearer to point - metric^-1 slope.
    generator = np.random.default_rng(1)
    point, slope, metric, floors = some_problem(4, generator)
    target = point - np.linalg.solve(metric, slope)
    nearest = newton_step(point, slope, metric, floors) - target
    for other in floors + (1.0 - floors.sum()) * generator.dirichlet(np.full(4, 0.5), 5000):
        away = other - target
        assert nearest @ metric @ nearest <= away @ metric @ away + 1e-12


def test_a_free_step_is_newtons() -> None:
    metric = np.array([[2.0, 0.5], [0.5, 1.0]])
    # On (d, -d): the slope is 0.3, the curvature 2 - 2 * 0.5 + 1 = 2.
    x = newton_step(np.array([0.5, 0.5]), np.array([0.1, -0.2]), metric, np.zeros(2))
    assert np.allclose(x, [0.5 - 0.15, 0.5 + 0.15], rtol=1e-15)


def test_stays_if_it_cannot_move() -> None:
    assert newton_step(np.array([1.0]), np.array([-3.0]), np.eye(1), np.array([0.01])).tolist() == [1.0]
    floors = np.array([0.25, 0.75])  # a simplex of one point
    assert newton_step(floors, np.array([-1.0, 2.0]), np.eye(2), floors).tolist() == [0.25, 0.75]
    point = np.array([0.2, 0.3, 0.5])
    assert np.allclose(newton_step(point, np.full(3, -7.0), np.eye(3), np.zeros(3)), point, rtol=0.0, atol=1e-15)
    assert point.tolist() == [0.2, 0.3, 0.5]  # the arguments are not changed


def test_errors_of_many_steps_do_not_add_up() -> None:
    generator = np.random.default_rng(2)
    n = 5
    floors = np.array([0.0, 0.0, 0.0, 0.0, 0.01])
    x, metric = np.full(n, 0.2), 0.1 * np.eye(n)
    for _ in range(20_000 if compiled else 300):
        gradient = -generator.random(n) / n
        metric += np.outer(gradient, gradient)
        x = newton_step(x, gradient / 10.0, metric, floors)
        assert (x >= floors).all() and abs(x.sum() - 1.0) < 1e-15
