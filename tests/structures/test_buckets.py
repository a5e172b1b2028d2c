import math

import numba
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare._randomness import uniform_source
from avare.structures import Buckets
from avare.structures import buckets as module

compiled = not numba.config.DISABLE_JIT


@given(st.floats(2.0**-149, float(np.finfo(np.float32).max)))
def test_norms_are_kept_to_24_significant_bits(norm: float) -> None:
    kept = Buckets([norm]).norms()[0]
    assert abs(kept - norm) <= 2.0**-24 * norm
    if norm >= 2.0**-126:  # where float32 has as many
        assert kept == np.float32(norm)


@pytest.mark.parametrize(("norm", "kept"), [(0.0, 0.0), (-0.0, 0.0), (5e-324, 2.0**-149), (1e300, 2.0**128 - 2.0**104)])
def test_norms_out_of_range_go_to_its_nearer_end(norm: float, kept: float) -> None:
    assert Buckets([norm]).norms()[0] == kept


def test_sums_stay_exact_through_a_million_updates() -> None:
    updates, n, size = (1_000_000 if compiled else 3_000), 1000, 1000
    generator = np.random.default_rng(0)
    buckets = Buckets(np.zeros(n))
    for _ in range(updates // size):
        values = 10.0 ** generator.uniform(-30, 30, size)
        values[generator.random(size) < 0.1] = 0.0
        buckets.update(generator.integers(0, n, size), values)
    buckets.check()
    assert buckets.total() == math.fsum(buckets.norms())


def test_a_huge_norm_leaves_no_trace() -> None:
    buckets = Buckets([1.0, 2.0, 3.0])
    buckets.update([1], [1e30])
    buckets.update([1], [2.0])
    assert buckets.total() == 6.0
    assert np.allclose(buckets.probabilities(0.0), [1 / 6, 2 / 6, 3 / 6], rtol=1e-15)


def test_moves_through_many_pages() -> None:
    # All in one cell, then all in another, then spread: pages and page tables go back and forth.
    n = 20_000 if compiled else 300
    buckets = Buckets(np.full(n, 3.0))
    everyone = np.arange(n)
    generator = np.random.default_rng(1)
    for values in (np.full(n, 5.0), np.zeros(n), generator.lognormal(0, 3, n), np.full(n, 1e-3)):
        order = generator.permutation(everyone)
        buckets.update(order, values[order])
        buckets.check()
        assert np.allclose(buckets.norms(), values, rtol=2.0**-24)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 16_384, 16_385, 40_000])
def test_zeros_are_laid_out_like_any_norms(n: int) -> None:
    buckets = Buckets.zeros(n)
    buckets.check()
    assert np.array_equal(buckets.state()["memory"], Buckets(np.zeros(n)).state()["memory"])
    buckets.update([n - 1, 0], [3.0, 3.0])
    buckets.check()


def test_state_keeps_the_order_of_members() -> None:
    generator = np.random.default_rng(2)
    buckets = Buckets(generator.lognormal(size=50))
    buckets.update(generator.integers(0, 50, 200), generator.lognormal(size=200))
    twin = Buckets.from_state(buckets.state(), 50)
    twin.check()
    one, two = np.random.default_rng(3), np.random.default_rng(3)
    for replacement in (True, False):
        ours, _ = buckets.draw(20, replacement=replacement, source=uniform_source(one), floor=0.01)
        theirs, _ = twin.draw(20, replacement=replacement, source=uniform_source(two), floor=0.01)
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: s[:-1], r"state\['memory'\] has shape \(3,\)"),
        (lambda s: s.astype(np.float64), "dtype float64"),
        (lambda s: s[::-1].copy(), r"state\['memory'\]\[1\] = .*: does not fit"),  # cells out of order
        (lambda s: np.array([s[0], s[0], s[2], s[3]]), r"state\['memory'\]\[1\]"),  # an index twice
        (lambda s: np.array([s[0], s[1], s[2], s[3] | (5 << 31) | 9]), r"state\['memory'\]\[3\]"),  # no such index
        (lambda s: np.array([7 << 31, s[1], s[2], s[3]]), r"state\['memory'\]\[0\]"),  # no such code
        (lambda s: np.array([-1, s[1], s[2], s[3]]), r"state\['memory'\]\[0\]"),
    ],
)
def test_refuses_a_damaged_state(damage, message: str) -> None:  # type: ignore[no-untyped-def]  # any change
    state = Buckets([0.0, 1.0, 2.0, 4.0]).state()
    with pytest.raises(ValueError, match=message):
        Buckets.from_state({"memory": damage(state["memory"])}, 4)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("slots", 0),
        ("octaves", (150, 0)),
        ("cells", (1200, 1)),
        ("bins", (150_000, 0)),
        ("bins", (150_000, 1)),
        ("registers", 2),
        ("registers", 5),
    ],
)
def test_check_notices_damage(name: str, place: int | tuple[int, int]) -> None:
    buckets = Buckets(np.random.default_rng(4).lognormal(size=300))
    getattr(buckets._arrays, name)[place] += 1
    with pytest.raises(AssertionError):
        buckets.check()


def test_drawing_without_replacement_takes_both_ways() -> None:
    # Dropping what was drawn before, where no example matters much; setting it aside, where few do.
    generator = np.random.default_rng(5)
    for values, floor in ((np.full(400, 1.0), 1e-4), (np.eye(1, 400, 7)[0] + 1e-6, 1e-9)):
        buckets = Buckets(values)
        indices, p = buckets.draw(100, replacement=False, source=uniform_source(generator), floor=floor)
        assert len(set(indices.tolist())) == 100
        assert np.allclose(p, buckets.probabilities(floor)[indices])
        buckets.check()
    assert indices[0] == 7  # it has all but 4e-4 of the mass
    everyone, _ = buckets.draw(400, replacement=False, source=uniform_source(generator), floor=1e-9)
    assert sorted(everyone.tolist()) == list(range(400))


def test_memory() -> None:
    for n in (1, 1000, 10**6):
        assert Buckets.zeros(n).nbytes <= 16 * n + 8_000_000


def test_draws_survive_rounding_at_the_ends() -> None:
    # A place at or beyond the very end, as rounding may give, still finds a member that can be drawn.
    generator = np.random.default_rng(8)
    source = uniform_source(generator)
    for values, floor in (([1.0, 3.0], 0.0), ([0.0, 3.0], 0.0), ([1.0, 1e-30, 0.0], 0.0), ([1.0, 0.0], 0.1)):
        arrays = Buckets(values).arrays
        law = module.law_of(arrays, module.solve(arrays, floor))
        for stretch in (1.0, 2.0):
            indices, masses = np.empty(100, dtype=np.int64), np.empty(100)
            stretched = law._replace(total=stretch * law.total)
            module.propose(arrays, stretched, source, np.empty_like(indices), indices, masses)
            assert (Buckets(values).probabilities(floor)[indices] > 0.0).all()


@pytest.mark.slow
def test_a_hundred_million_examples() -> None:
    n = 100_000_000
    if psutil.virtual_memory().available < 4e9:
        pytest.skip("needs 4 GB of free memory")
    buckets = Buckets.zeros(n)
    assert buckets.nbytes <= 16 * n + 8_000_000
    generator = np.random.default_rng(6)
    source = uniform_source(generator)
    for replacement in (True, False):
        for _ in range(200):
            indices, _ = buckets.draw(10_000, replacement=replacement, source=source, floor=0.5 / n)
            assert replacement or len(np.unique(indices)) == 10_000
            buckets.update(indices, generator.lognormal(0, 2, 10_000))
    assert np.isclose(buckets.probabilities(0.5 / n).sum(), 1.0, rtol=0, atol=1e-9)
    assert buckets.total() == pytest.approx(buckets.norms().sum(), rel=1e-12)
    buckets.check()
