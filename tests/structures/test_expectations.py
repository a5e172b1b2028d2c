from typing import Any

import numba
import numpy as np
import pytest

from avare._randomness import uniform_source
from avare.structures import Expectations
from avare.structures import expectations as module
from laws import FALSE_ALARM, chi_square, ordered_samples

compiled = not numba.config.DISABLE_JIT
DRAWS = 100_000 if compiled else 2_000


@pytest.mark.parametrize(
    "norms",
    [[0.3, 0.31, 2.0, 0.0, 1e-9], [1000.0, 1.0, 1.05, 2.0, 3.0], [5.0] * 5, [0.0] * 5, [1e300, 1e30, 1.0, 0, 0]],
)
@pytest.mark.parametrize("floor", [0.0001, 0.05, 0.3])
@pytest.mark.parametrize(("size", "replacement"), [(2, True), (2, False), (4, False), (5, False)])
def test_draws_follow_the_probabilities(norms: list[float], floor: float, size: int, replacement: bool) -> None:
    expectations, generator = Expectations(norms, prior=1.0), np.random.default_rng(1)
    p = expectations.probabilities(floor)
    assert p.sum() == pytest.approx(1.0, rel=1e-12) and p.min() >= min(floor, 1 / 5) * (1 - 1e-12)
    source, draws = uniform_source(generator), []
    for _ in range(DRAWS // 5):
        indices, found = expectations.draw(size, replacement=replacement, source=source, floor=floor)
        assert np.allclose(found, p[indices], rtol=1e-12)
        draws.append(tuple(indices.tolist()))
    expectations.check()
    assert chi_square(draws, dict(ordered_samples(p, size, replacement))) > FALSE_ALARM


def test_sets_many_aside_and_puts_them_back() -> None:
    # A few hold nearly all of the mass, and most of the rest is drawn too: through many pages.
    n = 2000 if compiled else 300
    generator = np.random.default_rng(2)
    norms = np.where(np.arange(n) % 100 == 0, 1e6, generator.lognormal(0.0, 1.0, n))
    expectations = Expectations(norms, prior=1.0)
    before = expectations.state()
    source = uniform_source(generator)
    for size in (n // 50, n // 2, n - 1, n):
        indices, _ = expectations.draw(size, replacement=False, source=source, floor=1e-9)
        assert len(np.unique(indices)) == size
        expectations.check()
        assert np.array_equal(expectations.state()["expectations_members"], before["expectations_members"])


def test_without_a_floor_zeros_are_never_drawn() -> None:
    expectations, generator = Expectations([0.0, 3.0, 0.0, 1.0], prior=1.0), np.random.default_rng(3)
    source = uniform_source(generator)
    assert expectations.probabilities(0.0).tolist() == [0.0, 0.75, 0.0, 0.25]
    for _ in range(100):
        assert set(expectations.draw(2, replacement=False, source=source, floor=0.0)[0].tolist()) == {1, 3}
        assert set(expectations.draw(5, replacement=True, source=source, floor=0.0)[0].tolist()) <= {1, 3}
    with pytest.raises(ValueError, match="size = 3: fewer examples have a probability above 0"):
        expectations.draw(3, replacement=False, source=source, floor=0.0)


def test_a_number_at_the_very_end_falls_to_the_last_with_a_mass() -> None:
    # With x rounded up to the sum of all, the last cell is empty, since all of it was set aside.
    expectations = Expectations([1.0, 2.0, 4.0], prior=1.0)
    arrays = expectations._arrays
    generator = np.random.default_rng(4)
    law = module._solve(arrays, 1.0, 0.1)
    arrays.counts[law.size - 1] = 0
    law = law._replace(total=1e6 * law.total)
    indices, masses = np.empty(100, dtype=np.int64), np.empty(100)
    module._propose(arrays, law, uniform_source(generator), np.empty_like(indices), indices, masses)
    assert set(indices.tolist()) <= {0, 1} and (masses > 0.0).all()


def test_keeps_what_it_is_told() -> None:
    generator = np.random.default_rng(5)
    n = 5000 if compiled else 300
    expectations = Expectations.unseen(n, prior=0.5)
    expectations.check()
    assert np.isnan(expectations.norms()).all()
    kept = np.full(n, np.nan)
    for _ in range(30):
        indices = generator.integers(0, n - 1, 200)  # the last is never seen
        norms = generator.lognormal(0.0, 5.0, 200) * (generator.random(200) > 0.1)
        expectations.replace(indices, norms, keep=0.9)
        kept[indices] = norms
        expectations.check()
        assert np.allclose(expectations.norms(), kept, rtol=2.0**-24, equal_nan=True)
    found = expectations.calibration()
    assert found.members.sum() == n and np.isnan(found.remembered[0]) and (np.diff(found.remembered[1:]) > 0).all()
    assert found.observations.sum() <= 200 / (1 - 0.9)
    assert expectations.nbytes < 13 * n + 8_000_000


def test_state_keeps_the_order_of_members() -> None:
    generator = np.random.default_rng(6)
    expectations = Expectations.unseen(50, prior=1.0)
    for _ in range(20):
        expectations.replace(generator.integers(0, 50, 3), generator.lognormal(size=3), keep=0.5)
    twin = Expectations.from_state(expectations.state(), 50, prior=1.0)
    twin.check()
    one, two = np.random.default_rng(7), np.random.default_rng(7)
    for replacement in (True, False):
        ours, p = expectations.draw(20, replacement=replacement, source=uniform_source(one), floor=0.001)
        theirs, q = twin.draw(20, replacement=replacement, source=uniform_source(two), floor=0.001)
        assert ours.tolist() == theirs.tolist() and p.tolist() == q.tolist()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("members", lambda s: s[:-1], r"members'\] has shape \(3,\)"),
        ("members", lambda s: s.astype(np.float64), "dtype float64"),
        ("members", lambda s: s[::-1].copy(), r"members'\]\[1\] = .*: does not fit"),
        ("members", lambda s: np.array([7 << 31, s[1], s[2], s[3]]), r"members'\]\[0\]"),  # no such code
        ("tallies", lambda s: s[1:], r"tallies'\] has shape \(2223, 2\)"),
        ("tallies", lambda s: s.astype(np.float32), "dtype float32"),
    ],
)
def test_refuses_a_damaged_state(name: str, damage: Any, message: str) -> None:
    state = Expectations([0.0, 1.0, 2.0, 4.0], prior=1.0).state()
    state[f"expectations_{name}"] = damage(state[f"expectations_{name}"])
    with pytest.raises(ValueError, match=message):
        Expectations.from_state(state, 4, prior=1.0)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("slots", 0, 1),
        ("octaves", (150, 0), 1),
        ("cells", (1200, 1), 1),
        ("registers", 2, 1),
        ("tallies", (1200, 0), np.nan),
        ("scale", 0, -0.5),
    ],
)
def test_check_notices_damage(name: str, place: Any, value: float) -> None:
    expectations = Expectations(np.random.default_rng(8).lognormal(size=300), prior=1.0)
    getattr(expectations._arrays, name)[place] += value
    with pytest.raises(AssertionError):
        expectations.check()
