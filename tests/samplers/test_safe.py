import copy
import itertools
import math
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize

import avare
from avare.samplers.rivals.safe import Safe
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

compiled = not numba.config.DISABLE_JIT
both_ways = pytest.mark.parametrize("replacement", [True, False])
Vector = NDArray[np.float64]


class Plain:
    """The rule in plain Python: all bounds change at each move, and tau is found by bisection."""

    def __init__(self, smoothness: Vector, bound: float | None) -> None:
        n = len(smoothness)
        self.L, self.largest = smoothness, bound or 0.0
        self.lower, self.upper, self.visited = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)

    def move(self, distance: float) -> None:
        self.lower = np.maximum(self.lower - self.L * distance, 0.0)
        self.upper = self.upper + self.L * distance

    def update(self, indices: NDArray[np.int64], norms: Vector) -> None:
        self.lower[indices] = self.upper[indices] = norms
        self.visited[indices] = True
        self.largest = max(self.largest, norms.max(initial=0.0))

    def probabilities(self) -> Vector:
        n = len(self.L)
        lower, upper = self.lower * self.visited, np.where(self.visited, self.upper, self.largest)
        if self.largest == 0.0 or not upper.any():
            return np.full(n, 1.0 / n)
        low, high = 0.0, upper.max()
        for _ in range(200):
            tau = (low + high) / 2
            c = np.clip(tau, lower, upper)
            low, high = (tau, high) if (c * c).sum() > tau * c.sum() else (low, tau)
        return np.asarray((1.0 - 1e-12) * c / c.sum() + 1e-12 / n)


@both_ways
@pytest.mark.parametrize("bound", [None, 3.0])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 1), (7, 4), (51, 10)])
def test_is_the_plain_rule(n: int, m: int, bound: float | None, replacement: bool) -> None:
    generator = np.random.default_rng(n)
    smoothness = generator.lognormal(0.0, 1.0, n) * (generator.random(n) < 0.8)
    sampler = Safe(n, m, smoothness=smoothness, bound=bound, replacement=replacement, seed=n)
    plain = Plain(smoothness, bound)
    pending: list[NDArray[np.int64]] = []
    for step in range(draws_of(400, 100)):
        p = plain.probabilities()
        # Hundreds of additions to the plain bounds, and differences of paths: 1e-13, and near zero a bit more.
        assert np.allclose(sampler.probabilities(), p, rtol=1e-9, atol=0.0)
        batch = sampler.sample()
        assert np.allclose(batch.probabilities, p[batch.indices], rtol=1e-9, atol=0.0)
        kind = generator.random()
        indices = batch.indices
        if kind < 0.1:  # of any, drawn or not
            indices = generator.integers(0, n, 3)
        elif kind < 0.2 and pending:  # late
            indices = pending.pop()
        elif kind > 0.9:  # in part, or not at all
            pending.append(indices)
            indices = indices[: m // 2]
        norms = np.where(indices % 3 == 0, 5.0, 0.5) * generator.lognormal(0.0, 0.3, len(indices))
        norms[generator.random(len(indices)) < 0.1] = 0.0
        sampler.update(indices, norms)
        last = dict(zip(indices.tolist(), norms.tolist(), strict=True))  # the last norm of a repeated index counts
        plain.update(np.array(list(last), dtype=np.int64), np.array(list(last.values())))
        for _ in range(generator.integers(0, 3)):
            distance = generator.exponential(0.3 / (1.0 + 0.1 * step))
            sampler.move(distance)
            plain.move(distance)


def some_intervals(n: int, seed: int) -> Safe:
    """A sampler whose norms have intervals of very different widths; some are points."""
    generator = np.random.default_rng([n, seed])
    smoothness = generator.lognormal(0.0, 1.0, n) * (generator.random(n) < 0.7)
    sampler = Safe(n, 1, smoothness=smoothness, replacement=True)
    sampler.update(range(n), generator.lognormal(0.0, 1.0, n))
    sampler.move(generator.choice([0.05, 0.5, 2.0]))
    return sampler


def corners(sampler: Safe) -> Vector:
    """The possible norms at the ends of their intervals: one row per combination."""
    lower, upper = sampler.bounds()
    found = np.array(list(itertools.product(*zip(lower, upper, strict=True))))
    return found[found.any(axis=1)]


def against_uniform(norms: Vector, p: Vector) -> Vector:
    """The second moment over uniform's: a mean of 1 / (N p) weighted by n^2, so that its largest is at a corner."""
    ratio: Vector = (norms**2 / p).sum(axis=1) / (norms.shape[1] * (norms**2).sum(axis=1))
    return ratio


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_never_worse_than_uniform(n: int) -> None:
    best = 1.0
    for seed in range(50 if compiled else 10):
        sampler = some_intervals(n, seed)
        p, norms, even = sampler.probabilities(), corners(sampler), np.full(n, 1.0 / n)
        lower, upper = sampler.bounds()
        within = np.random.default_rng(seed).uniform(lower, upper, (200, n))
        assert against_uniform(norms, p).max() <= 1.0 + 1e-12
        assert against_uniform(within, p).max() <= 1.0 + 1e-12
        # So neither is its largest second moment over the least there could be, (sum n)^2.
        sums = norms.sum(axis=1) ** 2
        assert ((norms**2 / p).sum(axis=1) / sums).max() <= ((norms**2 / even).sum(axis=1) / sums).max() + 1e-12
        best = min(best, float(against_uniform(norms, p).max()))
    assert best < 0.9 or n == 1  # a gain was possible


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_best_for_the_worst_norms(n: int) -> None:
    for seed in range(12 if compiled else 4):
        sampler = some_intervals(n, seed)
        p, norms = sampler.probabilities(), corners(sampler)
        own = against_uniform(norms, p).max()
        shares = norms**2 / (n * (norms**2).sum(axis=1, keepdims=True))

        def excess(z: Vector, shares: Vector = shares) -> Vector:
            return np.asarray(z[-1] - shares @ (1.0 / z[:-1]))

        found = optimize.minimize(
            lambda z: z[-1],
            np.append(np.full(n, 1.0 / n), 1.0),
            jac=lambda z: np.append(np.zeros(len(z) - 1), 1.0),
            bounds=[(1e-6, 1.0)] * n + [(0.0, 2.0)],
            constraints=[{"type": "ineq", "fun": excess}, {"type": "eq", "fun": lambda z: z[:-1].sum() - 1.0}],
            options={"ftol": 1e-13, "maxiter": 500},
            method="SLSQP",
        )
        other = found.x[:-1] / found.x[:-1].sum()
        assert own <= against_uniform(norms, other).max() + 1e-8  # 1e-12 of uniform is mixed in
        assert own == pytest.approx(found.x[-1], abs=1e-5)  # the result of SLSQP
        for nearby in np.random.default_rng(seed).lognormal(0.0, 0.01, (200, n)) * p:
            assert own <= against_uniform(norms, nearby / nearby.sum()).max() + 1e-8


def test_known_norms_are_drawn_in_proportion_and_unknown_ones_evenly() -> None:
    sampler = Safe(4, 2, smoothness=[1.0, 2.0, 3.0, 4.0])
    assert sampler.probabilities().tolist() == [0.25] * 4
    assert sampler.bounds()[1].tolist() == [math.inf] * 4
    sampler.update(range(4), [1.0, 2.0, 3.0, 4.0])
    assert np.allclose(sampler.probabilities(), [0.1, 0.2, 0.3, 0.4], rtol=1e-8)
    sampler.move(1e6)  # anything is possible
    assert np.allclose(sampler.probabilities(), 0.25, rtol=1e-8)
    assert sampler.bounds()[0].tolist() == [0.0] * 4


def test_before_the_first_visit() -> None:
    known = {"smoothness": [0.0] * 3, "replacement": True}
    sampler = Safe(3, 1, **known)  # type: ignore[arg-type]  # the values are right
    sampler.update([0], [2.0])
    assert sampler.bounds()[1].tolist() == [2.0, 2.0, 2.0]  # the largest seen
    sampler.update([1], [6.0])
    assert sampler.bounds()[1].tolist() == [2.0, 6.0, 6.0]
    sampler.update([1], [1.0])
    assert sampler.bounds()[1].tolist() == [2.0, 1.0, 6.0]
    bounded = Safe(3, 1, bound=5.0, **known)  # type: ignore[arg-type]  # the values are right
    assert bounded.bounds()[1].tolist() == [5.0, 5.0, 5.0]
    bounded.update([0], [2.0])
    assert bounded.bounds()[1].tolist() == [2.0, 5.0, 5.0]
    bounded.update([0], [7.0])  # so the bound does not hold
    assert bounded.bounds()[1].tolist() == [7.0, 7.0, 7.0]


def test_examples_whose_norm_is_certainly_zero_are_hardly_drawn() -> None:
    sampler = Safe(5, 4, smoothness=[0.0, 1.0, 1.0, 1.0, 1.0], seed=0)
    sampler.update(range(5), [0.0, 0.0, 0.0, 1.0, 3.0])
    p = sampler.probabilities()
    assert np.allclose(p[:3], 1e-12 / 5, rtol=1e-12) and np.allclose(p[3:], [0.25, 0.75], rtol=1e-8)
    batch = sampler.sample()  # but a batch must be full
    assert len(set(batch.indices.tolist())) == 4 and {3, 4} <= set(batch.indices.tolist())
    sampler.move(0.5)
    p = sampler.probabilities()
    assert p[0] == pytest.approx(1e-12 / 5, rel=1e-12) and (p[1:3] > 0.1).all()  # now these may have grown


@both_ways
def test_draws_are_unbiased_and_follow_the_probabilities(replacement: bool) -> None:
    sampler = Safe(5, 3, smoothness=[0.5, 0.0, 1.0, 2.0, 0.1], replacement=replacement, seed=1)
    sampler.update([0, 1, 2, 3], [1.0, 5.0, 2.0, 0.5])
    sampler.move(0.4)
    p = sampler.probabilities()
    law = dict(ordered_samples(p, 3, replacement))
    g, mean = np.random.default_rng(0).normal(size=(5, 2)), np.zeros(2)
    for sample, chance in law.items():
        indices = list(sample)
        mean += chance * (avare.batch_weights(p[indices], replacement) @ g[indices])
    assert np.allclose(mean, g.sum(axis=0), rtol=1e-10)
    draws = []
    for _ in range(draws_of(40_000)):
        batch = sampler.sample()
        draws.append(tuple(batch.indices.tolist()))
        assert np.allclose(batch.weights, avare.batch_weights(p[batch.indices], replacement), rtol=1e-12)
    assert chi_square(draws, law) > FALSE_ALARM


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("value", [0.0, 1e-310, 1e30, 1e300, 1.7e308])
@pytest.mark.parametrize("constant", [0.0, 1.0, 1e308])
def test_norms_and_constants_of_any_size(n: int, value: float, constant: float) -> None:
    sampler = Safe(n, 1, smoothness=np.full(n, constant), seed=2)
    for _ in range(30):
        batch = sampler.sample()
        assert np.isfinite(batch.weights).all()
        sampler.update(batch.indices, np.where(batch.indices == 1, value, min(value, 1.0)))
        sampler.move(1e307)
        p = sampler.probabilities()
        assert p.sum() == pytest.approx(1.0, rel=1e-12) and (p > 0.0).all()


def test_uniform_while_all_are_zero() -> None:
    sampler = Safe(3, 2, smoothness=[1.0, 2.0, 3.0], seed=3)
    sampler.update([0, 1], [0.0, 0.0])
    sampler.move(1.0)  # the third norm is still unknown
    assert sampler.probabilities().tolist() == [1 / 3] * 3
    sampler.update([], [])
    sampler.update([0, 1, 2], [0.0, 0.0, 0.0])
    assert sampler.probabilities().tolist() == [1 / 3] * 3


def test_follows_norms_that_change_with_the_path() -> None:
    # Least squares, one row each: the gradient norm |a_i| |a_i x - b_i| changes by a_i^2 |dx| at most.
    n, m = 60, 4
    generator = np.random.default_rng(4)
    rows, targets = generator.lognormal(0.0, 1.0, n), generator.normal(size=n)
    sampler, x = Safe(n, m, smoothness=rows**2, seed=4), 3.0
    errors = []
    for step in range(2000 if compiled else 300):
        norms = np.abs(rows * (rows * x - targets))
        lower, upper = sampler.bounds()
        visited = sampler._visited_at >= 0.0
        assert (norms >= lower * (1.0 - 1e-9) - 1e-9).all()
        assert (norms[visited] <= upper[visited] * (1.0 + 1e-9) + 1e-9).all()
        p = sampler.probabilities()
        if visited.all():
            assert (norms**2 / p).sum() <= n * (norms**2).sum() * (1.0 + 1e-9)
            errors.append(float(avare.diagnostics.relative_error(norms, p)))
        batch = sampler.sample()
        gradient = batch.weights @ (rows * (rows * x - targets))[batch.indices]
        sampler.update(batch.indices, norms[batch.indices])
        change = gradient / (rows**2).sum() / (5.0 + step)
        sampler.move(abs(change))
        x -= change
    assert np.mean(errors[-20:]) < (0.1 if compiled else 0.5) < float(avare.diagnostics.gain(norms)) - 1.0


def run(sampler: Safe, steps: int) -> list[list[int]]:
    drawn = []
    for _ in range(steps):
        batch = sampler.sample()
        drawn.append(batch.indices.tolist())
        sampler.update(batch.indices, 1.0 + batch.indices % 7)
        sampler.move(0.1)
    return drawn


@both_ways
def test_resumes_with_exactly_the_same_draws(replacement: bool) -> None:
    def make(seed: int) -> Safe:
        return Safe(40, 6, smoothness=np.arange(40.0) / 40.0, bound=5.0, replacement=replacement, seed=seed)

    sampler, twin = make(5), make(6)
    run(sampler, 20)
    pending = sampler.sample()
    sampler.move(0.3)
    state = sampler.state_dict()
    kept = copy.deepcopy(state)
    twin.load_state_dict(state)
    for each in (sampler, twin):
        each.update(pending.indices, np.full(6, 3.0))
    assert run(sampler, 30) == run(twin, 30)
    assert np.array_equal(sampler.probabilities(), twin.probabilities())
    assert all(np.array_equal(state[key], kept[key]) for key in kept)  # continuing has not changed it


def test_reading_changes_nothing() -> None:
    one, two = Safe(30, 4, smoothness=np.ones(30), seed=7), Safe(30, 4, smoothness=np.ones(30), seed=7)
    for _ in range(20):
        one.probabilities()
        one.bounds()[0][:] = 7.0
        assert run(one, 1) == run(two, 1)
    constants = np.ones(30)
    sampler = Safe(30, 4, smoothness=constants, seed=7)
    constants[:] = 9.0
    run(sampler, 20)
    assert np.array_equal(sampler.probabilities(), one.probabilities())


def test_a_state_saved_with_different_arguments_is_refused() -> None:
    state = Safe(3, 2, smoothness=[1.0, 2.0, 3.0], bound=4.0).state_dict()
    with pytest.raises(ValueError, match=r"state\['smoothness_checksum'\] = .*: this sampler has"):
        Safe(3, 2, smoothness=[1.0, 2.0, 4.0], bound=4.0).load_state_dict(state)
    with pytest.raises(ValueError, match=r"state\['bound'\] = 4.0: this sampler has 0.0"):
        Safe(3, 2, smoothness=[1.0, 2.0, 3.0]).load_state_dict(state)


@pytest.mark.parametrize(
    ("distance", "error", "message"),
    [
        (-1.0, ValueError, "distance = -1.0: must be at least 0"),
        (math.nan, ValueError, "distance = nan: must be finite"),
        (math.inf, ValueError, "distance = inf: must be finite"),
        ("far", TypeError, "distance = 'far': must be a number"),
        ([1.0, 2.0], TypeError, r"distance = \[1.0, 2.0\]: must be a number"),
    ],
)
def test_refuses_bad_moves_and_does_not_change(distance: Any, error: type[Exception], message: str) -> None:
    sampler = Safe(3, 2, smoothness=[1.0, 2.0, 3.0], seed=8)
    run(sampler, 3)
    before = sampler.probabilities()
    with pytest.raises(error, match=message):
        sampler.move(distance)
    assert np.array_equal(sampler.probabilities(), before)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"smoothness": [1.0, 2.0]}, ValueError, "smoothness has length 2: must match n, which has 3"),
        ({"smoothness": [1.0, 2.0, -1.0]}, ValueError, r"smoothness\[2\] = -1.0: must be finite and not negative"),
        ({"smoothness": [1.0, math.nan, 1.0]}, ValueError, r"smoothness\[1\] = nan"),
        ({"smoothness": [[1.0, 2.0, 3.0]]}, ValueError, r"smoothness has shape \(1, 3\)"),
        ({"smoothness": "abc"}, TypeError, "smoothness has dtype"),
        ({"bound": 0.0}, ValueError, "bound = 0.0: must be above 0"),
        ({"bound": math.inf}, ValueError, "bound = inf: must be finite"),
        ({"batch_size": 4}, ValueError, "batch_size = 4: must be at most n = 3 without replacement"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Safe(3, **{"batch_size": 2, "smoothness": [1.0, 2.0, 3.0], **arguments})
