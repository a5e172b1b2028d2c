"""Each rule against a plain transcription: the same p after any sequence of updates."""

import warnings
from collections.abc import Callable

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.samplers import LimitWarning, Sampler
from avare.samplers.rivals import mabs
from avare.state import checksum

Vector = NDArray[np.float64]
STEPS = 30 if numba.config.DISABLE_JIT else 300
sizes = pytest.mark.parametrize("n", [1, 2, 7, 50])
KEPT = 2.0**-22  # `Buckets` keep 24 significant bits of each weight: each p is within 2 ** -23 of the rule's


def check_rule(
    sampler: Sampler, rule: Callable[[NDArray[np.int64], Vector, Vector], Vector], rtol: float = 1e-9
) -> None:
    """Draw and learn; after each step the rule returns the next p."""
    generator = np.random.default_rng(sampler.n)
    for step in range(STEPS):
        p = sampler.probabilities()
        batch = sampler.sample()
        norms = generator.lognormal(0.0, 1.5, len(batch)) * (generator.random(len(batch)) > 0.2)
        if step % 50 == 30:
            norms[0] = 40.0  # above the bound
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LimitWarning)
            sampler.update(batch.indices, norms)
        assert np.allclose(sampler.probabilities(), rule(batch.indices, norms, p), rtol=rtol, atol=0)


class Doubling:
    """The given horizon and bound, doubled as often as necessary."""

    def __init__(self, horizon: int, bound: float) -> None:
        self.horizon, self.bound, self.draws = horizon, bound, 0

    def see(self, norms: Vector) -> None:
        self.draws += len(norms)
        while self.draws > self.horizon:
            self.horizon *= 2
        while norms.max() > self.bound:
            self.bound *= 2


@sizes
@pytest.mark.parametrize("room", [40.0, 0.01])  # the reference is rarely, and often, shifted
def test_mabs(n: int, room: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mabs, "_ROOM", room)
    limits, eta, W = Doubling(400, 8.0), 0.3, np.zeros(n)

    def rule(indices: NDArray[np.int64], norms: Vector, p: Vector) -> Vector:
        limits.see(norms)
        delta = np.sqrt(eta**4 * np.log(n) / (limits.horizon * n**5 * limits.bound**4))
        for i, norm in zip(indices, norms, strict=True):
            W[i] += delta * norm**2 / p[i] ** 3
        softmax = np.exp(W - W.max())
        return np.asarray((1 - eta) * softmax / softmax.sum() + eta / n)

    check_rule(avare.Mabs(n, 3, horizon=400, bound=8.0, eta=eta, seed=1), rule, KEPT)


@sizes
def test_vrb(n: int) -> None:
    limits, w = Doubling(max(400, n), 8.0), np.zeros(n)

    def rule(indices: NDArray[np.int64], norms: Vector, p: Vector) -> Vector:
        limits.see(norms)
        for i, norm in zip(indices, norms, strict=True):
            w[i] += norm**2 / p[i]
        theta = min(1.0, (n / limits.horizon) ** (1 / 3))
        q = np.sqrt(w + limits.bound**2 * n / theta)
        return np.asarray((1 - theta) * q / q.sum() + theta / n)

    check_rule(avare.Vrb(n, 3, horizon=max(400, n), bound=8.0, seed=2), rule, KEPT)


@sizes
def test_srg(n: int) -> None:
    h, theta = np.zeros(n), 0.3
    sampler = avare.Srg(n, 3, theta=theta, seed=3)
    refreshed: list[NDArray[np.bool_]] = []
    learn = sampler.learn

    def spy(indices: NDArray[np.int64], norms: Vector) -> None:
        refreshed.append(sampler._awaited[indices].copy())
        learn(indices, norms)

    sampler.learn = spy  # type: ignore[method-assign]  # to see the coins

    def rule(indices: NDArray[np.int64], norms: Vector, p: Vector) -> Vector:
        for i, norm, fresh in zip(indices, norms, refreshed[-1], strict=True):
            h[i] = norm if fresh else h[i]
        return (1 - theta) * h / h.sum() + theta / n if h.any() else np.full(n, 1 / n)

    check_rule(sampler, rule, KEPT)
    assert 0.15 < np.mean(np.concatenate(refreshed[20:])) <= 1.0


@sizes
@pytest.mark.parametrize("replacement", [True, False])
def test_static(n: int, replacement: bool) -> None:
    L = np.random.default_rng(4).lognormal(0, 2, n)
    L[0] = 0.0 if n > 1 else 1.0
    sampler = avare.Static(n, min(n, 2), smoothness=L, uniform=0.3, replacement=replacement, seed=4)
    check_rule(sampler, lambda indices, norms, p: 0.7 * L / L.sum() + 0.3 / n, KEPT)


def test_static_with_equal_constants_is_uniform() -> None:
    assert np.allclose(avare.Static(7, 2, smoothness=np.full(7, 3.0)).probabilities(), 1 / 7, rtol=1e-15)


@sizes
def test_optimal(n: int) -> None:
    reported = np.zeros(n)

    def rule(indices: NDArray[np.int64], norms: Vector, p: Vector) -> Vector:
        reported[indices] = norms
        return reported / reported.sum() if reported.any() else np.full(n, 1 / n)

    sampler = avare.Optimal(n, 3, replacement=True, seed=5)
    for each in range(n):  # an example without a norm would never be drawn
        sampler.update([each], [1.0 + each])
        reported[each] = 1.0 + each
    check_rule(sampler, rule)


def test_optimal_asks_for_the_present_norms() -> None:
    norms = np.array([1.0, 2.0, 5.0])
    sampler = avare.Optimal(3, 2, norms=lambda: norms, seed=6)
    assert np.allclose(sampler.probabilities(), norms / 8)
    norms[0] = 13.0
    assert np.allclose(sampler.probabilities(), norms / 20)
    batch = sampler.sample()
    assert np.allclose(batch.probabilities, norms[batch.indices] / 20)
    norms[:2] = 0.0
    assert sorted(sampler.sample().indices.tolist())[-1] == 2
    assert len(avare.Optimal(2, 2, norms=lambda: [1e-30, 1e300]).sample()) == 2  # one p is 0 in float64
    assert len(avare.Optimal(4, 4, norms=lambda: [1e-310, 1.0, 1.0, 1.0]).sample()) == 4
    with pytest.raises(ValueError, match=r"norms\(\)\[1\] = nan"):
        avare.Optimal(2, 1, norms=lambda: [1.0, np.nan]).sample()
    with pytest.raises(ValueError, match=r"norms\(\) has length 1: must match n"):
        avare.Optimal(2, 1, norms=lambda: [1.0]).sample()
    with pytest.raises(TypeError, match="must be a function"):
        avare.Optimal(2, 1, norms=[1.0, 2.0])  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("n", [3, 7, 50])
def test_stratified(n: int) -> None:
    h, m, period = np.zeros(n), 3, 4
    sampler = avare.Stratified(n, m, p_min=0.3 / n, period=period, seed=7)
    steps, p_now = [0], [sampler.probabilities()]

    def p_of(scores: Vector) -> Vector:
        groups: list[list[int]] = [[] for _ in range(m)]
        for i in sorted(range(n), key=lambda i: (-scores[i], i)):
            lightest = min(range(m), key=lambda k: (sum(scores[groups[k]]), k))
            groups[lightest].append(i)
        p = np.empty(n)
        for group in groups:
            p[group] = scores[group] / scores[group].sum() / m
        return p

    def rule(indices: NDArray[np.int64], norms: Vector, p: Vector) -> Vector:
        h[indices] = norms
        steps[0] += 1
        if steps[0] % period == 0:
            p_now[0] = p_of(avare.minimize_variance(h, 0.3 / n))
        return p_now[0]

    check_rule(sampler, rule)


@sizes
def test_avare(n: int) -> None:
    h, state = np.zeros(n), {"t": 0}
    sampler = avare.Avare(n, min(n, 3), delta=0.8, seed=8)
    schedule = avare.schedules.floor(n, min(n, 3), 0.8)

    def rule(indices: NDArray[np.int64], norms: Vector, p: Vector) -> Vector:
        h[indices] = norms.astype(np.float32)  # as it is stored
        state["t"] += 1
        floor = schedule(state["t"] + 1)
        snapped = sampler._structure.solve(floor).floor
        assert floor * (1 - 1e-12) <= snapped <= floor * (1 + 2.0**-10) or np.isclose(snapped, 1 / n)
        return avare.minimize_variance(h, min(snapped, 1 / n))

    check_rule(sampler, rule)


@pytest.mark.parametrize("kind", [avare.Mabs, avare.Vrb])
def test_limits_are_raised_with_one_warning_each(kind: type[avare.Mabs] | type[avare.Vrb]) -> None:
    sampler = kind(10, 2, horizon=8, bound=2.0, seed=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            sampler.update(sampler.sample().indices, [2.0, 1.0])
    with pytest.warns(LimitWarning, match=f"horizon = 8 is exceeded: {kind.__name__} continues with 16 draws") as seen:
        sampler.update(sampler.sample().indices, [1.0, 1.0])
    assert seen[0].filename == __file__
    with pytest.warns(LimitWarning, match=r"a norm of 7 exceeds bound = 2: .* continues with 8"):
        sampler.update(sampler.sample().indices, [7.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            sampler.update(sampler.sample().indices, [100.0, 1.0])
    assert np.isclose(sampler.probabilities().sum(), 1.0)


@pytest.mark.parametrize("kind", [avare.Mabs, avare.Vrb])
def test_a_state_with_a_limit_below_the_given_one_is_refused(kind: type[avare.Mabs] | type[avare.Vrb]) -> None:
    given = kind(10, 2, horizon=8, bound=2.0)
    state = {**given.state_dict(), "horizon": 4}
    del state["checksum"]
    with pytest.raises(ValueError, match=r"state\['horizon'\] = 4: must be an integer from 8 to"):
        given.load_state_dict({**state, "checksum": checksum(state)})


@pytest.mark.parametrize("kind", [avare.Mabs, avare.Vrb, avare.Osmd])
def test_an_update_is_complete_if_warnings_are_errors(kind: type[avare.Mabs] | type[avare.Vrb]) -> None:
    strict, lenient = (kind(10, 2, horizon=100, bound=2.0, seed=9) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LimitWarning):
            strict.update(strict.sample().indices, [7.0, 1.0])
        warnings.simplefilter("ignore")
        lenient.update(lenient.sample().indices, [7.0, 1.0])
    assert strict.gain == lenient.gain
    assert np.array_equal(strict.probabilities(), lenient.probabilities())


def test_a_state_saved_with_different_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match=r"state\['smoothness_checksum'\]"):
        avare.Static(2, 1, smoothness=[1.0, 2.0]).load_state_dict(
            avare.Static(2, 1, smoothness=[1.0, 3.0]).state_dict()
        )
    with pytest.raises(ValueError, match=r"state\['given_bound'\] = 3.0: this sampler has 0.0"):
        avare.Vrb(2, 1).load_state_dict(avare.Vrb(2, 1, bound=3.0).state_dict())


def test_norms_of_examples_never_drawn_count_with_the_next_probability() -> None:
    sampler = avare.Vrb(4, 1, horizon=10**6, bound=2.0, seed=13)
    p = sampler.probabilities()
    sampler.update([3], [2.0])
    gamma = sampler._gamma
    q = np.sqrt(np.array([0.0, 0.0, 0.0, 4.0 / p[3]]) + gamma)
    theta = (4 / 10**6) ** (1 / 3)
    assert np.allclose(sampler.probabilities(), (1 - theta) * q / q.sum() + theta / 4, rtol=1e-12)


@pytest.mark.parametrize("kind", [avare.Srg, avare.Stratified])
def test_remembered_norms_can_be_read(kind: type[avare.Srg] | type[avare.Stratified]) -> None:
    sampler = kind(6, 2, seed=14)
    norms = np.arange(1.0, 7.0)
    for _ in range(100):
        batch = sampler.sample()
        sampler.update(batch.indices, norms[batch.indices])
    assert np.array_equal(sampler.norms(), norms)


@pytest.mark.parametrize("kind", [avare.Mabs, avare.Vrb])
def test_limits_that_are_not_given_are_learned_without_a_warning(kind: type[avare.Mabs] | type[avare.Vrb]) -> None:
    sampler = kind(5, 2, seed=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(100):
            sampler.update(sampler.sample().indices, [1.0 + step, 0.0])
    assert sampler._horizon >= 200 and sampler._bound >= 100.0


@pytest.mark.parametrize("norm", [1e30, 1e150, 1.7e308])
@pytest.mark.parametrize("kind", [avare.Mabs, avare.Vrb, avare.Srg])
def test_no_norm_overflows(kind: type[Sampler], norm: float) -> None:
    sampler = kind(6, 2, seed=11)  # type: ignore[call-arg]  # not the base class
    for _ in range(200):
        batch = sampler.sample()
        sampler.update(batch.indices, np.where(batch.indices < 3, norm, 1.0))
        p = sampler.probabilities()
        assert np.isfinite(p).all() and np.isclose(p.sum(), 1.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: avare.Mabs(5, 2, eta=0.0), ValueError, "eta = 0.0: must be at least 1e-100"),
        (lambda: avare.Mabs(5, 2, eta=1.5), ValueError, "eta = 1.5: must be at most 1"),
        (lambda: avare.Mabs(5, 2, horizon=0), ValueError, "horizon = 0: must be at least 1"),
        (lambda: avare.Vrb(5, 2, horizon=1.5), TypeError, "horizon = 1.5: must be an integer"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: avare.Vrb(5, 2, bound=-1.0), ValueError, "bound = -1.0: must be at least 1e-140"),
        (lambda: avare.Srg(5, 2, theta=0.0), ValueError, "theta = 0.0: must be at least 1e-100"),
        (lambda: avare.Srg(5, 2, theta=10**400), ValueError, "theta: must be at most 1e308"),
        (lambda: avare.Srg(5, 2, theta=True), TypeError, "theta = True: must be a number"),
        (lambda: avare.Static(5, 2, smoothness=[1.0] * 4), ValueError, "smoothness has length 4: must match n"),
        (lambda: avare.Static(2, 2, smoothness=[0.0, 0.0]), ValueError, "smoothness is all zero"),
        (lambda: avare.Static(2, 2, smoothness=[1.0, -1.0]), ValueError, r"smoothness\[1\] = -1.0"),
        (
            lambda: avare.Static(2, 2, smoothness=[1.0, 0.0], uniform=0.0),
            ValueError,
            "only 1 examples have a probability above 0",
        ),
        (
            lambda: avare.Static(2, 2, smoothness=[1.0, 0.0], uniform=1.1),
            ValueError,
            "uniform = 1.1: must be at most 1",
        ),
        (lambda: avare.Stratified(5, 2, p_min=0.3), ValueError, "p_min = 0.3: must be at most 1/n"),
        (lambda: avare.Stratified(5, 2, period=0), ValueError, "period = 0: must be at least 1"),
    ],
)
def test_refuses_bad_arguments(make: Callable[[], Sampler], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
