"""Every structure, every property of the contract. See `laws.FALSE_ALARM` for the law of draws."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import sorted_norms
from avare.structures import (
    Buckets,
    CalibratedCells,
    Structure,
    WeightTree,
    buckets,
    calibrated_cells,
    cells,
    float_codes,
    uniform_draws,
    weight_tree,
    without_replacement,
)
from compiled import assert_kernels_release_the_gil_and_are_cached
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples
from sorted_norms import SortedNorms

compiled = not numba.config.DISABLE_JIT
DRAWS = draws_of(200_000)
Vector = NDArray[np.float64]


class Kind(NamedTuple):
    """How to build a structure from values and how to change it."""

    make: Callable[[Any], Structure]
    bytes_per_example: float
    arguments: dict[str, float] = {}  # noqa: RUF012 - never changed
    change: Callable[[Any, NDArray[np.int64], Vector], None] = lambda structure, indices, values: structure.replace(
        indices, values
    )
    takes_floors: bool = True
    largest: float = np.inf  # value that it accepts

    def floor(self, floor: float) -> float:
        """The floor, or 0 for a structure that takes none."""
        return floor if self.takes_floors else 0.0


def learn(structure: CalibratedCells, indices: NDArray[np.int64], values: Vector) -> None:
    structure.replace(indices, values, keep=0.9)


PRIOR = {"prior": 0.7}
KINDS = {
    "Buckets": Kind(Buckets, 16),
    "SortedNorms": Kind(SortedNorms, 25),
    "CalibratedCells": Kind(lambda values: CalibratedCells(values, **PRIOR), 13, PRIOR, learn),
    "CalibratedCells, some unseen": Kind(lambda values: CalibratedCells.unseen(len(values), **PRIOR), 13, PRIOR, learn),
    "WeightTree": Kind(WeightTree, 9.1, takes_floors=False, largest=2.0**1023 / 5),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# Values with a floor, away from neutral ones: some share a cell, a bin, an octave, and some do not; some are
# below the threshold, some are zero, some leave the range of float32.
CASES: dict[str, tuple[list[float], float]] = {
    "spread": ([0.3, 5.0, 1.0, 2.2, 0.0], 0.05),
    "one cell": ([1.0, 1.02, 1.05, 1.08, 1.1], 0.19),
    "one octave": ([1.0, 1.2, 1.5, 1.7, 1.95], 0.1),
    "no floor": ([0.0, 1.0, 1.3, 7.0, 1.9], 0.0),
    "concentrated": ([1000.0, 1.0, 2.0, 3.0, 0.5], 0.001),
    "nearly uniform": ([3.0, 1.0, 2.0, 0.0, 9.0], 0.1999),
    "all equal": ([5.0] * 5, 0.0001),
    "all zero": ([0.0] * 5, 0.01),
    "one tiny": ([0.3, 0.31, 2.0, 0.0, 1e-9], 0.0001),
    "one huge": ([1e300, 1e30, 1.0, 0.0, 0.0], 0.3),
    "subnormal": ([1e-310, 3e-310, 2e-310, 0.0, 5e-324], 0.0),
    "one example": ([3.0], 0.4),
    "all smallest": ([5e-324] * 5, 0.01),
    "all largest": ([1e308] * 5, 0.01),
    "both ends": ([5e-324, 1e308, 1e308, 1.0, 0.0], 0.05),
}
every_case = pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, id=f"{name}-{case}")
        for name, kind in KINDS.items()
        for case, (values, _) in CASES.items()
        if max(values) <= kind.largest
    ],
)


def reached(kind: Kind, values: list[float]) -> Structure:
    """A structure that has these values after it had others."""
    generator = np.random.default_rng(8)
    structure = kind.make(generator.lognormal(size=len(values)))
    for _ in range(20):
        kind.change(structure, generator.integers(0, len(values), 3), generator.lognormal(0.0, 2.0, 3))
    kind.change(structure, np.arange(len(values)), np.array(values))
    structure.check()
    return structure


def test_all_have_one_signature() -> None:
    for name in ("draw", "probabilities", "state", "check", "replace", "update"):
        for owner in (Buckets, SortedNorms, CalibratedCells, WeightTree):
            ours, shared = (inspect.signature(getattr(each, name)).parameters for each in (owner, Structure))
            assert list(ours)[: len(shared)] == list(shared)


# --- probabilities and draws ---------------------------------------------------------------


@every_case
def test_probabilities_sum_to_one(kind: Kind, case: str) -> None:
    values, floor = CASES[case]
    for structure in (kind.make(values), reached(kind, values)):
        for share in map(kind.floor, (floor, 1.0 / len(values), 7.0)):
            p = structure.probabilities(share)
            assert p.shape == (len(values),) and p.sum() == pytest.approx(1.0, rel=1e-12)
            assert p.min() >= min(share, 1.0 / len(values)) * (1 - 1e-12)
        structure.check()


@every_case
def test_draws_with_replacement_follow_the_probabilities(kind: Kind, case: str) -> None:
    values, floor = CASES[case][0], kind.floor(CASES[case][1])
    structure = reached(kind, values)
    generator = np.random.default_rng(21)
    p = structure.probabilities(floor)
    indices, found = structure.draw(DRAWS, replacement=True, generator=generator, floor=floor)
    assert np.allclose(found, p[indices], rtol=1e-12, atol=0.0)
    structure.check()
    # In pairs, so that dependence between neighbours would show.
    pairs = list(zip(indices[::2].tolist(), indices[1::2].tolist(), strict=True))
    assert chi_square(pairs, dict(ordered_samples(p, 2, replacement=True))) > FALSE_ALARM


@every_case
@pytest.mark.parametrize("size", [2, 5])
def test_draws_without_replacement_follow_the_probabilities(kind: Kind, case: str, size: int) -> None:
    values, floor = CASES[case][0], kind.floor(CASES[case][1])
    structure = reached(kind, values)
    generator = np.random.default_rng(22)
    p = structure.probabilities(floor)
    size = min(size, int(np.count_nonzero(p)))
    draws = []
    for _ in range(DRAWS // 10):
        indices, found = structure.draw(size, replacement=False, generator=generator, floor=floor)
        draws.append(tuple(indices.tolist()))
    assert np.allclose(found, p[indices], rtol=1e-12, atol=0.0)
    structure.check()
    assert chi_square(draws, dict(ordered_samples(p, size, replacement=False))) > FALSE_ALARM


@every_kind
def test_draws_in_small_batches_follow_the_probabilities(kind: Kind) -> None:
    # Batches of all sizes, since large ones may be drawn in another way.
    structure = reached(kind, np.geomspace(0.1, 100.0, 40).tolist())
    floor, generator = kind.floor(0.01), np.random.default_rng(23)
    p = structure.probabilities(floor)
    draws: list[tuple[int, ...]] = []
    for size in (0, 1, 2, 15, 16, 17, 1000) * max(1, DRAWS // 4000):
        indices, _ = structure.draw(size, replacement=True, generator=generator, floor=floor)
        draws += [(index,) for index in indices.tolist()]
    assert chi_square(draws, {(i,): chance for i, chance in enumerate(p.tolist())}) > FALSE_ALARM


@every_kind
def test_sets_many_aside_and_puts_them_back(kind: Kind) -> None:
    # A few have nearly all of the mass, and most of the rest is drawn too: through many pages.
    n = 2000 if compiled else 300
    generator = np.random.default_rng(2)
    values = np.where(np.arange(n) % 100 == 0, 1e6, generator.lognormal(0.0, 1.0, n))
    structure = kind.make(values)
    before = structure.state()
    for size in (n // 50, n // 2, n - 1, n):
        indices, p = structure.draw(size, replacement=False, generator=generator, floor=kind.floor(1e-9))
        assert len(np.unique(indices)) == size and p.sum() <= 1.0 + 1e-9
        structure.check()
        assert_same_state(structure.state(), before)


@every_kind
def test_draws_nothing(kind: Kind) -> None:
    structure = kind.make([1.0, 2.0])
    for replacement in (True, False):
        generator = np.random.default_rng(0)
        indices, p = structure.draw(0, replacement=replacement, generator=generator)
        assert len(indices) == len(p) == 0
        assert generator.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("kind", [KINDS[name] for name in ("Buckets", "SortedNorms", "CalibratedCells", "WeightTree")])
def test_without_a_floor_zeros_are_never_drawn(kind: Kind) -> None:
    structure, generator = kind.make([0.0, 3.0, 0.0, 1.0]), np.random.default_rng(3)
    assert np.allclose(structure.probabilities(), [0.0, 0.75, 0.0, 0.25], rtol=1e-15, atol=0.0)
    for _ in range(100):
        assert set(structure.draw(2, replacement=False, generator=generator)[0].tolist()) == {1, 3}
        assert set(structure.draw(5, replacement=True, generator=generator)[0].tolist()) <= {1, 3}
    with pytest.raises(ValueError, match="size = 3: fewer examples have a probability above 0"):
        structure.draw(3, replacement=False, generator=generator)
    structure.check()


@every_kind
def test_the_largest_value_can_take_almost_all(kind: Kind) -> None:
    structure = reached(kind, [1.0, 1e30, 1.0, 1.0])
    p, generator = structure.probabilities(), np.random.default_rng(4)
    assert p.argmax() == 1 and p[1] > 0.3
    indices, found = structure.draw(10, replacement=True, generator=generator)
    assert np.array_equal(found, structure.probabilities()[indices])
    kind.change(structure, np.array([1]), np.array([1.0]))  # and leaves no trace
    structure.check()
    if isinstance(structure, Buckets | SortedNorms | WeightTree):
        assert structure.probabilities().tolist() == [0.25] * 4


# --- states --------------------------------------------------------------------------------


def assert_same_state(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert state.keys() == other.keys()
    for name in state:
        assert np.array_equal(state[name], other[name])


def changed(kind: Kind, n: int, seed: int) -> Structure:
    generator = np.random.default_rng(seed)
    structure = kind.make(generator.lognormal(0.0, 2.0, n))
    for _ in range(30):
        kind.change(structure, generator.integers(0, n, 5), generator.lognormal(0.0, 2.0, 5))
    return structure


@every_kind
@pytest.mark.compiled
def test_resumes_with_the_same_draws(kind: Kind) -> None:
    n = 50
    structure = changed(kind, n, seed=6)
    state = structure.state()
    assert all(isinstance(value, np.ndarray | int | float) for value in state.values())
    twin = type(structure).from_state(state, n, **kind.arguments)
    twin.check()
    assert_same_state(twin.state(), state)
    one, two = np.random.default_rng(7), np.random.default_rng(7)
    for step in range(20):
        for replacement in (True, False):
            arguments: dict[str, Any] = {"replacement": replacement, "floor": kind.floor(0.001)}
            ours, p = structure.draw(20, generator=one, **arguments)
            theirs, q = twin.draw(20, generator=two, **arguments)
            assert ours.tolist() == theirs.tolist() and p.tolist() == q.tolist()
        values = np.linspace(0.1, 3.0, 20) + step
        for each in (structure, twin):
            kind.change(each, ours, values)
            each.check()
    assert_same_state(twin.state(), structure.state())


@every_kind
def test_a_state_is_a_copy(kind: Kind) -> None:
    structure = changed(kind, 20, seed=8)
    state = structure.state()
    copy = {name: np.copy(value) for name, value in state.items()}
    twin = type(structure).from_state(state, 20, **kind.arguments)
    for each in (structure, twin):
        kind.change(each, np.arange(20), np.full(20, 2.5))
    assert_same_state(state, copy)


@every_kind
def test_refuses_a_damaged_state(kind: Kind) -> None:
    structure = changed(kind, 4, seed=9)
    state = structure.state()
    for name, value in state.items():
        damaged: list[Any] = [np.nan, "text", None]
        if isinstance(value, np.ndarray):
            damaged += [value[:-1], value.astype(np.float32), value.reshape(-1, 1), np.full_like(value, -1), value * 0]
        for other in damaged:
            if name.endswith("tallies") and np.array_equal(other, value * 0):
                continue  # nothing observed is a state, too
            if name == "weights" and np.array_equal(other, value * 0):
                continue  # as are weights that are all zero
            if name == "norms" and np.array_equal(other, value * 0):
                continue  # so are norms that are all zero
            with pytest.raises(ValueError, match=rf"state\['{name}'\]"):
                type(structure).from_state({**state, name: other}, 4, **kind.arguments)
        with pytest.raises(ValueError, match=f"state lacks '{name}'"):
            type(structure).from_state({key: each for key, each in state.items() if key != name}, 4, **kind.arguments)
    with pytest.raises(ValueError, match=r"has shape \(4,\)"):
        type(structure).from_state(state, 5, **kind.arguments)


# --- bad input, and what is kept -----------------------------------------------------------


@every_kind
def test_refuses_bad_input(kind: Kind) -> None:
    structure = kind.make([1.0, 2.0])
    generator = np.random.default_rng(0)
    for floor in (np.nan, -0.1, np.inf):
        with pytest.raises(ValueError, match=f"floor = {floor}: must be finite and not negative"):
            structure.probabilities(floor)
        with pytest.raises(ValueError, match=f"floor = {floor}"):
            structure.draw(1, replacement=True, generator=generator, floor=floor)
    with pytest.raises(ValueError, match="size = 3: fewer examples"):
        structure.draw(3, replacement=False, generator=generator)


def test_a_weight_tree_takes_no_floor() -> None:
    tree, generator = WeightTree([1.0, 2.0]), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"floor = 0.1: a WeightTree takes none"):
        tree.probabilities(0.1)
    with pytest.raises(ValueError, match=r"floor = 0.1: a WeightTree takes none"):
        tree.draw(1, replacement=True, generator=generator, floor=0.1)
    assert generator.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("make", [Buckets, SortedNorms, lambda v: CalibratedCells(v, prior=1.0), WeightTree])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda make: make([]), "n = 0: must be at least 1"),
        (lambda make: make([1.0, np.nan]), r"(norms|weights)\[1\] = nan"),
        (lambda make: make([1.0, 2.0]).update([2], [1.0]), r"indices\[0\] = 2"),
        (lambda make: make([1.0, 2.0]).update([0], [-1.0]), r"values\[0\] = -1.0"),
        (lambda make: make([1.0, 2.0]).update([0], [1.0, 2.0]), "values has length 2"),
    ],
)
def test_refuses_bad_values(make: Callable[..., Structure], wrong: Callable[..., None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(make)


@pytest.mark.parametrize("make", [Buckets, SortedNorms, WeightTree])
def test_the_last_value_of_a_repeated_index_counts(make: Callable[..., Structure]) -> None:
    structure = make([1.0, 2.0, 3.0])
    structure.update([1, 0, 1], [7.0, 8.0, 9.0])
    structure.check()
    assert structure.probabilities().tolist() == [0.4, 0.45, 0.15]


@every_kind
@pytest.mark.parametrize("n", [1, 1000, 10**6 if compiled else 2000])
def test_memory(kind: Kind, n: int) -> None:
    if n > 10_000 and kind is KINDS["SortedNorms"]:
        n = 10_000  # it takes long to build
    structure = kind.make(np.ones(n))
    assert structure.nbytes <= kind.bytes_per_example * n + 8_200_000


@pytest.mark.skipif(not compiled, reason="nothing is compiled here")
@pytest.mark.parametrize(
    "module",
    [
        buckets,
        cells,
        float_codes,
        without_replacement,
        uniform_draws,
        calibrated_cells,
        sorted_norms,
        weight_tree,
    ],
    ids=lambda module: module.__name__,
)
def test_kernels_release_the_gil_and_are_cached(module: ModuleType) -> None:
    assert_kernels_release_the_gil_and_are_cached(module)
