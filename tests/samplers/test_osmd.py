import math
import warnings
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.samplers import LimitWarning
from avare.samplers.rivals.osmd import Osmd
from crafted import sealed
from laws import draws_of

compiled = not numba.config.DISABLE_JIT


class Plain:
    """The rule in plain Python, in O(N)."""

    def __init__(self, n: int, m: int, horizon: int, bound: float, alpha: float) -> None:
        self.m, self.horizon, self.bound, self.alpha = m, horizon, bound, alpha
        self.p, self.v, self.drawn_with = np.full(n, 1.0 / n), np.ones(n), np.zeros(n)

    def update(
        self,
        draws: int,
        indices: NDArray[np.int64],
        norms: NDArray[np.float64],
        now: NDArray[np.float64] | None = None,
    ) -> None:
        n = len(self.p)
        while draws > self.horizon:
            self.horizon *= 2
        while len(norms) and norms.max() > self.bound:
            self.bound *= 2.0
        eta = (
            math.sqrt(2.0) * self.m**2 * self.alpha**3 / (n**3 * self.bound**2) * math.sqrt(math.log(n) / self.horizon)
        )
        drawn = np.where(self.drawn_with > 0.0, self.drawn_with, self.p if now is None else now)[indices]
        exponents = np.zeros(n)
        np.add.at(exponents, indices, eta * norms**2 / (self.m**2 * drawn**3))
        v = self.p * np.exp(exponents - exponents.max())  # p does not change with the scale of v
        self.v, self.p = v, avare.minimize_variance(v, self.alpha / n)


def projected(v: NDArray[np.float64], found: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """The projection with the floor that `Buckets` chose: it is at most 1 + 2 ** -10 times the given one."""
    return avare.minimize_variance(v, min(np.clip(found.min(), floor, floor * (1.0 + 2.0**-10)), 1.0 / len(v)))


def norms_of(indices: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Some far above the others, some zero, and sometimes one above all before."""
    norms = np.where(indices % 3 == 0, 5.0, 0.5) * generator.lognormal(0.0, 0.3, len(indices))
    norms[generator.random(len(indices)) < 0.1] = 0.0
    norms[generator.random(len(indices)) < 0.002] *= 1.7
    return norms


@pytest.mark.parametrize("alpha", [0.2, 0.4, 0.8, 1.0])
@pytest.mark.parametrize(("n", "m"), [(1, 3), (2, 1), (7, 4), (50, 10)])
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
def test_is_the_plain_rule(n: int, m: int, alpha: float) -> None:
    generator = np.random.default_rng(n)
    sampler = Osmd(n, m, horizon=20, bound=2.0, alpha=alpha, seed=n)
    plain = Plain(n, m, 20, 2.0, alpha)
    pending: list[NDArray[np.int64]] = []
    returns = repeats = 0
    for _ in range(draws_of(2000, 300)):
        kind = generator.random()
        if kind < 0.05:  # of any, drawn or not, and often enough to move far
            indices = np.repeat(generator.integers(0, n, 3), 2000)
        elif kind < 0.1 and pending:  # late
            indices = pending.pop()
        else:
            batch = sampler.sample()
            plain.drawn_with[batch.indices] = batch.probabilities
            indices = batch.indices
            if kind > 0.9:
                pending.append(indices)
                continue
        norms = norms_of(indices, generator)
        threshold = sampler._structure.solve(alpha / n).threshold
        plain.p = np.maximum(sampler._values, threshold)
        returns += int((plain.p[np.unique(indices[norms > 0.0])] == threshold).sum())
        repeats += len(np.unique(indices)) < len(indices)
        now = sampler.probabilities()
        sampler.update(indices, norms)
        plain.update(sampler.steps * m, indices, norms, now)
        p = sampler.probabilities()
        if norms.any() and n > 1:
            # Up to a common factor, the values are multiplied exactly; what is on the floor starts from the threshold.
            pushed = np.unique(indices[norms > 0.0])
            found = sampler._values[pushed]
            assert np.allclose(found / found.max(), plain.v[pushed] / plain.v[pushed].max(), rtol=1e-9, atol=0.0)
        assert np.allclose(p, projected(sampler._values, p, alpha / n), rtol=1e-6, atol=0.0)  # of 24 bits each
    sampler._structure.check()
    assert repeats > 5
    assert (sampler._horizon, sampler._bound) == (plain.horizon, plain.bound)
    assert plain.horizon > 20 and plain.bound > 2.0  # both were exceeded
    if n > 1 and compiled:
        assert returns > 10 or alpha < 0.4  # examples on the floor received norms again, and rose
        assert np.ptp(p) > 0.01 / n or alpha == 1.0


def test_projects_as_lemma_1_does() -> None:
    # One update of all, none drawn before: the exponents are sqrt(2 ln N / T) (n / G)^2 alpha^3, thrice each.
    norms = np.random.default_rng(0).uniform(0.0, 3.0, 12)
    sampler = Osmd(12, 4, horizon=5, bound=3.0, alpha=0.7)
    sampler.update(np.tile(np.arange(12), 3), np.tile(norms, 3))
    v = np.exp(3.0 * math.sqrt(2.0 * math.log(12) / 5) * (norms / 3.0) ** 2 * 0.7**3)
    expected = avare.minimize_variance(v, 0.7 / 12)
    assert 1 < (expected > 0.7 / 12).sum() < 12
    p = sampler.probabilities()
    assert np.allclose(p, projected(v, p, 0.7 / 12), rtol=1e-6, atol=0.0)
    assert np.allclose(p, expected, rtol=2.0**-10, atol=0.0)  # by how much the floor may be larger


def test_long_runs_do_not_drift() -> None:
    steps, n, m = draws_of(20_000, 500), 40, 5
    generator = np.random.default_rng(1)
    sampler = Osmd(n, m, horizon=steps * m, bound=20.0, alpha=0.8, seed=1)
    plain, on_floor = Plain(n, m, steps * m, 20.0, 0.8), 0
    for step in range(steps):
        batch = sampler.sample()
        on_floor += n - sampler._structure.solve(0.8 / n).above
        norms = np.where((batch.indices + step // 1000) % 8 == 0, 20.0, generator.uniform(0.0, 2.0, m))
        plain.drawn_with[batch.indices] = plain.p[batch.indices]
        sampler.update(batch.indices, norms)
        plain.update(sampler.steps * m, batch.indices, norms)
    p = sampler.probabilities()
    assert math.fsum(p) == pytest.approx(1.0, rel=0.0, abs=1e-14)
    # An example that leaves the floor starts up to 2 ** -10 too high, and then grows less, because its p is larger.
    assert np.allclose(p, plain.p, rtol=3e-3, atol=0.0)
    sampler._structure.check()
    assert 0.0 < on_floor / (n * steps) < 0.9 or not compiled  # after very many steps none is there
    assert np.allclose(p, projected(sampler._values, p, 0.8 / n), rtol=1e-6, atol=0.0)


@pytest.mark.compiled
def test_adapts() -> None:
    n, m, steps = 20, 5, (10_000 if compiled else 1_500)
    norms = np.where(np.arange(n) < 4, 10.0, 1.0)
    sampler = Osmd(n, m, horizon=steps * m, bound=10.0, seed=2)
    for _ in range(steps):
        batch = sampler.sample()
        sampler.update(batch.indices, norms[batch.indices])
    uniform = float(avare.diagnostics.relative_error(norms, np.full(n, 1.0 / n)))
    best = float(avare.diagnostics.relative_error(norms, avare.minimize_variance(norms, 0.4 / n)))
    found = float(avare.diagnostics.relative_error(norms, sampler.probabilities()))
    # The horizon is theory's, so p has not converged: it has 0.4 of the possible gain within the floor.
    assert best < found < uniform - 0.4 * (uniform - best)
    assert sampler.gain > 1.2  # estimated from a hundred batches, some with few of the large norms


@pytest.mark.parametrize("horizon", [1, 10**6, 2**62], ids=["1", "10^6", "2^62"])
@pytest.mark.parametrize("bound", [1e-140, 1.0, 1e140])
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
@pytest.mark.compiled
def test_no_size_of_the_limits_overflows(horizon: int, bound: float) -> None:
    sampler = Osmd(30, 4, horizon=horizon, bound=bound, alpha=0.9, seed=3)
    for step in range(100 if not numba.config.DISABLE_JIT else 30):
        batch = sampler.sample()
        assert np.isfinite(batch.weights).all()
        sampler.update(batch.indices, bound * (1.0 + step * (batch.indices % 2)))
        sampler.update(np.repeat(batch.indices, 500), np.full(2000, bound))  # exponents of several hundred
    sampler._structure.check()
    p = sampler.probabilities()
    assert (p >= 0.03).all()
    assert (p.max() > 0.04) == (horizon < 2**62)


def test_stays_uniform_if_there_is_nothing_to_learn() -> None:
    sampler = Osmd(6, 2, seed=4)
    for _ in range(20):
        batch = sampler.sample()
        sampler.update(batch.indices, np.zeros(2))
    sampler.update([], [])
    assert np.allclose(sampler.probabilities(), 1.0 / 6.0, rtol=1e-15)
    one = Osmd(1, 2, seed=4)
    one.update(one.sample().indices, [3.0, 4.0])
    assert one.probabilities().tolist() == [1.0]
    level = Osmd(6, 2, alpha=1.0, horizon=100, bound=5.0, seed=4)
    for _ in range(20):
        batch = level.sample()
        level.update(batch.indices, batch.indices % 5)
    assert np.allclose(level.probabilities(), 1.0 / 6.0, rtol=1e-14)


def test_warns_once_of_each_limit() -> None:
    sampler = Osmd(10, 4, horizon=8, bound=1.0, seed=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(8):
            batch = sampler.sample()
            sampler.update(batch.indices, np.full(4, 0.5 + step))
    messages = [str(each.message) for each in caught]
    assert [each.category for each in caught] == [LimitWarning, LimitWarning]
    assert all(each.filename == __file__ for each in caught)
    assert messages[0] == "a norm of 1.5 exceeds bound = 1: Osmd continues with 2"
    assert messages[1] == "horizon = 8 is exceeded: Osmd continues with 16 draws"
    silent = Osmd(2, 4, seed=5)
    for step in range(20):
        batch = silent.sample()
        silent.update(batch.indices, np.full(4, 1.0 + step))
    assert silent._horizon > 20 and silent._bound >= 20.0


@pytest.mark.parametrize("arguments", [{"horizon": 600, "bound": 8.0}, {}])
@pytest.mark.compiled
def test_resumes_with_exactly_the_same_draws(arguments: dict[str, Any]) -> None:
    def run(sampler: Osmd, steps: int) -> list[list[int]]:
        drawn = []
        for _ in range(steps):
            batch = sampler.sample()
            drawn.append(batch.indices.tolist())
            sampler.update(batch.indices, 1.0 + 7.0 * (batch.indices % 5 == 0))
        return drawn

    sampler, twin = Osmd(60, 5, alpha=0.9, seed=6, **arguments), Osmd(60, 5, alpha=0.9, seed=7, **arguments)
    run(sampler, 60)
    pending = sampler.sample()
    state = sampler.state_dict()
    twin.load_state_dict(state)
    for each in (sampler, twin):
        each.update(pending.indices, np.full(5, 3.0))
    assert run(sampler, 40) == run(twin, 40)
    assert np.array_equal(sampler.probabilities(), twin.probabilities())
    saved, resumed = sampler.state_dict(), twin.state_dict()
    assert all(np.array_equal(saved[key], resumed[key]) for key in saved)
    assert twin._structure.solve(0.01) == sampler._structure.solve(0.01)
    twin._structure.check()
    third = Osmd(60, 5, alpha=0.9, **arguments)
    third.load_state_dict(state)  # continuing has not changed it
    assert third.steps == 61


def test_refuses_another_state_and_does_not_change() -> None:
    sampler = Osmd(8, 2, horizon=100, bound=3.0, seed=8)
    sampler.update(sampler.sample().indices, [1.0, 2.0])
    before = sampler.probabilities().tolist()
    with pytest.raises(ValueError, match=r"state\['alpha'\] = 0.5: this sampler has 0.4"):
        sampler.load_state_dict(Osmd(8, 2, horizon=100, bound=3.0, alpha=0.5).state_dict())
    state = sampler.state_dict()
    for changes, message in (
        ({"drawn_with": np.zeros(7)}, r"state\['drawn_with'\] has shape \(7,\)"),
        ({"drawn_with": np.zeros(8, dtype=np.int64)}, r"dtype int64: must have shape \(8,\) and dtype float64"),
        ({"members": np.zeros(8, dtype=np.int64)}, r"state\['members'\]\[1\] = 0: does not fit"),
        ({"drawn_with": np.full(8, 1e-120)}, r"state\['drawn_with'\]\[0\] = 1e-120: must be from 1e-110 to"),
        ({"values": np.full(8, -1.0)}, r"state\['values'\]\[0\] = -1.0: must be from 0.0 to 1e\+30"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.load_state_dict(sealed({**state, "bound": 77.0, **changes}))
        assert sampler.probabilities().tolist() == before and sampler._bound == 3.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alpha": 0.0}, ValueError, "alpha = 0.0: must be at least 1e-100"),
        ({"alpha": 1.5}, ValueError, "alpha = 1.5: must be at most 1"),
        ({"alpha": math.nan}, ValueError, "alpha = nan: must be finite"),
        ({"alpha": "0.4"}, TypeError, "alpha = '0.4': must be a number"),
        ({"horizon": 0}, ValueError, "horizon = 0: must be at least 1"),
        ({"horizon": 10.0}, TypeError, "horizon = 10.0: must be an integer"),
        ({"bound": 0.0}, ValueError, "bound = 0.0: must be at least 1e-140"),
        ({"bound": math.inf}, ValueError, "bound = inf: must be finite"),
        ({"replacement": False}, ValueError, "replacement = False: Osmd draws with replacement only"),
        ({"seed": -1}, ValueError, "non-negative"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Osmd(10, 2, **arguments)
