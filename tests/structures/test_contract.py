"""The contract of all structures: each draws by its probabilities, is checked, saved and loaded alike."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from avare._randomness import uniform_source
from avare.structures import Buckets, Expectations, OrderTree, Structure, Weights
from avare.structures.base import Memory
from avare.structures.floored import Floored
from laws import FALSE_ALARM, chi_square, ordered_samples

DRAWS = 20_000 if not numba.config.DISABLE_JIT else 1_000
Values = NDArray[np.float64]


def floored(values: Values) -> Floored:
    """Probabilities in proportion to the values, which are 1 at least, with the floor 0.3 / n."""
    found = Floored(len(values), 0.3)
    found.push(np.arange(len(values)), np.log(values))
    return found


MAKERS: dict[str, Callable[[Values], Structure]] = {
    "Buckets": Buckets,
    "Expectations": lambda values: Expectations(values, prior=1.0),
    "OrderTree": OrderTree,
    "Weights": Weights,
    "Floored": lambda values: floored(np.maximum(values, 1.0)),
}
CONSTANTS: dict[str, dict[str, Any]] = {"Expectations": {"prior": 1.0}, "Floored": {"share": 0.3}}
CASES = {
    "uneven": np.array([3.0, 1.0, 0.0, 40.0, 2.5]),
    "one": np.array([7.0]),
    "all zero": np.zeros(4),
    "one huge": np.array([1.0, 1e30, 2.0, 5.0]),
    "equal": np.full(3, 2.0),
}
all_structures = pytest.mark.parametrize("name", MAKERS)
all_cases = pytest.mark.parametrize("case", CASES)


def floor_of(structure: Structure) -> float:
    return 0.02 if structure.takes_floor else 0.0


def test_all_structures_are_here() -> None:
    def below(kind: Any) -> set[str]:
        return {kind.__name__}.union(*map(below, kind.__subclasses__()))

    assert below(Structure) - {"Structure", "Memory"} == set(MAKERS)


@all_structures
@all_cases
@pytest.mark.parametrize("replacement", [True, False])
def test_draws_follow_the_probabilities(name: str, case: str, replacement: bool) -> None:
    # Without a floor and without replacement, the law itself needs what is left of 1 after the first draw.
    values = CASES[case] if replacement else np.minimum(CASES[case], 1e6)
    structure = MAKERS[name](values)
    if structure.with_replacement_only and not replacement:
        with pytest.raises(ValueError, match=f"replacement = False: {name} draws with replacement only"):
            structure.draw(1, replacement=False, source=(0, 0))
        return
    floor = floor_of(structure)
    p = structure.probabilities(floor)
    assert p.sum() == pytest.approx(1.0, abs=1e-12) and (p >= min(floor, 1.0 / structure.n) * (1.0 - 1e-12)).all()
    size = 2 if replacement else min(2, int(np.count_nonzero(p)))
    generator = np.random.default_rng(1)
    draws = []
    for _ in range(DRAWS):
        indices, found = structure.draw(size, replacement=replacement, source=uniform_source(generator), floor=floor)
        assert np.allclose(found, p[indices], rtol=1e-12)
        draws.append(tuple(indices.tolist()))
    structure.check()
    assert chi_square(draws, dict(ordered_samples(p, size, replacement))) > FALSE_ALARM


@all_structures
@all_cases
def test_continues_with_the_same_draws(name: str, case: str) -> None:
    structure = MAKERS[name](CASES[case])
    if isinstance(structure, Memory):
        structure.update([0, structure.n - 1, 0], [2.0, 9.0, 6.0])
        structure.check()
    kind: Any = type(structure)
    twin: Structure = kind.from_state(structure.state(), structure.n, **CONSTANTS.get(name, {}))
    twin.check()
    floor = floor_of(structure)
    assert twin.probabilities(floor).tolist() == structure.probabilities(floor).tolist()
    one, two = np.random.default_rng(2), np.random.default_rng(2)
    for _ in range(20):
        ours, p = structure.draw(3, replacement=True, source=uniform_source(one), floor=floor)
        theirs, q = twin.draw(3, replacement=True, source=uniform_source(two), floor=floor)
        assert ours.tolist() == theirs.tolist() and p.tolist() == q.tolist()
    assert all(isinstance(each, np.ndarray | int | float) for each in structure.state().values())


@all_structures
def test_refuses_damaged_states(name: str) -> None:
    structure = MAKERS[name](np.array([3.0, 1.0, 2.0]))
    kind: Any = type(structure)
    state, constants = structure.state(), CONSTANTS.get(name, {})
    for key, value in state.items():
        with pytest.raises(ValueError, match=f"state lacks '{key}'"):
            kind.from_state({other: state[other] for other in state if other != key}, 3, **constants)
        for damaged in [value[:-1], value.astype(np.float32)] if isinstance(value, np.ndarray) else [np.inf, "text"]:
            with pytest.raises(ValueError, match=rf"state\['{key}'\]"):
                kind.from_state({**state, key: damaged}, 3, **constants)
    with pytest.raises(ValueError, match="state"):
        kind.from_state(state, 4, **constants)


@all_structures
def test_refuses_bad_input(name: str) -> None:
    structure, generator = MAKERS[name](np.array([3.0, 1.0, 2.0])), np.random.default_rng(0)
    for floor in (-0.1, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"floor = {floor}"):
            structure.probabilities(floor)
    if not structure.takes_floor:
        with pytest.raises(ValueError, match=f"floor = 0.1: {name} accepts no floor"):
            structure.probabilities(0.1)
    if isinstance(structure, Memory):
        before = structure.probabilities().tolist()
        for indices, values in (([3], [1.0]), ([-1], [1.0]), ([0], [-1.0]), ([0], [np.nan]), ([0, 1], [1.0])):
            with pytest.raises(ValueError, match=r"indices|values"):
                structure.update(indices, values)
        assert structure.probabilities().tolist() == before
    if not structure.with_replacement_only:
        with pytest.raises(ValueError, match="size = 4: fewer examples have a probability above 0"):
            structure.draw(4, replacement=False, source=uniform_source(generator))


@all_structures
def test_arrays_are_counted(name: str) -> None:
    def size(arrays: tuple[Any, ...]) -> int:
        return sum(size(each) if isinstance(each, tuple) else each.nbytes for each in arrays)

    structure = MAKERS[name](np.ones(1000))
    assert structure.nbytes == size(structure.arrays) > 8_000
