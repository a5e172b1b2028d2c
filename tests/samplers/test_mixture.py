import copy
import itertools
import math
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.samplers.rivals.mixture import Mixture
from laws import FALSE_ALARM, chi_square, draws_of

compiled = not numba.config.DISABLE_JIT
Vector = NDArray[np.float64]

COMPONENTS = [[0.0, 1.0, 2.0, 4.0, 0.5], [6.0, 1.0, 0.0, 0.0, 1.0]]


class Plain:
    """The rule in plain Python; the projection tries all sets of shares that are at their floors."""

    def __init__(self, components: Vector, beta: float, uniform: float) -> None:
        n = components.shape[1]
        self.P = np.vstack([components / components.sum(axis=1, keepdims=True), np.full(n, 1.0 / n)])
        last = max(uniform, 1.0 / len(self.P))
        self.v = np.append(np.full(len(components), (1.0 - last) / len(components)), last)
        self.floors = np.append(np.zeros(len(components)), uniform)
        self.A, self.beta, self.scale = 0.1 * np.eye(len(self.P)), beta, 0.0
        self.drawn_with = np.zeros(n)

    def update(self, indices: NDArray[np.int64], norms: Vector) -> None:
        p = np.where(self.drawn_with > 0.0, self.drawn_with, self.v @ self.P)[indices]
        r = -(self.P[:, indices] * (norms**2 / p**3)).sum(axis=1)
        self.scale = max(self.scale, float(np.linalg.norm(r)))
        if self.scale > 0.0:
            r /= self.scale
            self.A += np.outer(r, r)
            self.v = self.projected(self.v - np.linalg.solve(self.A, r) / self.beta)

    def projected(self, y: Vector) -> Vector:
        best, found = np.inf, y
        for held in itertools.product([False, True], repeat=len(y)):
            h = np.array(held)
            f, d = ~h, np.where(h, self.floors - y, 0.0)
            if f.any():  # min d A d with sum d = 1 - sum y
                k = int(f.sum())
                system = np.block([[self.A[np.ix_(f, f)], np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
                rest = 1.0 - y.sum() - d.sum()
                d[f] = np.linalg.solve(system, np.append(-self.A[np.ix_(f, h)] @ d[h], rest))[:-1]
                distance = float(d @ self.A @ d)
                if (y + d >= self.floors - 1e-12).all() and distance < best:
                    best, found = distance, y + d
        return found


@pytest.mark.parametrize(("n", "m", "k"), [(1, 3, 1), (5, 1, 2), (7, 4, 1), (50, 10, 3)])
@pytest.mark.parametrize(("beta", "uniform"), [(10.0, 0.01), (3.0, 0.2)])
def test_is_the_plain_rule(n: int, m: int, k: int, beta: float, uniform: float) -> None:
    generator = np.random.default_rng(n)
    components = generator.lognormal(0.0, 1.5, (k, n)) * (generator.random((k, n)) < 0.7)
    components[:, 0] += 0.1
    sampler = Mixture(n, m, components=components, beta=beta, uniform=uniform, seed=n)
    plain = Plain(components, beta, uniform)
    assert np.allclose(sampler.components, plain.P, rtol=1e-14, atol=0.0)
    start = plain.v
    pending: list[NDArray[np.int64]] = []
    for _ in range(draws_of(1000, 100)):
        kind = generator.random()
        if kind < 0.05:  # of any, drawn or not
            indices = generator.integers(0, n, 3)
        elif kind < 0.1 and pending:  # late
            indices = pending.pop()
        else:
            batch = sampler.sample()
            p = (plain.v @ plain.P)[batch.indices]
            assert np.allclose(batch.probabilities, p, rtol=1e-9, atol=0.0)
            assert np.allclose(batch.weights, 1.0 / (m * p), rtol=1e-9, atol=0.0)
            plain.drawn_with[batch.indices] = p
            indices = batch.indices[: m - 1] if kind > 0.95 else batch.indices  # in part
            if kind > 0.85:
                pending.append(batch.indices)
        norms = np.where(indices % 3 == 0, 5.0, 0.5) * generator.lognormal(0.0, 0.3, len(indices))
        norms[generator.random(len(indices)) < 0.1] = 0.0
        sampler.update(indices, norms)
        plain.update(indices, norms)
        # A thousand roundings, and systems of condition 1e4.
        assert np.allclose(sampler.mixture, plain.v, rtol=0.0, atol=1e-10)
        assert np.allclose(sampler.probabilities(), plain.v @ plain.P, rtol=1e-9, atol=0.0)
        assert (sampler.mixture >= plain.floors).all()
    assert n == 1 or np.abs(plain.v - start).max() > 0.1


def law_of(sampler: Mixture) -> dict[tuple[int, ...], float]:
    """The law of a batch: a component, and then each draw from it."""
    return {
        sample: sum(
            v * math.prod(row[list(sample)]) for v, row in zip(sampler.mixture, sampler.components, strict=True)
        )
        for sample in itertools.product(range(sampler.n), repeat=sampler.batch_size)
    }


def trained(steps: int, **arguments: Any) -> Mixture:
    sampler = Mixture(5, 3, components=COMPONENTS, seed=1, **arguments)
    for _ in range(steps):
        batch = sampler.sample()
        sampler.update(batch.indices, 1.0 + batch.indices)
    return sampler


@pytest.mark.parametrize("steps", [0, 1, 30])
def test_unbiased_over_the_choice_of_the_component(steps: int) -> None:
    sampler = trained(steps)
    g = np.random.default_rng(0).normal(size=(5, 2))
    p, mean, marginal, total = sampler.probabilities(), np.zeros(2), np.zeros(5), 0.0
    for sample, chance in law_of(sampler).items():
        indices = list(sample)
        mean += chance * (avare.batch_weights(p[indices], replacement=True) @ g[indices])
        marginal[indices[1]] += chance
        total += chance
    assert total == pytest.approx(1.0, rel=1e-12)
    assert np.allclose(mean, g.sum(axis=0), rtol=1e-10)
    assert np.allclose(marginal, p, rtol=1e-12)  # of a single draw


def test_a_batch_comes_from_one_component() -> None:
    sampler = trained(20, uniform=0.3)
    sampler.reseed(2)
    draws = [tuple(sampler.sample().indices.tolist()) for _ in range(draws_of(40_000))]
    law = law_of(sampler)
    assert chi_square(draws, law) > FALSE_ALARM
    independent = {sample: math.prod(sampler.probabilities()[list(sample)]) for sample in law}
    assert chi_square(draws, independent) < FALSE_ALARM  # the draws of a batch depend on each other


def test_moves_to_the_better_component() -> None:
    n, steps = 300, (3000 if compiled else 300)
    generator = np.random.default_rng(3)
    norms = generator.lognormal(0.0, 1.2, n)
    poor, good = generator.lognormal(0.0, 1.2, n), norms * generator.lognormal(0.0, 0.3, n)
    sampler = Mixture(n, 16, components=[poor, good], seed=3)
    costs = []
    for _ in range(steps):
        costs.append(float(avare.diagnostics.cost(norms, sampler.probabilities())))
        batch = sampler.sample()
        sampler.update(batch.indices, norms[batch.indices])
    assert sampler.mixture[1] > 0.8
    P = sampler.components
    best = min(
        float(avare.diagnostics.cost(norms, np.array([(1.0 - a) * b, (1.0 - a) * (1.0 - b), a]) @ P))
        for a in np.linspace(0.01, 1.0, 34)
        for b in np.linspace(0.0, 1.0, 21)
    )
    assert 0.99 * best < costs[-1] < 1.05 * best < costs[0]  # the best is of a grid
    assert np.mean(costs) < 1.1 * best  # so that the regret falls
    assert sampler.gain > 2.0


def test_keeps_what_the_best_mixture_needs() -> None:
    # Two halves, each with a component: the best shares are as the roots of the sums of squares, 50 to 2.24.
    norms = np.array([1.0, 2.0, 30.0, 40.0])
    sampler = Mixture(4, 16, components=[[0, 0, 1, 1], [1, 1, 0, 0]], seed=4)
    for _ in range(5000 if compiled else 300):
        batch = sampler.sample()
        sampler.update(batch.indices, norms[batch.indices])
    half = sampler.probabilities()[:2].sum()
    assert half == pytest.approx(5**0.5 / (50 + 5**0.5), rel=0.1 if compiled else 0.5)


def test_gradients_are_never_longer_than_one() -> None:
    sampler = trained(0)
    before = np.trace(sampler._metric)
    for step in range(100):
        batch = sampler.sample()
        sampler.update(batch.indices, np.full(3, 1.1**step))  # each time larger than before
        after = np.trace(sampler._metric)
        assert 0.0 < after - before <= 1.0 + 1e-12
        before = after


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.compiled
def test_norms_of_any_size(n: int) -> None:
    for values in (np.zeros(4), np.array([1e30, 1.0, 0.0, 1.0]), np.full(4, 1e300), np.full(4, 1e-310)):
        sampler = Mixture(n, 4, components=[np.arange(1.0, n + 1.0)], seed=5)
        for _ in range(30):
            batch = sampler.sample()
            assert np.isfinite(batch.weights).all()
            sampler.update(batch.indices, values)
        p = sampler.probabilities()
        assert p.sum() == pytest.approx(1.0, rel=1e-12) and (p > 0.0).all()
        assert values.any() or sampler.mixture.tolist() == [0.5, 0.5]  # if there is nothing to learn


def test_components_are_normalised() -> None:
    tiny, huge = [5e-324, 0.0, 1.5e-323], [1e308, 1e308, 0.0]
    sampler = Mixture(3, 2, components=[tiny, huge, [0.0, 0.0, 7.0]])
    expected = [[0.25, 0.0, 0.75], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1 / 3] * 3]
    assert np.allclose(sampler.components, expected, rtol=1e-15)
    assert sampler.mixture.tolist() == [0.25] * 4
    crowd = Mixture(3, 2, components=np.ones((4, 3)), uniform=0.9)
    assert np.allclose(crowd.mixture, [0.025] * 4 + [0.9], rtol=1e-15)
    assert Mixture(3, 2, components=np.ones((4, 3)), uniform=1.0).mixture.tolist() == [0, 0, 0, 0, 1]


def test_arguments_and_results_are_copies() -> None:
    rows = np.array(COMPONENTS)
    sampler = Mixture(5, 3, components=rows, seed=6)
    before = sampler.probabilities()
    rows[:] = 1.0
    sampler.mixture[:] = 0.0
    sampler.components[:] = 0.0
    assert np.array_equal(sampler.probabilities(), before)


def test_resumes_with_exactly_the_same_draws() -> None:
    def run(sampler: Mixture, steps: int) -> list[list[int]]:
        drawn = []
        for _ in range(steps):
            batch = sampler.sample()
            drawn.append(batch.indices.tolist())
            sampler.update(batch.indices, 1.0 + batch.indices)
        return drawn

    sampler, twin = trained(20), Mixture(5, 3, components=COMPONENTS, seed=9)
    pending = sampler.sample()
    state = sampler.state_dict()
    kept = copy.deepcopy(state)
    twin.load_state_dict(state)
    for each in (sampler, twin):
        each.update(pending.indices, [3.0, 4.0, 5.0])
    assert run(sampler, 30) == run(twin, 30)
    assert np.array_equal(sampler.mixture, twin.mixture)
    assert all(np.array_equal(state[key], kept[key]) for key in kept)  # continuing has not changed it


def test_a_state_saved_with_different_arguments_is_refused() -> None:
    state = trained(5).state_dict()
    others: dict[str, Mixture] = {
        "components_checksum": Mixture(5, 3, components=[*COMPONENTS[:1], [6.0, 1.0, 0.0, 0.0, 2.0]]),
        "beta": Mixture(5, 3, components=COMPONENTS, beta=5.0),
        "uniform": Mixture(5, 3, components=COMPONENTS, uniform=0.02),
    }
    for key, other in others.items():
        with pytest.raises(ValueError, match=rf"state\['{key}'\] = .*: this sampler has"):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"components": [1.0] * 5}, ValueError, r"components has shape \(5,\): must have 2 dimensions"),
        ({"components": np.ones((0, 5))}, ValueError, r"components has shape \(0, 5\): must have at least one row"),
        ({"components": np.ones((2, 4))}, ValueError, r"components\[0\] has length 4: must match n, which has 5"),
        ({"components": [[1.0] * 5, [0.0] * 5]}, ValueError, r"components\[1\] is all zero"),
        ({"components": [[1, 1, 1, 1, 1], [1, 1, 1, -2, 1]]}, ValueError, r"components\[1, 3\] = -2.0"),
        ({"components": [[1, 1, math.inf, 1, 1]]}, ValueError, r"components\[0, 2\] = inf"),
        ({"components": [["a"] * 5]}, TypeError, "components has dtype"),
        ({"components": [[1.0], [1.0, 2.0]]}, ValueError, "components is not an array"),
        ({"beta": 0.0}, ValueError, "beta = 0.0: must be at least 1e-09"),
        ({"uniform": 0.0}, ValueError, "uniform = 0.0: must be at least 1e-100"),
        ({"uniform": 1.5}, ValueError, "uniform = 1.5: must be at most 1"),
        ({"replacement": False}, ValueError, "replacement = False: Mixture draws with replacement only"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mixture(5, 3, **{"components": COMPONENTS, **arguments})
