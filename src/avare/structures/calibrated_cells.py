"""Draws in proportion to the norm that is *expected* of each example, given the norm remembered.

Examples are grouped by the norm h remembered of them, into the cells of `cells`. Examples never seen
are in a separate cell, apart from those seen with norm 0. Each cell counts the norms n that its members
showed later, and sums up their squares; recent ones have more weight. The norm expected of a member is

    sqrt(v),  v = (sum n^2 + prior * h^2) / (count + prior),

with h the mean over the members. For the cell of examples never seen, the mean of v over all other
examples replaces h^2. Then ``p_i = max(sqrt(v), e) / Z``, with e such that no p is below a given floor:
Lemma 1 over the cells with their counts, exactly.

*Forget.* Instead of decreasing the weight of old squares, the weight of new ones increases, in constant
time. Before it becomes too large, everything is divided by a power of two.

*Solve.* ``e - floor * Z(e)`` is concave and piecewise linear. Newton's method from 0 increases to its
root in a few passes over the cells in use, and stops there exactly.

*Draw.* Choose a cell by its mass, by bisection, then a uniform member: no rejection. One uniform
number serves both choices. Draws without replacement are in `without_replacement`.

*Example.* Of the norms 4.0, 4.0, 1.0, the first is now observed to be 2.0. The cell of 4.0 then expects
v = (4 + 16) / 2 = 10 of its other member. In proportion to 2, sqrt(10) and 1, for the floor 0.1,
p = (0.325, 0.513, 0.162).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel, merged
from avare._randomness import next_uniform
from avare.state import Field, State, refuse_unless
from avare.structures import cells as layout
from avare.structures import float_codes as floats
from avare.structures.cells import COUNT, LOW, MAX_EXAMPLES, PRESENT, SUM, TOP, Cells, code_of, index_of, slot_of
from avare.structures.without_replacement import draw_distinct, draw_members

_UNSEEN = 1 << floats.CELL_SHIFT  # the code of examples never seen: in octave 0, next to the zeros
_UNSEEN_CELL = _UNSEEN >> floats.CELL_SHIFT
_SQUARES, _OBSERVED = 0, 1  # columns of `tallies`
_LARGEST_SCALE = 2.0**64
_LARGEST_SQUARE = 2.0**257  # of a norm; rounded
_MOST_OBSERVED = 2.0**63 * _LARGEST_SCALE
_FORGOTTEN = 2.0**-700  # squares whose number has been rounded to zero


class Calibration(NamedTuple):
    """The remembered and the expected norm of each cell, from small norms to large ones.

    >>> cells = Calibration(np.array([90, 10]), np.array([0.5, 2.0]), np.array([0.6, 1.8]), np.array([40.0, 25.0]))
    >>> float(cells.members @ cells.expected / cells.members.sum())  # the mean norm to expect
    0.72
    """

    members: NDArray[np.int64]
    """How many examples are in the cell."""
    remembered: NDArray[np.float64]
    """The mean norm remembered of them; NaN for examples never seen, which come first."""
    expected: NDArray[np.float64]
    """The norm expected of them: the root of the mean square."""
    observations: NDArray[np.float64]
    """How many norms the expectation is based on; older ones count for less."""


class _Arrays(NamedTuple):
    """Everything the kernels read and write. The first nine arrays are those of `cells`."""

    members: NDArray[np.int64]
    slots: NDArray[np.int32]
    octaves: NDArray[np.int64]
    cells: NDArray[np.int64]
    directory: NDArray[np.int32]
    tables: NDArray[np.int32]
    free_pages: NDArray[np.int32]
    free_tables: NDArray[np.int32]
    registers: NDArray[np.int64]
    tallies: NDArray[np.float64]  # by cell: sum of squared norms observed, and their number, in units of 1 / scale
    scale: NDArray[np.float64]  # one number: the weight of a norm observed now
    used: NDArray[np.int64]  # cells in use; this and the arrays below are scratch for one draw, in the same order
    counts: NDArray[np.int64]
    masses: NDArray[np.float64]  # the norm expected of a member; after flooring, its mass
    starts: NDArray[np.float64]  # the mass of all cells before
    ranks: NDArray[np.int64]  # by cell: its place in `used`


class _Law(NamedTuple):
    """How to draw: from the first cells in `used`."""

    size: int  # how many
    total: float  # their mass


class CalibratedCells(Cells):
    """Norms of n examples: learn what to expect of them, and draw, in O(1).

    Norms are rounded and bounded as in `Buckets`.

    Memory: 13 bytes per example, and 4 MB.

    >>> import numpy as np
    >>> expectations = CalibratedCells([4.0, 4.0, 1.0], prior=1.0)
    >>> expectations.update([0], [2.0])
    >>> expectations.probabilities(floor=0.1).round(3)
    array([0.325, 0.513, 0.162])
    >>> CalibratedCells.unseen(3, prior=1.0).probabilities(floor=0.1).round(3)
    array([0.333, 0.333, 0.333])
    """

    _arrays: _Arrays
    _code_of_new = _UNSEEN

    def __init__(self, norms: ArrayLike, *, prior: float) -> None:
        """Build from norms that were seen, finite and not negative, and the weight of the prior, above 0. O(N)."""
        values = validation.nonnegative("norms", norms)
        self.n = validation.integer("n", len(values), at_least=1, at_most=MAX_EXAMPLES)
        self.prior = prior
        self._arrays = _allocate(self.n)
        layout.load(self._arrays, layout.NO_MEMBERS, values)

    @classmethod
    def unseen(cls, n: int, *, prior: float) -> "CalibratedCells":
        """Build with no norm seen. O(N)."""
        return cls._of_members(n, np.arange(n) | _UNSEEN << layout.INDEX_BITS, prior)

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], n: int, present: int | None = None, *, prior: float
    ) -> "CalibratedCells":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N)."""
        members = layout.members_of(state, "expectations_members", n, present, lowest=_UNSEEN)
        scale = Field(float, at_least=1.0, at_most=_LARGEST_SCALE).read(state, "expectations_scale")
        tallies = Field(np.float64, (floats.CELLS, 2), at_least=0.0).read(state, "expectations_tallies")
        most = np.full((floats.CELLS, 2), _MOST_OBSERVED)
        most[:, _SQUARES] = np.minimum(tallies[:, _OBSERVED], _MOST_OBSERVED) * _LARGEST_SQUARE + _FORGOTTEN
        refuse_unless(tallies <= most, tallies, "state['expectations_tallies']", "no norms can have this sum")
        self = cls._of_members(n, members, prior)
        self._arrays.scale[0], self._arrays.tallies[:] = scale, tallies
        return self

    @classmethod
    def _of_members(cls, n: int, members: NDArray[np.int64], prior: float) -> "CalibratedCells":
        self = cls.__new__(cls)
        self.n, self.prior = n, prior
        self._arrays = _allocate(self.n)
        layout.load(self._arrays, members, layout.NO_NORMS)
        return self

    def state(self) -> State:
        """Return the members, cell by cell, and the tallies of all cells. O(N)."""
        return {
            "expectations_members": layout.export(self._arrays),
            "expectations_tallies": self._arrays.tallies.copy(),
            "expectations_scale": float(self._arrays.scale[0]),
        }

    def calibration(self) -> Calibration:
        """Return the remembered and the expected norm of each cell. O(1)."""
        return Calibration(*_calibration(self._arrays, self.prior))

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64], *, keep: float = 1.0) -> None:
        """Replace the norms remembered, without any checks, and learn from the new ones. O(1) each.

        First the weight of all earlier observations is multiplied by ``keep``, above 0. Then each new
        norm counts as an observation of the cell that its example was in before. If an index is
        repeated, all its norms count, and the last one is remembered.
        """
        learn(self._arrays, keep, indices, values)

    def _with_room(self, room: int) -> "CalibratedCells":
        return CalibratedCells.from_state(self.state(), room, int(self._arrays.registers[PRESENT]), prior=self.prior)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        return _probabilities(self._arrays, self.prior, floor)[: self.n]

    def _draw(self, floor: float, *arguments: Any) -> bool:
        return bool(draw(self._arrays, self.prior, floor, *arguments))

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        a = self._arrays
        codes = layout.check_cells(a)
        assert np.isin(codes[codes < floats.CODE_SMALLEST], [0, _UNSEEN]).all(), "a code is out of range"
        assert np.isfinite(a.tallies).all() and (a.tallies >= 0.0).all(), "a tally is out of range"
        assert 1.0 <= a.scale[0] <= _LARGEST_SCALE, "the scale is out of range"


def _allocate(n: int) -> _Arrays:
    return _Arrays(
        **layout.allocate(n),
        tallies=np.zeros((floats.CELLS, 2), dtype=np.float64),
        scale=np.ones(1, dtype=np.float64),
        used=np.empty(floats.CELLS, dtype=np.int64),
        counts=np.empty(floats.CELLS, dtype=np.int64),
        masses=np.empty(floats.CELLS, dtype=np.float64),
        starts=np.empty(floats.CELLS + 1, dtype=np.float64),
        ranks=np.empty(floats.CELLS, dtype=np.int64),
    )


# --- updates -------------------------------------------------------------------------------


@merged
def learn(arrays, keep, indices, norms, unit=1.0, share=0.0):
    """Tally norms in the cells of their examples; then remember them, or averages: see `avare.samplers.memory`."""
    scale = arrays.scale[0] / max(keep, 1.0 / _LARGEST_SCALE)
    for j in range(len(indices)):
        norm = floats.value_of(floats.encode(norms[j] / unit))
        cell = code_of(arrays.members[arrays.slots[indices[j]]]) >> floats.CELL_SHIFT
        arrays.tallies[cell, _SQUARES] += scale * norm * norm
        arrays.tallies[cell, _OBSERVED] += scale
    arrays.scale[0] = scale
    if scale > _LARGEST_SCALE:
        _shrink(arrays.tallies, arrays.scale)
    for j in range(len(indices)):
        old = code_of(arrays.members[arrays.slots[indices[j]]])
        layout.recode(arrays, indices[j], old, floats.encode_square_average(old, norms[j] / unit, share))


@inlined
def _shrink(tallies, scale):
    """Divide all by a power of two: only observations of almost no weight are rounded."""
    factor = math.ldexp(1.0, 1 - math.frexp(scale[0])[1])
    scale[0] *= factor
    for cell in range(floats.CELLS):
        tallies[cell, _SQUARES] *= factor
        tallies[cell, _OBSERVED] *= factor


# --- Lemma 1 -------------------------------------------------------------------------------


@inlined
def _expect(arrays, prior):
    """List the cells in use, with their counts and, as masses, the expected norms; return how many.

    Examples never seen come first, then the zeros, then the others from small norms to large ones.
    """
    registers, octaves, cells, tallies = arrays.registers, arrays.octaves, arrays.cells, arrays.tallies
    used, counts, masses = arrays.used, arrays.counts, arrays.masses
    layout.narrow(registers, octaves)
    weight = prior * arrays.scale[0]
    squares, seen = 0.0, 0
    unseen = cells[_UNSEEN_CELL, COUNT]
    size = 1 if unseen > 0 else 0
    octave = 0
    while octave <= registers[TOP]:
        if octaves[octave, COUNT] > 0:
            unit = floats.unit_of(octave)
            for cell in range(octave * floats.CELLS_PER_OCTAVE, (octave + 1) * floats.CELLS_PER_OCTAVE):
                count = cells[cell, COUNT]
                if count > 0 and cell != _UNSEEN_CELL:
                    norm = cells[cell, SUM] * unit / count
                    square = (tallies[cell, _SQUARES] + weight * norm * norm) / (tallies[cell, _OBSERVED] + weight)
                    squares += count * square
                    seen += count
                    used[size], counts[size], masses[size] = cell, count, math.sqrt(square)
                    size += 1
        octave = octave + 1 if octave > 0 else registers[LOW]
    if unseen > 0:
        observed, total = tallies[_UNSEEN_CELL, _OBSERVED], tallies[_UNSEEN_CELL, _SQUARES]
        square = (total + weight * squares / seen) / (observed + weight) if seen > 0 else 0.0
        used[0], counts[0], masses[0] = _UNSEEN_CELL, unseen, math.sqrt(square)
    return size


@inlined
def _solve(arrays, prior, floor):
    """List the cells with a mass above 0, with their counts, masses and starts; return how to draw from them."""
    used, counts, masses = arrays.used, arrays.counts, arrays.masses
    listed = _expect(arrays, prior)
    highest = 0.0
    for k in range(listed):
        highest = max(highest, masses[k])
    if highest == 0.0 or floor * arrays.registers[PRESENT] >= 1.0:  # uniform: a threshold above all
        threshold = max(highest, 1.0)
    else:
        threshold, more = -1.0, 0.0
        while more > threshold:  # Newton's method from below: it stops when no mass crosses the threshold any more
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
    return _Law(size, _sum_up(arrays, size, 0))


@inlined
def _sum_up(arrays, size, first):
    """Set the starts of the cells after a first one; return the mass of all."""
    counts, masses, starts = arrays.counts, arrays.masses, arrays.starts
    if first == 0:
        starts[0] = 0.0
    for k in range(first, size):
        starts[k + 1] = starts[k] + counts[k] * masses[k]
    return starts[size]


@kernel
def _probabilities(arrays, prior, floor):
    law = _solve(arrays, prior, floor)
    by_cell = np.zeros(floats.CELLS, dtype=np.float64)
    for k in range(law.size):
        by_cell[arrays.used[k]] = arrays.masses[k] / law.total
    probabilities = np.zeros(len(arrays.slots), dtype=np.float64)
    for index in range(len(probabilities)):
        slot = arrays.slots[index]
        if slot > 0:
            probabilities[index] = by_cell[code_of(arrays.members[slot]) >> floats.CELL_SHIFT]
    return probabilities


@kernel
def _calibration(arrays, prior):
    size = _expect(arrays, prior)
    remembered, observations = np.empty(size, dtype=np.float64), np.empty(size, dtype=np.float64)
    for k in range(size):
        cell = arrays.used[k]
        unit = floats.unit_of(cell >> (floats.MANTISSA_BITS - floats.CELL_SHIFT))
        remembered[k] = arrays.cells[cell, SUM] * unit / arrays.counts[k] if cell != _UNSEEN_CELL else np.nan
        observations[k] = arrays.tallies[cell, _OBSERVED] / arrays.scale[0]
    return arrays.counts[:size].copy(), remembered, arrays.masses[:size].copy(), observations


# --- draws ---------------------------------------------------------------------------------


@inlined
def _find(starts, size, x):
    """Return the last of the cells that starts at or before x."""
    k = 0
    while size > 1:
        half = size >> 1
        k = k + half if starts[k + half] <= x else k
        size -= half
    return k


@merged
def _propose(arrays, law, source, slots, indices, masses):
    """Draw members with replacement: the slot, index and mass of each.

    In passes, so that the loads of one pass do not wait for each other.
    """
    members, directory, tables = arrays.members, arrays.directory, arrays.tables
    used, counts, cell_masses, starts = arrays.used, arrays.counts, arrays.masses, arrays.starts
    for j in range(len(slots)):
        x = next_uniform(source) * law.total
        k = _find(starts, law.size, x)
        while counts[k] == 0:  # all of its members are set aside, and x was rounded up to the end
            k -= 1
        member = min(np.int64((x - starts[k]) / cell_masses[k]), counts[k] - 1)
        slots[j], masses[j] = slot_of(directory, tables, used[k], member), cell_masses[k]
    for j in range(len(slots)):
        indices[j] = index_of(members[slots[j]])


@merged
def _exclude(arrays, law, codes, is_first):
    changed = 0
    if is_first:
        for k in range(law.size):
            arrays.ranks[arrays.used[k]] = k
            arrays.counts[k] = arrays.cells[arrays.used[k], COUNT]
    else:
        changed = arrays.ranks[codes[0] >> floats.CELL_SHIFT]
        arrays.counts[changed] -= 1
    return _Law(law.size, _sum_up(arrays, law.size, changed))


@merged
def draw(arrays, prior, floor, replacement, source, indices, probabilities, left):
    """Draw indices, without replacement also what is left before each; return whether there are enough."""
    law = _solve(arrays, prior, floor)
    available = 0
    for k in range(law.size):
        available += arrays.counts[k]
    return draw_members(
        arrays, law, available, law.total, replacement, source, indices, probabilities, left, _propose, _draw_distinct
    )


@kernel
def _draw_distinct(arrays, law, source, indices, masses, left):
    draw_distinct(arrays, law, source, indices, masses, left, _propose, _exclude)
