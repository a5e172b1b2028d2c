import math
from typing import Any

import numba
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare._randomness import uniform_source
from avare.structures import Buckets
from avare.structures import buckets as module
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

compiled = not numba.config.DISABLE_JIT
DRAWS = draws_of(200_000)


@given(st.floats(2.0**-149, float(np.finfo(np.float32).max)))
def test_norms_are_kept_to_24_significant_bits(norm: float) -> None:
    kept = Buckets([norm]).norms()[0]
    assert abs(kept - norm) <= 2.0**-24 * norm
    if norm >= 2.0**-126:  # float32 has the same number of bits there
        assert kept == np.float32(norm)


@pytest.mark.parametrize(("norm", "kept"), [(0.0, 0.0), (-0.0, 0.0), (5e-324, 2.0**-149), (1e300, 2.0**128 - 2.0**104)])
def test_norms_out_of_range_become_its_nearer_end(norm: float, kept: float) -> None:
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
    assert buckets.solve(0.0).scale == pytest.approx(math.fsum(buckets.norms()), rel=1e-14)  # floats of exact sums


def test_a_huge_norm_leaves_no_trace() -> None:
    buckets = Buckets([1.0, 2.0, 3.0])
    buckets.update([1], [1e30])
    buckets.update([1], [2.0])
    assert buckets.solve(0.0).scale == 6.0
    assert np.allclose(buckets.probabilities(0.0), [1 / 6, 2 / 6, 3 / 6], rtol=1e-15)


def test_moves_through_many_pages() -> None:
    # All in one cell, then all in another, then spread: pages and page tables are freed and used again.
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
def test_zeros_fill_pages(n: int) -> None:
    buckets = Buckets(np.zeros(n))
    buckets.check()
    buckets.update([n - 1, 0], [3.0, 3.0])
    buckets.check()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: s[:-1], r"has shape \(3,\)"),
        (lambda s: s.astype(np.float64), "dtype float64"),
        (lambda s: s[::-1].copy(), r"\[1\] = .*: does not fit"),  # cells out of order
        (lambda s: np.array([s[0], s[0], s[2], s[3]]), r"\[1\] = "),  # an index twice
        (lambda s: np.array([s[0], s[1], s[2], s[3] | (5 << 31) | 9]), r"\[3\] = "),  # no such index
        (lambda s: np.array([7 << 31, s[1], s[2], s[3]]), r"\[0\] = "),  # no such code
        (lambda s: np.array([-1, s[1], s[2], s[3]]), r"\[0\] = "),
    ],
)
def test_refuses_a_damaged_state(damage, message: str) -> None:  # type: ignore[no-untyped-def]  # any change
    state = Buckets([0.0, 1.0, 2.0, 4.0]).state()
    with pytest.raises(ValueError, match=r"state\['members'\].*" + message):
        Buckets.from_state({"members": damage(state["members"])}, 4)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("slots", 0),
        ("octaves", (150, 0)),
        ("cells", (1200, 1)),
        ("bins", (150_000, 0)),
        ("bins", (150_000, 1)),
        ("registers", 2),
        ("registers", 4),
        ("registers", 6),
    ],
)
def test_check_notices_damage(name: str, place: int | tuple[int, int]) -> None:
    buckets = Buckets(np.random.default_rng(4).lognormal(size=300))
    getattr(buckets.arrays, name)[place] += 1
    with pytest.raises(AssertionError):
        buckets.check()


def test_drawing_without_replacement_takes_both_ways() -> None:
    # Repeated draws are dropped if no example has much mass; drawn members are set aside if a few have most of it.
    generator = np.random.default_rng(5)
    for values, floor in ((np.full(400, 1.0), 1e-4), (np.eye(1, 400, 7)[0] + 1e-6, 1e-9)):
        buckets = Buckets(values)
        indices, p = buckets.draw(100, floor=floor, replacement=False, generator=generator)
        assert len(set(indices.tolist())) == 100
        assert np.allclose(p, buckets.probabilities(floor)[indices])
        buckets.check()
    assert indices[0] == 7  # it has all of the mass but 4e-4
    everyone, _ = buckets.draw(400, floor=1e-9, replacement=False, generator=generator)
    assert sorted(everyone.tolist()) == list(range(400))


def test_draws_survive_rounding_at_the_ends() -> None:
    # Rounding may give a place at the end or beyond it: this still finds a member that can be drawn.
    generator = np.random.default_rng(8)
    source = uniform_source(generator)
    for values, floor in (([1.0, 3.0], 0.0), ([0.0, 3.0], 0.0), ([1.0, 1e-30, 0.0], 0.0), ([1.0, 0.0], 0.1)):
        arrays = Buckets(values).arrays
        law = module.weigh(arrays, module.solve(arrays, floor))
        for stretch in (1.0, 2.0):
            indices, masses = np.empty(100, dtype=np.int64), np.empty(100)
            law = law._replace(total=stretch * law.total)
            module.propose(arrays, law, source, np.empty_like(indices), indices, masses)
            assert (Buckets(values).probabilities(floor)[indices] > 0.0).all()


@pytest.mark.parametrize("replacement", [True, False])
def test_the_law_of_draws_that_are_only_dropped(replacement: bool) -> None:
    # No member is set aside, because no example has much mass.
    generator = np.random.default_rng(23)
    buckets = Buckets(generator.lognormal(0.0, 0.5, 60))
    p = buckets.probabilities(0.01)
    assert 2 * p.max() < 0.5
    arguments: dict[str, Any] = {"floor": 0.01, "replacement": replacement, "generator": generator}
    draws = [tuple(buckets.draw(2, **arguments)[0].tolist()) for _ in range(DRAWS)]
    assert chi_square(draws, dict(ordered_samples(p, 2, replacement))) > FALSE_ALARM


def test_the_law_of_many_examples_in_few_bins() -> None:
    # The threshold is inside a bin with many members, and is moved to its edge.
    generator = np.random.default_rng(24)
    buckets = Buckets(1.0 + generator.random(3000) * 2.0**-7)
    floor = 0.999 / 3000
    p = buckets.probabilities(floor)
    assert floor < buckets.solve(floor).floor <= floor * (1 + 2.0**-10)
    indices, _ = buckets.draw(10 * DRAWS, floor=floor, replacement=True, generator=generator)
    law: dict[tuple[int, ...], float] = {(i,): chance for i, chance in enumerate(p.tolist())}
    assert chi_square([(i,) for i in indices.tolist()], law) > FALSE_ALARM


@pytest.mark.slow
def test_a_hundred_million_examples() -> None:
    n = 100_000_000
    if psutil.virtual_memory().available < 4e9:
        pytest.skip("needs 4 GB of free memory")
    buckets = Buckets(np.zeros(n))
    assert buckets.nbytes <= 16 * n + 8_000_000
    generator = np.random.default_rng(6)
    for replacement in (True, False):
        for _ in range(200):
            indices, _ = buckets.draw(10_000, floor=0.5 / n, replacement=replacement, generator=generator)
            assert replacement or len(np.unique(indices)) == 10_000
            buckets.update(indices, generator.lognormal(0, 2, 10_000))
    assert np.isclose(buckets.probabilities(0.5 / n).sum(), 1.0, rtol=0, atol=1e-9)
    assert buckets.solve(0.0).scale == pytest.approx(buckets.norms().sum(), rel=1e-12)
    buckets.check()
