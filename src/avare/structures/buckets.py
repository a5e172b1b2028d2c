"""Draws with ``p_i = max(h_i, e) / Z`` in constant time, whatever the number of examples.

The paper keeps its norms in a sorted tree with cumulative sums, at O(N) a step. Nothing
in Lemma 1 needs the order *within* a narrow range of norms, so here norms are only
grouped, and all of it is integer arithmetic.

A norm is kept with 24 significant bits (a float32, without its gap near zero) as a
**code**, an integer that grows with the norm: ``octave << 23 | mantissa``. Its leading
bits name ever narrower groups:

=========  ==============  ======================================================
octave     ``code >> 23``  norms within a factor 2; 0 holds the zeros alone
cell       ``code >> 20``  an eighth of an octave: its members are kept together
bin        ``code >> 13``  1/1024 of an octave: where the threshold ``e`` may stand
=========  ==============  ======================================================

All norms of an octave are whole multiples of one power of two, so each group keeps an
integer count and an integer sum: **exact, in whatever order updates come**.

*Solve.* ``floor(e) = e / Z(e)`` grows with ``e``: go down from the largest octave, then
through the cells of the octave where it crosses the wanted floor, then through the bins
of that cell. An empty bin gives ``e`` exactly; otherwise ``e`` is put on the bin's upper
edge, so that ``p`` is exactly Lemma 1's solution for a floor in ``[floor, floor (1 + 2^-10)]``.

*Draw.* Choose an octave by its mass, a cell of it by its mass, a uniform member, and accept
it with probability (its mass) / (the largest in the cell), at least 8/9; cells wholly below
``e`` accept at once. In large batches a guide to the cells, made once, replaces the first two
choices. One uniform number serves all three choices: as in inverse-transform
sampling, each ``p_i`` is realised to an absolute 2^-53.

*Move.* Two writes, however far apart the cells are: see `cells`, which also tells what a code is.

*Example.* Norms 1.0, 1.5, 6.0, 0.0: octaves hold {1.0, 1.5}, {6.0} and the zero. For the
floor 0.1, going down from the top: at ``e = 4``, Z = 6 + 3 * 4 = 18 and 4/18 > 0.1, go on;
at ``e = 1``, Z = 8.5 + 1 = 9.5 and 1/9.5 > 0.1, go on; only the zero is left, so
``e = 0.1 * 8.5 / (1 - 0.1)`` = 0.944, Z = 9.444, p = (0.106, 0.159, 0.635, 0.1).
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel, lean
from avare._randomness import Source, next_uniform
from avare.structures.base import Solution, Structure
from avare.structures.cells import (
    CELL_SHIFT,
    CELLS,
    CELLS_AN_OCTAVE,
    CODE_SMALLEST,
    COUNT,
    IMPLICIT,
    INDEX_BITS,
    INDEX_MASK,
    LOW,
    MANTISSA_BITS,
    MARK,
    MAX_EXAMPLES,
    OCTAVES,
    REGISTERS,
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
    lay_out,
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

_BIN_SHIFT = 13
_BINS = OCTAVES << (MANTISSA_BITS - _BIN_SHIFT)
_BINS_A_CELL = 1 << (CELL_SHIFT - _BIN_SHIFT)
_BINS_AN_OCTAVE = 1 << (MANTISSA_BITS - _BIN_SHIFT)
_BIN, _PART_COUNT, _PART_SUM = range(REGISTERS, REGISTERS + 3)  # further entries of `registers`
_GUIDE = 512  # parts of the whole mass, each with the cell where it begins
_GUIDED = 16  # draws from which on the guide is worth its making, if there are not many more cells


class _Arrays(NamedTuple):
    """Everything the kernels read and write."""

    members: NDArray[np.int64]  # by slot: code << 31 | index
    slots: NDArray[np.int32]  # by index: where it stands in `members`
    octaves: NDArray[np.int64]  # by octave: count, sum of mantissas
    cells: NDArray[np.int64]  # by cell: count, sum of mantissas
    bins: NDArray[np.int64]  # by bin: count, sum of mantissas
    directory: NDArray[np.int32]  # by cell and k >> 14: its page tables
    tables: NDArray[np.int32]  # page tables: page numbers
    free_pages: NDArray[np.int32]  # a stack of page numbers
    free_tables: NDArray[np.int32]  # a stack of page-table numbers
    registers: NDArray[np.int64]
    """Highest and lowest octave in use (zeros aside), heights of the stacks, the bin of the last threshold, and
    count and sum of the bins above that one in its cell."""
    masses: NDArray[np.float64]  # by octave: scratch for one draw
    cumulative: NDArray[np.float64]  # by cell, from the top: scratch for large batches
    guide: NDArray[np.int32]  # by parts of the whole mass: the cell to start from, likewise


class Buckets(Structure):
    """Norms of n examples, from which to draw, solve and update in constant time.

    Norms are rounded to 24 significant bits; positive norms outside [2^-149, 2^128) are
    moved to the nearer end of that range. Which distribution is used never affects
    unbiasedness, only variance, and within that range by less than 2^-24.

    Memory: 12 bytes an example (plus 0.6 for page tables), and about 8 MB.

    >>> import numpy as np
    >>> from avare._randomness import uniform_source
    >>> buckets = Buckets([1.0, 1.5, 6.0, 0.0])
    >>> buckets.probabilities(floor=0.1).round(3)
    array([0.106, 0.159, 0.635, 0.1  ])
    >>> buckets.update([3, 0], [6.0, 0.0])
    >>> buckets.probabilities(floor=0.0).round(3)
    array([0.   , 0.111, 0.444, 0.444])
    >>> generator = np.random.default_rng(0)
    >>> indices, p = buckets.draw(0.1, 3, replacement=False, source=uniform_source(generator))
    >>> len(set(indices.tolist()))
    3
    """

    def __init__(self, norms: ArrayLike) -> None:
        """Build from given norms, finite and not negative. O(N)."""
        values = validation.nonnegative("norms", norms)
        self.n = validation.integer("n", len(values), at_least=1, at_most=MAX_EXAMPLES)
        self._arrays = _allocate(self.n)
        _build(self._arrays, values)

    @classmethod
    def zeros(cls, n: int) -> "Buckets":
        """Build with all norms zero. O(N)."""
        self = cls.__new__(cls)
        self.n = n
        self._arrays = a = _allocate(n)
        fill(a, 0)
        a.octaves[0, COUNT] = a.bins[0, COUNT] = n
        return self

    @classmethod
    def from_state(cls, state: NDArray[np.int64], n: int) -> "Buckets":
        """Build from what `state` gave for n examples; anything else is a ``ValueError``. O(N)."""
        if state.shape != (n,) or state.dtype != np.int64:
            raise ValueError(f"state has shape {state.shape} and dtype {state.dtype}: must be {n} int64")
        self = cls.__new__(cls)
        self.n = n
        self._arrays = _allocate(n)
        fault = int(find_fault(self._arrays, state, 0))
        if fault >= 0:
            raise ValueError(f"state[{fault}] = {state[fault]}: does not fit what stands before it")
        _restore(self._arrays, state)
        return self

    def state(self) -> NDArray[np.int64]:
        """All there is to save: code and index of each member, cell by cell. O(N)."""
        return export(self._arrays)

    @property
    def arrays(self) -> "_Arrays":
        """What `draw_with_replacement`, `draw_without_replacement` and `store` take, inside other kernels. O(1)."""
        return self._arrays

    @property
    def nbytes(self) -> int:
        """Bytes held by all arrays, used or not. O(1)."""
        return sum(array.nbytes for array in self._arrays)

    def norms(self) -> NDArray[np.float64]:
        """The norms as they are kept, by index. O(N)."""
        return norms_of(self._arrays)

    def total(self) -> float:
        """The sum of all norms, correctly rounded. O(1).

        >>> Buckets([1e30, 1.0, 1e-30]).total() == 1e30
        False
        >>> Buckets([2.0**100, 1.0, 2.0**-100]).total() == 2.0**100
        True
        """
        whole = sum(int(each) << octave for octave, each in enumerate(self._arrays.octaves[:, SUM]))
        return float(Fraction(whole, 1 << 173))

    def replace(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """`update` without its checks, for callers that have made them. O(1) each."""
        store(self._arrays, indices, norms)

    def _solve(self, floor: float) -> Solution:
        threshold, scale, _, above, _, _ = _solve(self._arrays, floor)
        return Solution(floor=threshold / scale, threshold=threshold, scale=scale, above=above)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        return _probabilities(self._arrays, floor)

    def _draw(
        self,
        floor: float,
        source: Source,
        indices: NDArray[np.int64],
        probabilities: NDArray[np.float64],
        replacement: bool,
    ) -> bool:
        if replacement:
            draw_with_replacement(self._arrays, floor, source, indices, probabilities)
            return True
        return bool(draw_without_replacement(self._arrays, floor, source, indices, probabilities))

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        a = self._arrays
        codes = check_members(a)
        assert (codes[codes != 0] >= CODE_SMALLEST).all(), "a code out of range"
        mantissas = np.where(codes > 0, codes & (IMPLICIT - 1) | IMPLICIT, 0)
        for name, counts, sums, shift in (
            ("octave", a.octaves[:, COUNT], a.octaves[:, SUM], MANTISSA_BITS),
            ("cell", a.cells[:, COUNT], a.cells[:, SUM], CELL_SHIFT),
            ("bin", a.bins[:, COUNT], a.bins[:, SUM], _BIN_SHIFT),
        ):
            exact = np.zeros(len(sums), dtype=np.int64)
            np.add.at(exact, codes >> shift, mantissas)
            assert np.array_equal(counts, np.bincount(codes >> shift, minlength=len(counts))), (
                f"{name} counts are wrong"
            )
            assert np.array_equal(sums, exact), f"{name} sums are wrong"
        crossing = int(a.registers[_BIN])
        above = slice(crossing + 1, (crossing // _BINS_A_CELL + 1) * _BINS_A_CELL)
        kept = (a.registers[_PART_COUNT], a.registers[_PART_SUM])
        assert kept == (a.bins[above, COUNT].sum(), a.bins[above, SUM].sum()), (
            "what is kept of the last threshold is wrong"
        )


def _allocate(n: int) -> _Arrays:
    arrays = _Arrays(
        **allocate(n, registers=REGISTERS + 3),
        octaves=np.zeros((OCTAVES, 2), dtype=np.int64),
        bins=np.zeros((_BINS, 2), dtype=np.int64),
        masses=np.empty(OCTAVES, dtype=np.float64),
        cumulative=np.empty(CELLS, dtype=np.float64),
        guide=np.empty(_GUIDE, dtype=np.int32),
    )
    arrays.registers[_BIN] = _BINS_A_CELL - 1
    return arrays


# --- updates -------------------------------------------------------------------------------


@lean
def store(arrays, indices, norms):
    """Replace the norms of some examples, one after another."""
    # Look up all members and their bins first: these loads do not wait for each other, those of the moves below do.
    spread = np.int64(0)
    for j in range(len(indices)):
        old = arrays.members[arrays.slots[indices[j]]] >> INDEX_BITS
        spread ^= arrays.bins[old >> _BIN_SHIFT, COUNT] ^ arrays.bins[encode(norms[j]) >> _BIN_SHIFT, COUNT]
    for j in range(len(indices)):
        index, code = indices[j], encode(norms[j])
        slot = np.int64(arrays.slots[index])
        old = arrays.members[slot] >> INDEX_BITS
        if code == old:
            continue
        cell, old_cell = code >> CELL_SHIFT, old >> CELL_SHIFT
        if cell != old_cell:
            slot = move(arrays, index, slot, old_cell, cell)
            add(arrays.cells, old_cell, -1, -mantissa_of(old))
            add(arrays.cells, cell, 1, mantissa_of(code))
            add(arrays.octaves, old >> MANTISSA_BITS, -1, -mantissa_of(old))
            add(arrays.octaves, code >> MANTISSA_BITS, 1, mantissa_of(code))
        else:
            arrays.cells[cell, SUM] += mantissa_of(code) - mantissa_of(old)
            arrays.octaves[code >> MANTISSA_BITS, SUM] += mantissa_of(code) - mantissa_of(old)
        arrays.members[slot] = code << INDEX_BITS | index
        add(arrays.bins, old >> _BIN_SHIFT, -1, -mantissa_of(old))
        add(arrays.bins, code >> _BIN_SHIFT, 1, mantissa_of(code))
        crossing = arrays.registers[_BIN]
        if old_cell == crossing >> (CELL_SHIFT - _BIN_SHIFT) and old >> _BIN_SHIFT > crossing:
            arrays.registers[_PART_COUNT] -= 1
            arrays.registers[_PART_SUM] -= mantissa_of(old)
        if cell == crossing >> (CELL_SHIFT - _BIN_SHIFT) and code >> _BIN_SHIFT > crossing:
            arrays.registers[_PART_COUNT] += 1
            arrays.registers[_PART_SUM] += mantissa_of(code)
    return spread


@inlined
def _sum_up(arrays):
    """Make the counts and sums of cells and octaves from those of the bins."""
    for bin_ in range(_BINS):
        if arrays.bins[bin_, COUNT] > 0:
            cell = bin_ >> (CELL_SHIFT - _BIN_SHIFT)
            octave = bin_ >> (MANTISSA_BITS - _BIN_SHIFT)
            add(arrays.cells, cell, arrays.bins[bin_, COUNT], arrays.bins[bin_, SUM])
            add(arrays.octaves, octave, arrays.bins[bin_, COUNT], arrays.bins[bin_, SUM])


@kernel
def _build(arrays, norms):
    for index in range(len(norms)):
        code = encode(norms[index])
        add(arrays.bins, code >> _BIN_SHIFT, 1, mantissa_of(code))
    _sum_up(arrays)
    ends = lay_out(arrays)
    for index in range(len(norms)):
        code = encode(norms[index])
        slot = ends[code >> CELL_SHIFT]
        ends[code >> CELL_SHIFT] = slot + 1
        arrays.members[slot] = code << INDEX_BITS | index
        arrays.slots[index] = slot


@kernel
def _restore(arrays, members):
    """Fill empty arrays from members in the order of their cells."""
    for j in range(len(members)):
        code = members[j] >> INDEX_BITS
        add(arrays.bins, code >> _BIN_SHIFT, 1, mantissa_of(code))
    _sum_up(arrays)
    settle(arrays, members)


# --- Lemma 1 -------------------------------------------------------------------------------


@inlined
def _solve(arrays, floor):
    """Where the threshold stands.

    Returns the threshold e, the scale Z, the first bin above the threshold (its norms and
    all beyond count as they are, the rest as e), how many norms that is, and count and sum
    of those of them that share a cell with norms below.
    """
    # Out of the tuple once: each time costs two atomic operations, on counts of references.
    octaves, cells, bins, registers = arrays.octaves, arrays.cells, arrays.bins, arrays.registers
    n = len(arrays.slots)
    narrow(registers, octaves)
    top = registers[TOP]
    if top == 0 or floor * n >= 1.0:  # uniform: a threshold above all norms
        threshold = 2.0 * IMPLICIT * unit_of(top)
        return threshold, n * threshold, _BINS, 0, 0, 0
    low = registers[LOW]

    # The threshold lies below the edge of a group as long as edge / Z(edge) >= floor.
    total, above = 0.0, 0  # of the octaves above
    octave = top
    while octave >= low:
        more, count = total + octaves[octave, SUM] * unit_of(octave), above + octaves[octave, COUNT]
        if IMPLICIT * unit_of(octave) * (1.0 - floor * (n - count)) < floor * more:
            break
        total, above = more, count
        octave -= 1
    if octave < low:  # only the zeros are below
        threshold = floor * total / (1.0 - floor * (n - above))
        return threshold, total + threshold * (n - above), low * _BINS_AN_OCTAVE, above, 0, 0

    unit = unit_of(octave)
    part_sum, part_count = 0, 0  # of the cells above, in this octave
    cell = octave * CELLS_AN_OCTAVE + CELLS_AN_OCTAVE - 1
    while cell > octave * CELLS_AN_OCTAVE:
        sum_, count = part_sum + cells[cell, SUM], part_count + cells[cell, COUNT]
        if value_of(cell << CELL_SHIFT) * (1.0 - floor * (n - above - count)) < floor * (total + sum_ * unit):
            break
        part_sum, part_count = sum_, count
        cell -= 1
    total, above = total + part_sum * unit, above + part_count

    # Of the bins above, in this cell: from where the last threshold stood, for it moves little.
    last = cell * _BINS_A_CELL + _BINS_A_CELL - 1
    bin_, part_sum, part_count = last, 0, 0
    if registers[_BIN] >> (CELL_SHIFT - _BIN_SHIFT) == cell:
        bin_, part_sum, part_count = registers[_BIN], registers[_PART_SUM], registers[_PART_COUNT]
    while bin_ < last and (
        value_of((bin_ + 1) << _BIN_SHIFT) * (1.0 - floor * (n - above - part_count))
        < floor * (total + part_sum * unit)
    ):
        bin_ += 1
        part_sum, part_count = part_sum - bins[bin_, SUM], part_count - bins[bin_, COUNT]
    while bin_ > cell * _BINS_A_CELL:
        sum_, count = part_sum + bins[bin_, SUM], part_count + bins[bin_, COUNT]
        if value_of(bin_ << _BIN_SHIFT) * (1.0 - floor * (n - above - count)) < floor * (total + sum_ * unit):
            break
        part_sum, part_count = sum_, count
        bin_ -= 1
    registers[_BIN], registers[_PART_SUM], registers[_PART_COUNT] = bin_, part_sum, part_count
    total, above = total + part_sum * unit, above + part_count

    threshold = value_of((bin_ + 1) << _BIN_SHIFT)
    if bins[bin_, COUNT] == 0:
        threshold = min(threshold, floor * total / (1.0 - floor * (n - above)))
    return threshold, total + threshold * (n - above), bin_ + 1, above, part_count, part_sum


@kernel
def _probabilities(arrays, floor):
    threshold, scale, first, _, _, _ = _solve(arrays, floor)
    probabilities = np.empty(len(arrays.slots), dtype=np.float64)
    for index in range(len(probabilities)):
        code = arrays.members[arrays.slots[index]] >> INDEX_BITS
        probabilities[index] = (value_of(code) if code >> _BIN_SHIFT >= first else threshold) / scale
    return probabilities


# --- draws ---------------------------------------------------------------------------------


@inlined
def _cell_mass(count, sum_, cell, crossing, threshold, part_count, part_sum):
    """The sum over a cell of max(norm, threshold)."""
    unit = unit_of(cell >> (MANTISSA_BITS - CELL_SHIFT))
    if cell > crossing:
        return sum_ * unit
    if cell < crossing:
        return count * threshold
    return part_sum * unit + (count - part_count) * threshold


@inlined
def _octave_mass(cells, octaves, octave, crossing, threshold, part_count, part_sum):
    """The sum over an octave of max(norm, threshold)."""
    crossed = crossing >> (MANTISSA_BITS - CELL_SHIFT)
    if octave > crossed:
        return octaves[octave, SUM] * unit_of(octave)
    if octave < crossed:
        return octaves[octave, COUNT] * threshold
    mass = 0.0
    for cell in range(octave * CELLS_AN_OCTAVE, (octave + 1) * CELLS_AN_OCTAVE):
        mass += _cell_mass(cells[cell, COUNT], cells[cell, SUM], cell, crossing, threshold, part_count, part_sum)
    return mass


@inlined
def _weigh(arrays, crossing, threshold, part_count, part_sum):
    """Set the mass of each octave in use; return their sum."""
    octaves, cells, masses, registers = arrays.octaves, arrays.cells, arrays.masses, arrays.registers
    crossed = crossing >> (MANTISSA_BITS - CELL_SHIFT)
    total = 0.0
    for octave in range(registers[TOP], registers[LOW] - 1, -1):
        if octave > crossed:
            mass = octaves[octave, SUM] * unit_of(octave)
        elif octave < crossed:
            mass = octaves[octave, COUNT] * threshold
        else:
            mass = _octave_mass(cells, octaves, octave, crossing, threshold, part_count, part_sum)
        masses[octave] = mass
        total += mass
    masses[0] = octaves[0, COUNT] * threshold
    return total + masses[0]


@inlined
def _mass(code, first, threshold):
    return value_of(code) if code >> _BIN_SHIFT >= first else threshold


@inlined
def _rejects(code, fraction, crossing, mass):
    """Whether a proposed member falls to the difference between its mass and its cell's largest."""
    cell = code >> CELL_SHIFT
    return cell >= crossing and fraction * value_of((cell + 1) << CELL_SHIFT) >= mass


@inlined
def _place(arrays, solution, total, source, slots, fractions):
    """Draw where to look, and what is left of the random number: octave by octave, then cell by cell."""
    cells, directory, tables, octave_masses = arrays.cells, arrays.directory, arrays.tables, arrays.masses
    top, low = arrays.registers[TOP], arrays.registers[LOW]
    threshold, _, first, _, part_count, part_sum = solution
    crossing = (first - 1) >> (CELL_SHIFT - _BIN_SHIFT)
    for j in range(len(slots)):
        x = next_uniform(source) * total  # from the top, first by octaves
        octave = top
        while octave >= low and x >= octave_masses[octave]:
            x -= octave_masses[octave]
            octave -= 1
        if octave < low:
            octave = 0
            if octave_masses[0] == 0.0:  # the sum was rounded up: back to the last octave with a mass
                octave = low
                while octave_masses[octave] == 0.0:
                    octave += 1
                x = octave_masses[octave]
        cell = octave * CELLS_AN_OCTAVE + (CELLS_AN_OCTAVE - 1 if octave > 0 else 0)
        mass = _cell_mass(cells[cell, COUNT], cells[cell, SUM], cell, crossing, threshold, part_count, part_sum)
        while x >= mass and cell > octave * CELLS_AN_OCTAVE:
            x -= mass
            cell -= 1
            mass = _cell_mass(cells[cell, COUNT], cells[cell, SUM], cell, crossing, threshold, part_count, part_sum)
        while mass == 0.0:  # rounded up likewise
            cell += 1
            mass = _cell_mass(cells[cell, COUNT], cells[cell, SUM], cell, crossing, threshold, part_count, part_sum)
            x = mass
        place = x / mass * cells[cell, COUNT]
        k = min(np.int64(place), cells[cell, COUNT] - 1)
        slots[j], fractions[j] = slot_of(directory, tables, cell, k), place - k


@inlined
def _place_guided(arrays, solution, used, total, source, slots, fractions):
    """The same for a large batch: sums over all cells, and a guide to where in them a number belongs."""
    cells, directory, tables = arrays.cells, arrays.directory, arrays.tables
    cumulative, guide = arrays.cumulative, arrays.guide
    highest = arrays.registers[TOP] * CELLS_AN_OCTAVE + CELLS_AN_OCTAVE - 1
    threshold, _, first, _, part_count, part_sum = solution
    crossing = (first - 1) >> (CELL_SHIFT - _BIN_SHIFT)
    running, last, part = 0.0, 0, 0
    for i in range(used):
        cell = highest - i if i < used - 1 else 0
        mass = _cell_mass(cells[cell, COUNT], cells[cell, SUM], cell, crossing, threshold, part_count, part_sum)
        if mass > 0.0:
            last = i
        running += mass
        cumulative[i] = running
        while part < _GUIDE and part * total < running * _GUIDE:
            guide[part] = i
            part += 1
    while part < _GUIDE:  # the sum was rounded down
        guide[part] = last
        part += 1
    for j in range(len(slots)):
        u = next_uniform(source)
        x = u * total
        at = np.int64(guide[np.int64(u * _GUIDE)])
        while at < last and x >= cumulative[at]:
            at += 1
        below = cumulative[at - 1] if at > 0 else 0.0
        cell = highest - at if at < used - 1 else 0
        place = (x - below) / (cumulative[at] - below) * cells[cell, COUNT]
        k = min(np.int64(place), cells[cell, COUNT] - 1)
        slots[j], fractions[j] = slot_of(directory, tables, cell, k), place - k


@inlined
def _propose(arrays, solution, total, source, slots, indices, masses):
    """Draw with replacement: where each member drawn stands, its index and its mass.

    In passes, so that the loads of one pass do not wait for each other.
    """
    cells, members, directory, tables = arrays.cells, arrays.members, arrays.directory, arrays.tables
    top, low = arrays.registers[TOP], arrays.registers[LOW]
    threshold, _, first, _, _, _ = solution
    crossing = (first - 1) >> (CELL_SHIFT - _BIN_SHIFT)
    used = (top - low + 1) * CELLS_AN_OCTAVE + 1
    if len(slots) >= _GUIDED and 0 < used <= 8 * len(slots):
        _place_guided(arrays, solution, used, total, source, slots, masses)
    else:
        _place(arrays, solution, total, source, slots, masses)
    for j in range(len(slots)):
        indices[j] = members[slots[j]]
    for j in range(len(slots)):
        code, fraction = (indices[j] & UNMARKED) >> INDEX_BITS, masses[j]
        masses[j] = _mass(code, first, threshold)
        while _rejects(code, fraction, crossing, masses[j]):
            cell = code >> CELL_SHIFT
            place = next_uniform(source) * cells[cell, COUNT]
            k = np.int64(place)
            slots[j] = slot_of(directory, tables, cell, k)
            indices[j] = members[slots[j]]
            code, fraction = (indices[j] & UNMARKED) >> INDEX_BITS, place - k
            masses[j] = _mass(code, first, threshold)
        indices[j] &= INDEX_MASK


@lean
def draw_with_replacement(arrays, floor, source, indices, probabilities):
    """Draw indices, each from all."""
    solution = _solve(arrays, floor)
    threshold, scale, first, _, part_count, part_sum = solution
    total = _weigh(arrays, (first - 1) >> (CELL_SHIFT - _BIN_SHIFT), threshold, part_count, part_sum)
    _propose(arrays, solution, total, source, indices, indices, probabilities)
    for j in range(len(indices)):
        probabilities[j] /= scale


@kernel
def draw_without_replacement(arrays, floor, source, indices, probabilities):
    """Draw distinct indices; return whether there are enough.

    The law is that of drawing with replacement and dropping what was drawn before. That is also
    the fastest way, until half of the mass is drawn; then drawn members are set aside.
    """
    solution = _solve(arrays, floor)
    threshold, scale, first, above, part_count, part_sum = solution
    size = len(indices)
    if size > (len(arrays.slots) if threshold > 0.0 else above):
        return False
    total = _weigh(arrays, (first - 1) >> (CELL_SHIFT - _BIN_SHIFT), threshold, part_count, part_sum)
    slots = np.empty_like(indices)
    done, mass = np.int64(0), 0.0  # of the type it will keep: a literal would be compiled for apart
    while done < size and mass <= 0.5 * total:
        _propose(arrays, solution, total, source, slots[done:], indices[done:], probabilities[done:])
        for j in range(done, size):
            if mass <= 0.5 * total and arrays.members[slots[j]] >= 0:
                arrays.members[slots[j]] |= MARK
                slots[done], indices[done], probabilities[done] = slots[j], indices[j], probabilities[j]
                mass += probabilities[done]
                done += 1
    if done < size:
        _draw_setting_aside(arrays, solution, source, slots, indices, probabilities, done)
    else:
        for j in range(size):
            arrays.members[slots[j]] &= UNMARKED
    for j in range(size):
        probabilities[j] /= scale
    return True


@kernel
def _draw_setting_aside(arrays, solution, source, slots, indices, masses, done):
    """Complete a draw of distinct indices, of which some are done, marked, and stand in ``slots``.

    Each is taken out of counts and sums and swapped past the end of its cell. All is put back
    at the end, so that `arrays.slots` need not know.
    """
    threshold, scale, first, above, part_count, part_sum = solution
    crossing = (first - 1) >> (CELL_SHIFT - _BIN_SHIFT)
    size, aside = len(indices), 0
    holes, ends = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    total, exact = 0.0, 0.0  # the mass that is left, and as it was last summed without subtracting
    for j in range(size):
        if j == done:
            total = exact = _weigh(arrays, crossing, threshold, part_count, part_sum)
        if j >= done:
            solution = (threshold, scale, first, above, part_count, part_sum)
            _propose(arrays, solution, total, source, slots[j : j + 1], indices[j : j + 1], masses[j : j + 1])
            arrays.members[slots[j]] |= MARK
        while arrays.members[slots[j]] < 0:  # else it stood at an end, and went with another of its cell
            cell = (arrays.members[slots[j]] & UNMARKED) >> (INDEX_BITS + CELL_SHIFT)
            end = slot_of(arrays.directory, arrays.tables, cell, arrays.cells[cell, COUNT] - 1)
            holes[aside], ends[aside] = set_aside(arrays.members, slots[j], end), end
            aside += 1
            code = arrays.members[end] >> INDEX_BITS
            add(arrays.cells, cell, -1, -mantissa_of(code))
            add(arrays.octaves, code >> MANTISSA_BITS, -1, -mantissa_of(code))
            if cell == crossing and code >> _BIN_SHIFT >= first:
                part_count -= 1
                part_sum -= mantissa_of(code)
        if j >= done:
            octave = code >> MANTISSA_BITS
            arrays.masses[octave] = _octave_mass(
                arrays.cells, arrays.octaves, octave, crossing, threshold, part_count, part_sum
            )
            total -= masses[j]
            if total < 0.5 * exact:  # too much was subtracted to trust the rest
                total = exact = _weigh(arrays, crossing, threshold, part_count, part_sum)
    for j in range(size - 1, -1, -1):
        code = bring_back(arrays.members, holes[j], ends[j]) >> INDEX_BITS
        add(arrays.cells, code >> CELL_SHIFT, 1, mantissa_of(code))
        add(arrays.octaves, code >> MANTISSA_BITS, 1, mantissa_of(code))
