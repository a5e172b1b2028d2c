"""Draws with ``p_i = max(h_i, e) / Z`` in O(1) operations, for any number of examples.

The paper keeps its norms in a sorted tree with cumulative sums, at O(N) per step. Lemma 1 does not
need the order *within* a narrow range of norms, so here norms are only grouped, and the counts and
sums of all groups are integers.

A norm is kept as a **code**, an integer that grows with the norm: see `float_codes`. The leading bits of a
code name ever narrower groups:

=========  ==============  ======================================================
octave     ``code >> 23``  norms within a factor 2; 0 contains only the zeros
cell       ``code >> 20``  1/8 of an octave: its members are kept together, see `cells`
bin        ``code >> 13``  1/1024 of an octave: the threshold ``e`` is on its edge
=========  ==============  ======================================================

*Solve.* ``floor(e) = e / Z(e)`` grows with ``e``. Go down from the largest octave, then through the
cells of the octave where it crosses the wanted floor, then through the bins of that cell. If that bin
is empty, this gives ``e`` exactly. Otherwise ``e`` is set to the upper edge of the bin, so that ``p``
is exactly the solution of Lemma 1 for a floor in ``[floor, floor (1 + 2^-10)]``.

*Draw.* Choose an octave by its mass, a cell of it by its mass, and a uniform member. Accept the member
with probability (its mass) / (the largest mass in the cell), which is at least 8/9; cells that are
wholly below ``e`` accept at once. For large batches, a guide to the cells, computed once, replaces the
first two choices. One uniform number serves all three choices: as in inverse-transform sampling, each
``p_i`` is realised up to an absolute error of 2^-53. Draws without replacement are in
`without_replacement`.

*Example.* Norms 1.0, 1.5, 6.0, 0.0: octaves contain {1.0, 1.5}, {6.0} and the zero. For the floor 0.1,
go down from the top. At ``e = 4``, Z = 6 + 3 * 4 = 18 and 4/18 > 0.1, so continue. At ``e = 1``,
Z = 8.5 + 1 = 9.5 and 1/9.5 > 0.1, so continue. Only the zero is left, so
``e = 0.1 * 8.5 / (1 - 0.1)`` = 0.944, Z = 9.444, p = (0.106, 0.159, 0.635, 0.1).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel, lean, merged
from avare._randomness import next_uniform
from avare.state import State
from avare.structures import cells as layout
from avare.structures import float_codes as floats
from avare.structures.base import Solution
from avare.structures.cells import COUNT, LOW, MAX_EXAMPLES, ONE, REGISTERS, SUM, TOP, add, code_of, index_of, slot_of
from avare.structures.without_replacement import draw_distinct, draw_members

_BIN_SHIFT = 13
_BINS = floats.OCTAVES << (floats.MANTISSA_BITS - _BIN_SHIFT)
_BINS_PER_CELL = 1 << (floats.CELL_SHIFT - _BIN_SHIFT)
_BINS_PER_OCTAVE = 1 << (floats.MANTISSA_BITS - _BIN_SHIFT)
_BIN, _PART_COUNT, _PART_SUM = range(REGISTERS, REGISTERS + 3)  # further entries of `registers`
_GUIDE = 512  # parts of the whole mass, each with the cell where it begins
_GUIDED = 16  # the smallest batch for which the guide saves time, if there are not many more cells


class _Arrays(NamedTuple):
    """Everything the kernels read and write. The first nine arrays are those of `cells`."""

    members: NDArray[np.int64]  # by slot: code << 31 | index
    slots: NDArray[np.int32]  # by index: its slot in `members`; 0: absent
    octaves: NDArray[np.int64]  # by octave: count, sum of mantissas
    cells: NDArray[np.int64]  # by cell: count, sum of mantissas
    directory: NDArray[np.int32]  # by cell and k >> 14: its page tables
    tables: NDArray[np.int32]  # page tables: page numbers
    free_pages: NDArray[np.int32]  # a stack of page numbers
    free_tables: NDArray[np.int32]  # a stack of page-table numbers
    registers: NDArray[np.int64]
    """Those of `cells`, the bin of the last threshold, and count and sum of the bins above it in its cell."""
    bins: NDArray[np.int64]  # by bin: count, sum of mantissas
    masses: NDArray[np.float64]  # by octave: scratch for one draw
    cumulative: NDArray[np.float64]  # by cell, from the top: scratch for large batches
    guide: NDArray[np.int32]  # by parts of the whole mass: the first cell to look at; scratch for large batches


class _Law(NamedTuple):
    """How to draw: norms in bins before the first count as the threshold e."""

    threshold: float
    scale: float  # Z
    first: int  # the first bin above the threshold
    above: int  # how many norms are above
    crossing: int  # the cell that contains the threshold
    part_count: int  # count and sum of mantissas of the norms above, in this cell
    part_sum: int
    total: float  # the mass of all members, and of those that are left without replacement
    exact: float  # the total when it was last summed without a subtraction


class Buckets(layout.Cells):
    """Norms of n examples: draw from them, solve Lemma 1 and replace norms in O(1).

    Norms are rounded to 24 significant bits; positive norms outside [2^-149, 2^128) become the nearer
    end of that range. The distribution never affects unbiasedness, only the variance, and within that
    range by less than 2^-24.

    Memory: 12 bytes per example (plus 0.6 for page tables), and about 8 MB.

    >>> import numpy as np
    >>> buckets = Buckets([1.0, 1.5, 6.0, 0.0])
    >>> buckets.probabilities(floor=0.1).round(3)
    array([0.106, 0.159, 0.635, 0.1  ])
    >>> buckets.update([3, 0], [6.0, 0.0])
    >>> buckets.probabilities(floor=0.0).round(3)
    array([0.   , 0.111, 0.444, 0.444])
    >>> generator = np.random.default_rng(0)
    >>> indices, p = buckets.draw(3, floor=0.1, replacement=False, generator=generator)
    >>> len(set(indices.tolist()))
    3
    """

    _arrays: _Arrays

    def __init__(self, norms: ArrayLike) -> None:
        """Build from given norms, finite and not negative. O(N)."""
        values = validation.nonnegative("norms", norms)
        self.n = validation.integer("n", len(values), at_least=1, at_most=MAX_EXAMPLES)
        self._arrays = _allocate(self.n)
        _load(self._arrays, layout.NO_MEMBERS, values)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int, present: int | None = None) -> "Buckets":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N)."""
        self = cls.__new__(cls)
        self.n = n
        members = layout.members_of(state, "members", n, present)
        self._arrays = _allocate(n)
        _load(self._arrays, members, layout.NO_NORMS)
        return self

    def state(self) -> State:
        """Return the code and index of each member, cell by cell. O(N)."""
        return {"members": layout.export(self._arrays)}

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace norms without any checks. O(1) each."""
        store(self._arrays, indices, values)

    def solve(self, floor: float) -> Solution:
        """Return the solution of Lemma 1 for a floor, or for the nearest floor that is possible. O(1)."""
        law = solve(self._arrays, self._checked(floor))
        return Solution(law.threshold / law.scale, law.threshold, law.scale, law.above)

    def _with_room(self, room: int) -> "Buckets":
        return Buckets.from_state(self.state(), room, int(self._arrays.registers[layout.PRESENT]))

    def _changed(self, members: NDArray[np.int64], times: np.int64) -> None:
        _count_bins(self._arrays, members, times)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        return _probabilities(self._arrays, floor)[: self.n]

    def _draw(self, floor: float, *arguments: Any) -> bool:
        return bool(draw(self._arrays, floor, *arguments))

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        a = self._arrays
        codes = layout.check_cells(a)
        assert (codes[codes != 0] >= floats.CODE_SMALLEST).all(), "a code is out of range"
        layout.check_groups("bin", a.bins, codes, _BIN_SHIFT)
        crossing = int(a.registers[_BIN])
        above = slice(crossing + 1, (crossing // _BINS_PER_CELL + 1) * _BINS_PER_CELL)
        kept = (a.registers[_PART_COUNT], a.registers[_PART_SUM])
        assert kept == (a.bins[above, COUNT].sum(), a.bins[above, SUM].sum()), (
            "the count or the sum above the last threshold is wrong"
        )


def _allocate(n: int) -> _Arrays:
    arrays = _Arrays(
        **layout.allocate(n, registers=REGISTERS + 3),
        bins=np.zeros((_BINS, 2), dtype=np.int64),
        masses=np.empty(floats.OCTAVES, dtype=np.float64),
        cumulative=np.empty(floats.CELLS, dtype=np.float64),
        guide=np.empty(_GUIDE, dtype=np.int32),
    )
    arrays.registers[_BIN] = _BINS_PER_CELL - 1
    return arrays


# --- updates -------------------------------------------------------------------------------


@lean
def store(arrays, indices, norms, unit=1.0, share=0.0):
    """Replace the norms of some examples, one after another, or average them: see `avare.samplers.memory`."""
    # Load all members and their bins first: these loads do not wait for each other, those of the moves below do.
    spread = np.int64(0)
    for j in range(len(indices)):
        old = code_of(arrays.members[arrays.slots[indices[j]]])
        spread ^= arrays.bins[old >> _BIN_SHIFT, COUNT] ^ arrays.bins[floats.encode(norms[j]) >> _BIN_SHIFT, COUNT]
    for j in range(len(indices)):
        index = indices[j]
        old = code_of(arrays.members[arrays.slots[index]])
        code = floats.encode_average(old, norms[j] / unit, share)
        if code != old:
            layout.recode(arrays, index, old, code)
            _count_bin(arrays, old, -ONE)
            _count_bin(arrays, code, ONE)
    return spread


@merged
def _count_bin(arrays, code, times):
    """Add a code to the count and sum of its bin, and to those above the last threshold; or remove it (times = -1)."""
    add(arrays.bins, code >> _BIN_SHIFT, times, times * floats.mantissa_of(code))
    crossing = arrays.registers[_BIN]
    if code >> floats.CELL_SHIFT == crossing >> (floats.CELL_SHIFT - _BIN_SHIFT) and code >> _BIN_SHIFT > crossing:
        arrays.registers[_PART_COUNT] += times
        arrays.registers[_PART_SUM] += times * floats.mantissa_of(code)


@kernel
def _count_bins(arrays, members, times):
    for j in range(len(members)):
        _count_bin(arrays, code_of(members[j]), times)


@kernel
def _load(arrays, members, norms):
    """Put members, or those for norms by index, into arrays without any; each cell in the order given."""
    layout.load(arrays, members, norms)
    for j in range(arrays.registers[layout.PRESENT]):
        code = layout.code_at(members, norms, j)
        add(arrays.bins, code >> _BIN_SHIFT, 1, floats.mantissa_of(code))


# --- Lemma 1 -------------------------------------------------------------------------------


@inlined
def solve(arrays, floor):
    """Find the threshold for a floor; return how to draw, without the total, which `weigh` computes."""
    # Unpack once: each access costs two atomic operations, on reference counts.
    octaves, cells, bins, registers = arrays.octaves, arrays.cells, arrays.bins, arrays.registers
    n = registers[layout.PRESENT]
    layout.narrow(registers, octaves)
    top = registers[TOP]
    if top == 0 or floor * n >= 1.0:  # uniform: a threshold above all norms
        threshold = 2.0 * floats.IMPLICIT * floats.unit_of(top)
        return _Law(threshold, n * threshold, _BINS, 0, floats.CELLS - 1, 0, 0, 0.0, 0.0)
    low = registers[LOW]

    # The threshold is below the edge of a group as long as edge / Z(edge) >= floor.
    total, above = 0.0, 0  # of the octaves above
    octave = top
    while octave >= low:
        more, count = total + octaves[octave, SUM] * floats.unit_of(octave), above + octaves[octave, COUNT]
        if floats.IMPLICIT * floats.unit_of(octave) * (1.0 - floor * (n - count)) < floor * more:
            break
        total, above = more, count
        octave -= 1
    if octave < low:  # only the zeros are below
        threshold = floor * total / (1.0 - floor * (n - above))
        scale = total + threshold * (n - above)
        return _Law(threshold, scale, low * _BINS_PER_OCTAVE, above, low * floats.CELLS_PER_OCTAVE - 1, 0, 0, 0.0, 0.0)

    unit = floats.unit_of(octave)
    lowest = octave * floats.CELLS_PER_OCTAVE
    cell, part_sum, part_count = _descend(  # of the cells above, in this octave
        cells, lowest + floats.CELLS_PER_OCTAVE - 1, lowest, floats.CELL_SHIFT, 0, 0, n - above, floor, total, unit
    )
    total, above = total + part_sum * unit, above + part_count

    # Of the bins above, in this cell. Start from the last threshold, because it moves little.
    last = cell * _BINS_PER_CELL + _BINS_PER_CELL - 1
    bin_, part_sum, part_count = last, 0, 0
    if registers[_BIN] >> (floats.CELL_SHIFT - _BIN_SHIFT) == cell:
        bin_, part_sum, part_count = registers[_BIN], registers[_PART_SUM], registers[_PART_COUNT]
    while bin_ < last and (
        floats.value_of((bin_ + 1) << _BIN_SHIFT) * (1.0 - floor * (n - above - part_count))
        < floor * (total + part_sum * unit)
    ):
        bin_ += 1
        part_sum, part_count = part_sum - bins[bin_, SUM], part_count - bins[bin_, COUNT]
    bin_, part_sum, part_count = _descend(
        bins, bin_, cell * _BINS_PER_CELL, _BIN_SHIFT, part_sum, part_count, n - above, floor, total, unit
    )
    registers[_BIN], registers[_PART_SUM], registers[_PART_COUNT] = bin_, part_sum, part_count
    total, above = total + part_sum * unit, above + part_count

    threshold = floats.value_of((bin_ + 1) << _BIN_SHIFT)
    if bins[bin_, COUNT] == 0:
        threshold = min(threshold, floor * total / (1.0 - floor * (n - above)))
    scale = total + threshold * (n - above)
    return _Law(
        threshold, scale, bin_ + 1, above, bin_ >> (floats.CELL_SHIFT - _BIN_SHIFT), part_count, part_sum, 0.0, 0.0
    )


@merged
def _descend(groups, group, lowest, shift, part_sum, part_count, below, floor, total, unit):
    """Go down the groups of an octave while the threshold is below their lower edges.

    Returns the group that contains the threshold, and the sum and count of the groups above it.
    """
    while group > lowest:
        sum_, count = part_sum + groups[group, SUM], part_count + groups[group, COUNT]
        if floats.value_of(group << shift) * (1.0 - floor * (below - count)) < floor * (total + sum_ * unit):
            break
        part_sum, part_count = sum_, count
        group -= 1
    return group, part_sum, part_count


@kernel
def _probabilities(arrays, floor):
    law = solve(arrays, floor)
    probabilities = np.zeros(len(arrays.slots), dtype=np.float64)
    for index in range(len(probabilities)):
        if arrays.slots[index] > 0:
            probabilities[index] = mass_of(arrays, law, index) / law.scale
    return probabilities


# --- masses --------------------------------------------------------------------------------


@inlined
def _mass(code, law):
    """Return max(norm, threshold)."""
    return floats.value_of(code) if code >> _BIN_SHIFT >= law.first else law.threshold


@inlined
def mass_of(arrays, law, index):
    """Return the mass of an example."""
    return _mass(code_of(arrays.members[arrays.slots[index]]), law)


@inlined
def _cell_mass(cells, cell, law):
    """Return the sum over a cell of max(norm, threshold)."""
    unit = floats.unit_of(cell >> (floats.MANTISSA_BITS - floats.CELL_SHIFT))
    if cell > law.crossing:
        return cells[cell, SUM] * unit
    if cell < law.crossing:
        return cells[cell, COUNT] * law.threshold
    return law.part_sum * unit + (cells[cell, COUNT] - law.part_count) * law.threshold


@inlined
def _octave_mass(cells, octaves, octave, law):
    """Return the sum over an octave of max(norm, threshold)."""
    crossed = law.crossing >> (floats.MANTISSA_BITS - floats.CELL_SHIFT)
    if octave > crossed:
        return octaves[octave, SUM] * floats.unit_of(octave)
    if octave < crossed:
        return octaves[octave, COUNT] * law.threshold
    mass = 0.0
    for cell in range(octave * floats.CELLS_PER_OCTAVE, (octave + 1) * floats.CELLS_PER_OCTAVE):
        mass += _cell_mass(cells, cell, law)
    return mass


@inlined
def weigh(arrays, law):
    """Set the mass of each octave in use, and sum them up."""
    octaves, cells, masses, registers = arrays.octaves, arrays.cells, arrays.masses, arrays.registers
    total = 0.0
    for octave in range(registers[TOP], registers[LOW] - 1, -1):
        masses[octave] = _octave_mass(cells, octaves, octave, law)
        total += masses[octave]
    masses[0] = octaves[0, COUNT] * law.threshold
    total += masses[0]
    threshold, scale, first, above, crossing, part_count, part_sum, _, _ = law
    return _Law(threshold, scale, first, above, crossing, part_count, part_sum, total, total)


@merged
def _without(law, code):
    """Return the law without a member, whose octave's mass is not updated yet."""
    threshold, scale, first, above, crossing, part_count, part_sum, total, exact = law
    if code >> floats.CELL_SHIFT == crossing and code >> _BIN_SHIFT >= first:
        part_count -= 1
        part_sum -= floats.mantissa_of(code)
    return _Law(threshold, scale, first, above, crossing, part_count, part_sum, total - _mass(code, law), exact)


@merged
def _exclude(arrays, law, codes, is_first):
    for j in range(len(codes)):
        law = _without(law, codes[j])
    if is_first or law.total < 0.5 * law.exact:  # too much was subtracted for the rest to be exact
        return weigh(arrays, law)
    octave = codes[0] >> floats.MANTISSA_BITS
    arrays.masses[octave] = _octave_mass(arrays.cells, arrays.octaves, octave, law)
    return law


# --- draws ---------------------------------------------------------------------------------


@inlined
def _rejects(code, fraction, mass, law):
    """Return whether a member is rejected, because its mass is below the largest possible one in its cell."""
    cell = code >> floats.CELL_SHIFT
    return cell >= law.crossing and fraction * floats.value_of((cell + 1) << floats.CELL_SHIFT) >= mass


@inlined
def _place(arrays, law, source, slots, fractions):
    """Draw slots, octave by octave and then cell by cell, and what is left of the random number."""
    cells, directory, tables, octave_masses = arrays.cells, arrays.directory, arrays.tables, arrays.masses
    top, low = arrays.registers[TOP], arrays.registers[LOW]
    for j in range(len(slots)):
        x = next_uniform(source) * law.total
        octave = top
        while octave >= low and x >= octave_masses[octave]:
            x -= octave_masses[octave]
            octave -= 1
        if octave < low:
            octave = 0
            if octave_masses[0] == 0.0:  # the sum was rounded up: return to the last octave with a mass
                octave = low
                while octave_masses[octave] == 0.0:
                    octave += 1
                x = octave_masses[octave]
        cell = octave * floats.CELLS_PER_OCTAVE + (floats.CELLS_PER_OCTAVE - 1 if octave > 0 else 0)
        mass = _cell_mass(cells, cell, law)
        while x >= mass and cell > octave * floats.CELLS_PER_OCTAVE:
            x -= mass
            cell -= 1
            mass = _cell_mass(cells, cell, law)
        while mass == 0.0:  # the same for the cells
            cell += 1
            mass = _cell_mass(cells, cell, law)
            x = mass
        place = x / mass * cells[cell, COUNT]
        k = min(np.int64(place), cells[cell, COUNT] - 1)
        slots[j], fractions[j] = slot_of(directory, tables, cell, k), place - k


@inlined
def _place_guided(arrays, law, used, source, slots, fractions):
    """Do the same for a large batch: with cumulative masses of all cells, and a guide to where to look in them."""
    cells, directory, tables = arrays.cells, arrays.directory, arrays.tables
    cumulative, guide = arrays.cumulative, arrays.guide
    highest = arrays.registers[TOP] * floats.CELLS_PER_OCTAVE + floats.CELLS_PER_OCTAVE - 1
    running, last, part = 0.0, 0, 0
    for i in range(used):
        mass = _cell_mass(cells, highest - i if i < used - 1 else 0, law)
        if mass > 0.0:
            last = i
        running += mass
        cumulative[i] = running
        while part < _GUIDE and part * law.total < running * _GUIDE:
            guide[part] = i
            part += 1
    while part < _GUIDE:  # the sum was rounded down
        guide[part] = last
        part += 1
    for j in range(len(slots)):
        u = next_uniform(source)
        x = u * law.total
        at = np.int64(guide[np.int64(u * _GUIDE)])
        while at < last and x >= cumulative[at]:
            at += 1
        below = cumulative[at - 1] if at > 0 else 0.0
        cell = highest - at if at < used - 1 else 0
        place = (x - below) / (cumulative[at] - below) * cells[cell, COUNT]
        k = min(np.int64(place), cells[cell, COUNT] - 1)
        slots[j], fractions[j] = slot_of(directory, tables, cell, k), place - k


@merged
def propose(arrays, law, source, slots, indices, masses):
    """Draw members with replacement: the slot, index and mass of each.

    In passes, so that the loads of one pass do not wait for each other.
    """
    cells, members, directory, tables = arrays.cells, arrays.members, arrays.directory, arrays.tables
    top, low = arrays.registers[TOP], arrays.registers[LOW]
    used = (top - low + 1) * floats.CELLS_PER_OCTAVE + 1
    if len(slots) >= _GUIDED and 0 < used <= 8 * len(slots):
        _place_guided(arrays, law, used, source, slots, masses)
    else:
        _place(arrays, law, source, slots, masses)
    for j in range(len(slots)):
        indices[j] = members[slots[j]]
    for j in range(len(slots)):
        code, fraction = code_of(indices[j]), masses[j]
        masses[j] = _mass(code, law)
        while _rejects(code, fraction, masses[j], law):
            cell = code >> floats.CELL_SHIFT
            place = next_uniform(source) * cells[cell, COUNT]
            k = np.int64(place)
            slots[j] = slot_of(directory, tables, cell, k)
            indices[j] = members[slots[j]]
            code, fraction = code_of(indices[j]), place - k
            masses[j] = _mass(code, law)
        indices[j] = index_of(indices[j])


@merged
def draw(arrays, floor, replacement, source, indices, probabilities, left):
    """Draw indices, without replacement also what is left before each; return whether there are enough."""
    law = weigh(arrays, solve(arrays, floor))
    available = arrays.registers[layout.PRESENT] if law.threshold > 0.0 else law.above
    return draw_members(
        arrays, law, available, law.scale, replacement, source, indices, probabilities, left, propose, _draw_distinct
    )


@kernel
def _draw_distinct(arrays, law, source, indices, masses, left):
    draw_distinct(arrays, law, source, indices, masses, left, propose, _exclude)
