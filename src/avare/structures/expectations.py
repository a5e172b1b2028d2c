"""Draws in proportion to the norm that is *expected* of each example, given the one remembered.

Examples are grouped by the norm h that is remembered of them, into the cells of `cells`; those
never seen are a cell of their own, apart from those seen with norm 0. Each cell tallies the
squared norms n^2 that its members showed since, and how many, with later ones counting for more.
Its members are expected to show, at the root of the mean square,

    sqrt(v),  v = (sum n^2 + prior * h^2) / (count + prior),

with h the mean over its members; for the cell of those never seen, the mean of v over all others
stands in for h^2. Then ``p_i = max(sqrt(v), e) / Z``, with e such that no p is below a given
floor: Lemma 1 over the cells with their counts, exactly.

*Forget.* The weight of new squares grows instead of that of old ones falling, in constant time;
before it becomes too large, everything is divided by a power of two.

*Solve.* ``e - floor * Z(e)`` is concave and piecewise linear: Newton's method from 0 goes up to
its root in a few passes over the cells in use, and ends there exactly.

*Draw.* Choose a cell by its mass, by bisection, then a uniform member: no rejection. One uniform
number serves both choices.

*Example.* Of the norms 4.0, 4.0, 1.0, the first is told to be 2.0 now: the cell of 4.0 expects
v = (4 + 16) / 2 = 10 of its other member. In proportion to 2, sqrt(10) and 1, for the floor 0.1,
p = (0.325, 0.513, 0.162).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel, lean
from avare._randomness import Source, next_uniform
from avare.structures.cells import (
    CELL_SHIFT,
    CELLS,
    CELLS_AN_OCTAVE,
    CODE_SMALLEST,
    COUNT,
    INDEX_BITS,
    INDEX_MASK,
    LOW,
    MANTISSA_BITS,
    MARK,
    MAX_EXAMPLES,
    OCTAVES,
    SUM,
    TOP,
    UNMARKED,
    add,
    allocate,
    bring_back,
    check_members,
    encode,
    export,
    fill,
    find_fault,
    mantissa_of,
    move,
    narrow,
    norms_of,
    set_aside,
    settle,
    slot_of,
    unit_of,
    value_of,
)

_UNSEEN = 1 << CELL_SHIFT  # the code of those never seen: in octave 0, beside the zeros
_UNSEEN_CELL = _UNSEEN >> CELL_SHIFT
_SQUARES, _TOLD = 0, 1  # columns of `tallies`
_LARGEST_SCALE = 2.0**64


class Calibration(NamedTuple):
    """What is remembered and what is expected, cell by cell, from small norms to large ones."""

    members: NDArray[np.int64]
    """How many examples are in the cell."""
    remembered: NDArray[np.float64]
    """The mean norm remembered of them; nan for those never seen, which come first."""
    expected: NDArray[np.float64]
    """The norm expected of them: the root of the mean square."""
    observations: NDArray[np.float64]
    """How many norms that rests on, older ones counting for less."""


class _Arrays(NamedTuple):
    """Everything the kernels read and write; the first eight are those of `cells`."""

    members: NDArray[np.int64]
    slots: NDArray[np.int32]
    cells: NDArray[np.int64]
    directory: NDArray[np.int32]
    tables: NDArray[np.int32]
    free_pages: NDArray[np.int32]
    free_tables: NDArray[np.int32]
    registers: NDArray[np.int64]
    octaves: NDArray[np.int64]  # by octave: count
    tallies: NDArray[np.float64]  # by cell: sum of squared norms told, how many, both in units of 1 / scale
    scale: NDArray[np.float64]  # one number: the weight of a norm told now
    used: NDArray[np.int64]  # cells in use; this and the rest are scratch for one draw, in the same order
    counts: NDArray[np.int64]
    masses: NDArray[np.float64]  # the norm expected of a member; floored, its mass
    starts: NDArray[np.float64]  # the mass of all cells before


class Expectations:
    """Norms of n examples, from which to learn what to expect, and to draw, in constant time.

    Norms are rounded and bounded as in `Buckets`.

    Memory: 13 bytes an example, and 4 MB.

    >>> import numpy as np
    >>> expectations = Expectations([4.0, 4.0, 1.0], prior=1.0)
    >>> expectations.learn(np.array([0]), np.array([2.0]))
    >>> expectations.probabilities(floor=0.1).round(3)
    array([0.325, 0.513, 0.162])
    >>> Expectations.unseen(3, prior=1.0).probabilities(floor=0.1).round(3)
    array([0.333, 0.333, 0.333])
    """

    def __init__(self, norms: ArrayLike, *, prior: float) -> None:
        """Build from norms that were seen, finite and not negative, and the prior's weight, above 0. O(N)."""
        values = validation.nonnegative("norms", norms)
        self.n = validation.integer("n", len(values), at_least=1, at_most=MAX_EXAMPLES)
        self.prior = prior
        self._arrays = _allocate(self.n)
        _restore(self._arrays, _sorted(values))

    @classmethod
    def unseen(cls, n: int, *, prior: float) -> "Expectations":
        """Build with no norm seen. O(N)."""
        self = cls.__new__(cls)
        self.n = n
        self.prior = prior
        self._arrays = _allocate(n)
        fill(self._arrays, _UNSEEN)
        self._arrays.octaves[0, COUNT] = n
        return self

    @classmethod
    def from_state(cls, state: dict[str, Any], n: int, *, prior: float) -> "Expectations":
        """Build from what `state` gave for n examples; anything else is a ``ValueError``. O(N)."""
        members, tallies, scale = (
            state["expectations_members"],
            state["expectations_tallies"],
            state["expectations_scale"],
        )
        if members.shape != (n,) or members.dtype != np.int64:
            raise ValueError(f"members have shape {members.shape} and dtype {members.dtype}: must be {n} int64")
        if tallies.shape != (CELLS, 2) or tallies.dtype != np.float64:
            raise ValueError(
                f"tallies have shape {tallies.shape} and dtype {tallies.dtype}: must be {CELLS} x 2 float64"
            )
        self = cls.__new__(cls)
        self.n = n
        self.prior = prior
        self._arrays = _allocate(n)
        fault = int(find_fault(self._arrays, members, _UNSEEN))
        if fault >= 0:
            raise ValueError(f"members[{fault}] = {members[fault]}: does not fit what stands before it")
        _restore(self._arrays, members)
        self._arrays.tallies[:] = tallies
        self._arrays.scale[0] = scale
        return self

    def state(self) -> dict[str, Any]:
        """All there is to save, as numbers and arrays. O(N)."""
        return {
            "expectations_members": export(self._arrays),
            "expectations_tallies": self._arrays.tallies.copy(),
            "expectations_scale": float(self._arrays.scale[0]),
        }

    @property
    def arrays(self) -> "_Arrays":
        """What `draw_with_replacement`, `draw_without_replacement` and `learn` take, inside other kernels. O(1)."""
        return self._arrays

    @property
    def nbytes(self) -> int:
        """Bytes held by all arrays, used or not. O(1)."""
        return sum(array.nbytes for array in self._arrays)

    def norms(self) -> NDArray[np.float64]:
        """The norms as they are kept, by index; nan where never seen. O(N)."""
        norms: NDArray[np.float64] = norms_of(self._arrays)
        norms[self._arrays.members[self._arrays.slots] >> INDEX_BITS == _UNSEEN] = np.nan
        return norms

    def calibration(self) -> Calibration:
        """What is remembered and what is expected, cell by cell. O(1)."""
        return Calibration(*_calibration(self._arrays, self.prior))

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64], *, keep: float = 1.0) -> None:
        """Take in norms, which have been checked, and keep this share, above 0, of all earlier weights. O(1) each.

        Each square goes to the cell in which the index stood before; of a repeated index all do,
        and the last norm is remembered.
        """
        learn(self._arrays, keep, indices, norms)

    def probabilities(self, floor: float) -> NDArray[np.float64]:
        """The probability of each example. O(N)."""
        return _probabilities(self._arrays, self.prior, floor)

    def draw(
        self, floor: float, size: int, *, replacement: bool, source: Source
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw indices, in order, and the probability of each before any draw. O(1) each."""
        indices = np.empty(size, dtype=np.int64)
        probabilities = np.empty(size, dtype=np.float64)
        if replacement:
            draw_with_replacement(self._arrays, self.prior, floor, source, indices, probabilities)
        elif not draw_without_replacement(self._arrays, self.prior, floor, source, indices, probabilities):
            raise ValueError(f"size = {size}: fewer examples have a probability above 0, and none comes twice")
        return indices, probabilities

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        a = self._arrays
        codes = check_members(a)
        assert np.isin(codes[codes < CODE_SMALLEST], [0, _UNSEEN]).all(), "a code out of range"
        mantissas = np.zeros(CELLS, dtype=np.int64)
        np.add.at(mantissas, codes >> CELL_SHIFT, [mantissa_of(code) for code in codes])
        assert np.array_equal(a.cells[:, SUM], mantissas), "cell sums are wrong"
        assert np.array_equal(a.octaves[:, COUNT], np.bincount(codes >> MANTISSA_BITS, minlength=OCTAVES)), (
            "octave counts are wrong"
        )
        assert np.isfinite(a.tallies).all() and (a.tallies >= 0.0).all(), "a tally is out of range"
        assert 1.0 <= a.scale[0] <= _LARGEST_SCALE, "the scale is out of range"


def _allocate(n: int) -> _Arrays:
    return _Arrays(
        **allocate(n),
        octaves=np.zeros((OCTAVES, 1), dtype=np.int64),
        tallies=np.zeros((CELLS, 2), dtype=np.float64),
        scale=np.ones(1, dtype=np.float64),
        used=np.empty(CELLS, dtype=np.int64),
        counts=np.empty(CELLS, dtype=np.int64),
        masses=np.empty(CELLS, dtype=np.float64),
        starts=np.empty(CELLS + 1, dtype=np.float64),
    )


# --- updates -------------------------------------------------------------------------------


@lean
def learn(arrays, keep, indices, norms):
    """Tally norms in the cells where their examples stand, then remember them."""
    scale = arrays.scale[0] / max(keep, 1.0 / _LARGEST_SCALE)
    for j in range(len(indices)):
        norm = value_of(encode(norms[j]))
        cell = arrays.members[arrays.slots[indices[j]]] >> (INDEX_BITS + CELL_SHIFT)
        arrays.tallies[cell, _SQUARES] += scale * norm * norm
        arrays.tallies[cell, _TOLD] += scale
    arrays.scale[0] = scale
    if scale > _LARGEST_SCALE:
        _shrink(arrays.tallies, arrays.scale)
    for j in range(len(indices)):
        index, code = indices[j], encode(norms[j])
        slot = np.int64(arrays.slots[index])
        old = arrays.members[slot] >> INDEX_BITS
        cell, old_cell = code >> CELL_SHIFT, old >> CELL_SHIFT
        if cell != old_cell:
            slot = move(arrays, index, slot, old_cell, cell)
            arrays.octaves[old >> MANTISSA_BITS, COUNT] -= 1
            arrays.octaves[code >> MANTISSA_BITS, COUNT] += 1
        arrays.members[slot] = code << INDEX_BITS | index
        add(arrays.cells, old_cell, -1, -mantissa_of(old))
        add(arrays.cells, cell, 1, mantissa_of(code))


@inlined
def _shrink(tallies, scale):
    """Divide all by a power of two: nothing is rounded, but what has long been forgotten."""
    factor = math.ldexp(1.0, 1 - math.frexp(scale[0])[1])
    scale[0] *= factor
    for cell in range(CELLS):
        tallies[cell, _SQUARES] *= factor
        tallies[cell, _TOLD] *= factor


@kernel
def _sorted(norms):
    """Members for norms by index, in the order of their cells."""
    ends = np.zeros(CELLS + 1, dtype=np.int64)
    for index in range(len(norms)):
        ends[(encode(norms[index]) >> CELL_SHIFT) + 1] += 1
    for cell in range(CELLS):
        ends[cell + 1] += ends[cell]
    members = np.empty(len(norms), dtype=np.int64)
    for index in range(len(norms)):
        code = encode(norms[index])
        members[ends[code >> CELL_SHIFT]] = code << INDEX_BITS | index
        ends[code >> CELL_SHIFT] += 1
    return members


@kernel
def _restore(arrays, members):
    """Fill empty arrays from members in the order of their cells."""
    for j in range(len(members)):
        code = members[j] >> INDEX_BITS
        add(arrays.cells, code >> CELL_SHIFT, 1, mantissa_of(code))
        arrays.octaves[code >> MANTISSA_BITS, COUNT] += 1
    settle(arrays, members)


# --- Lemma 1 -------------------------------------------------------------------------------


@inlined
def _expect(arrays, prior):
    """List the cells in use, with their counts and, as masses, expected norms; return how many.

    Those never seen come first, then the zeros, then the others from small norms to large ones.
    """
    registers, octaves, cells, tallies = arrays.registers, arrays.octaves, arrays.cells, arrays.tallies
    used, counts, masses = arrays.used, arrays.counts, arrays.masses
    narrow(registers, octaves)
    weight = prior * arrays.scale[0]
    squares, seen = 0.0, 0
    unseen = cells[_UNSEEN_CELL, COUNT]
    size = 1 if unseen > 0 else 0
    octave = 0
    while octave <= registers[TOP]:
        if octaves[octave, COUNT] > 0:
            unit = unit_of(octave)
            for cell in range(octave * CELLS_AN_OCTAVE, (octave + 1) * CELLS_AN_OCTAVE):
                count = cells[cell, COUNT]
                if count > 0 and cell != _UNSEEN_CELL:
                    norm = cells[cell, SUM] * unit / count
                    square = (tallies[cell, _SQUARES] + weight * norm * norm) / (tallies[cell, _TOLD] + weight)
                    squares += count * square
                    seen += count
                    used[size], counts[size], masses[size] = cell, count, math.sqrt(square)
                    size += 1
        octave = octave + 1 if octave > 0 else registers[LOW]
    if unseen > 0:
        told, total = tallies[_UNSEEN_CELL, _TOLD], tallies[_UNSEEN_CELL, _SQUARES]
        square = (total + weight * squares / seen) / (told + weight) if seen > 0 else 0.0
        used[0], counts[0], masses[0] = _UNSEEN_CELL, unseen, math.sqrt(square)
    return size


@inlined
def _solve(arrays, prior, floor):
    """List the cells that may be drawn from, with counts, masses and starts; return how many."""
    used, counts, masses, starts = arrays.used, arrays.counts, arrays.masses, arrays.starts
    listed = _expect(arrays, prior)
    highest = 0.0
    for k in range(listed):
        highest = max(highest, masses[k])
    if highest == 0.0 or floor * len(arrays.slots) >= 1.0:  # uniform: a threshold above all
        threshold = max(highest, 1.0)
    else:
        threshold, more = -1.0, 0.0
        while more > threshold:  # Newton's method from below: at the last, nothing crosses any more
            threshold = more
            total, below = 0.0, 0
            for k in range(listed):
                if masses[k] > threshold:
                    total += counts[k] * masses[k]
                else:
                    below += counts[k]
            more = floor * total / (1.0 - floor * below)
    size = 0
    for k in range(listed):
        mass = max(masses[k], threshold)
        if mass > 0.0:
            used[size], counts[size], masses[size] = used[k], counts[k], mass
            size += 1
    _weigh(counts, masses, starts, size, 0)
    return size


@inlined
def _weigh(counts, masses, starts, size, first):
    """Sum up the masses of the cells from one on."""
    if first == 0:
        starts[0] = 0.0
    for k in range(first, size):
        starts[k + 1] = starts[k] + counts[k] * masses[k]


@kernel
def _probabilities(arrays, prior, floor):
    size = _solve(arrays, prior, floor)
    by_cell = np.zeros(CELLS, dtype=np.float64)
    for k in range(size):
        by_cell[arrays.used[k]] = arrays.masses[k] / arrays.starts[size]
    probabilities = np.empty(len(arrays.slots), dtype=np.float64)
    for index in range(len(probabilities)):
        probabilities[index] = by_cell[arrays.members[arrays.slots[index]] >> (INDEX_BITS + CELL_SHIFT)]
    return probabilities


@kernel
def _calibration(arrays, prior):
    size = _expect(arrays, prior)
    remembered, observations = np.empty(size, dtype=np.float64), np.empty(size, dtype=np.float64)
    for k in range(size):
        cell = arrays.used[k]
        unit = unit_of(cell >> (MANTISSA_BITS - CELL_SHIFT))
        remembered[k] = arrays.cells[cell, SUM] * unit / arrays.counts[k] if cell != _UNSEEN_CELL else np.nan
        observations[k] = arrays.tallies[cell, _TOLD] / arrays.scale[0]
    return arrays.counts[:size].copy(), remembered, arrays.masses[:size].copy(), observations


# --- draws ---------------------------------------------------------------------------------


@inlined
def _find(starts, size, x):
    """The last of the cells that starts at or before x."""
    k = 0
    while size > 1:
        half = size >> 1
        k = k + half if starts[k + half] <= x else k
        size -= half
    return k


@inlined
def _propose(arrays, size, source, slots, indices, masses):
    """Draw with replacement: where each member drawn stands, its index and its mass.

    In passes, so that the loads of one pass do not wait for each other.
    """
    members, directory, tables = arrays.members, arrays.directory, arrays.tables
    used, counts, cell_masses, starts = arrays.used, arrays.counts, arrays.masses, arrays.starts
    total = starts[size]
    for j in range(len(slots)):
        x = next_uniform(source) * total
        k = _find(starts, size, x)
        while counts[k] == 0:  # all of it was set aside, and x rounded up to the end
            k -= 1
        member = min(np.int64((x - starts[k]) / cell_masses[k]), counts[k] - 1)
        slots[j], masses[j] = slot_of(directory, tables, used[k], member), cell_masses[k]
    for j in range(len(slots)):
        indices[j] = members[slots[j]] & INDEX_MASK


@lean
def draw_with_replacement(arrays, prior, floor, source, indices, probabilities):
    """Draw indices, each from all."""
    size = _solve(arrays, prior, floor)
    _propose(arrays, size, source, indices, indices, probabilities)
    total = arrays.starts[size]
    for j in range(len(indices)):
        probabilities[j] /= total


@kernel
def draw_without_replacement(arrays, prior, floor, source, indices, probabilities):
    """Draw distinct indices; return whether there are enough.

    As in `Buckets`: what was drawn before is dropped until half of the mass is drawn, then drawn
    members are set aside.
    """
    size = _solve(arrays, prior, floor)
    available = 0
    for k in range(size):
        available += arrays.counts[k]
    if len(indices) > available:
        return False
    total = arrays.starts[size]
    slots = np.empty_like(indices)
    done, mass = 0, 0.0
    while done < len(indices) and mass <= 0.5 * total:
        _propose(arrays, size, source, slots[done:], indices[done:], probabilities[done:])
        for j in range(done, len(indices)):
            if mass <= 0.5 * total and arrays.members[slots[j]] >= 0:
                arrays.members[slots[j]] |= MARK
                slots[done], indices[done], probabilities[done] = slots[j], indices[j], probabilities[j]
                mass += probabilities[done]
                done += 1
    if done < len(indices):
        _draw_setting_aside(arrays, size, source, slots, indices, probabilities, done)
    else:
        for j in range(len(indices)):
            arrays.members[slots[j]] &= UNMARKED
    for j in range(len(indices)):
        probabilities[j] /= total
    return True


@kernel
def _draw_setting_aside(arrays, size, source, slots, indices, masses, done):
    """Complete a draw of distinct indices, of which some are done, marked, and stand in ``slots``.

    Each is taken out of the counts of this draw and swapped past the end of its cell. All is put
    back at the end, so that `arrays.slots` need not know.
    """
    counts, starts = arrays.counts, arrays.starts
    listed = np.empty(CELLS, dtype=np.int64)
    for k in range(size):
        listed[arrays.used[k]] = k
    holes, ends = np.empty_like(slots), np.empty_like(slots)
    aside = 0
    for j in range(len(indices)):
        if j == done:
            _weigh(counts, arrays.masses, starts, size, 0)
        if j >= done:
            _propose(arrays, size, source, slots[j : j + 1], indices[j : j + 1], masses[j : j + 1])
            arrays.members[slots[j]] |= MARK
        while arrays.members[slots[j]] < 0:  # else it stood at an end, and went with another of its cell
            cell = (arrays.members[slots[j]] & UNMARKED) >> (INDEX_BITS + CELL_SHIFT)
            k = listed[cell]
            end = slot_of(arrays.directory, arrays.tables, cell, counts[k] - 1)
            holes[aside], ends[aside] = set_aside(arrays.members, slots[j], end), end
            aside += 1
            counts[k] -= 1
            if j >= done:
                _weigh(counts, arrays.masses, starts, size, k)
    for j in range(aside - 1, -1, -1):
        bring_back(arrays.members, holes[j], ends[j])
