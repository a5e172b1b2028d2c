"""Examples grouped by norm into narrow cells, between which they move in O(1).

`float_codes` says what the code, the octave and the cell of a norm are. A **member** is the code of an
example together with its index. The members of a cell fill pages of 128, which come from a common
pool and are found through a two-level page table. Moving a member to another cell fills its hole
with the last member of the old cell and appends it to the new one: two writes, however far apart
the cells are. Examples may leave and enter in the same way. The first page is never used: the slot 0
stands for an example that is absent.

Octaves and cells keep the count of their members and the sum of their mantissas. All norms of an
octave are multiples of one power of two, so these sums are integers: **exact, in whatever order
updates come**.

The kernels take any NamedTuple of arrays with the fields that `allocate` returns.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, kernel, merged
from avare.state import Field
from avare.structures import float_codes as floats
from avare.structures.base import Structure

INDEX_BITS = 31  # a member is code << 31 | index, a positive number; a negative one is marked as drawn
_INDEX_MASK = (1 << INDEX_BITS) - 1
UNMARKED = np.int64(0x7FFFFFFFFFFFFFFF)
MARK = ~UNMARKED
_PAGE_BITS = 7
_PAGE = 1 << _PAGE_BITS
_TABLE_BITS = 7
_TABLE = 1 << _TABLE_BITS
MAX_EXAMPLES = (1 << INDEX_BITS) - (1 << 20)

COUNT, SUM = 0, 1  # columns of `octaves` and `cells`
ONE = np.int64(1)  # typed, because Numba compiles a callee again for each literal
TOP, LOW, _FREE_PAGES, _FREE_TABLES, PRESENT = range(5)
"""Entries of `registers`: highest and lowest octave in use, heights of the stacks, number of members."""
REGISTERS = 5
NO_MEMBERS, NO_NORMS = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)  # for `load`


def allocate(n: int, *, registers: int = REGISTERS) -> dict[str, Any]:
    """Allocate arrays for n examples, all absent, with room for further registers. O(N)."""
    # The last page and the last table of a cell may be nearly empty, but at most n cells are in use.
    spare = min(n, floats.CELLS) + 1
    pages = n // _PAGE + spare
    tables = n // (_PAGE * _TABLE) + spare
    return {
        "members": np.zeros((pages + 1) * _PAGE, dtype=np.int64),
        "slots": np.zeros(n, dtype=np.int32),
        "octaves": np.zeros((floats.OCTAVES, 2), dtype=np.int64),
        "cells": np.zeros((floats.CELLS, 2), dtype=np.int64),
        "directory": np.empty((floats.CELLS, n // (_PAGE * _TABLE) + 1), dtype=np.int32),
        "tables": np.empty(tables * _TABLE, dtype=np.int32),
        "free_pages": np.arange(pages, 0, -1, dtype=np.int32),
        "free_tables": np.arange(tables - 1, -1, -1, dtype=np.int32),
        "registers": np.array([0, floats.OCTAVES, pages, tables] + [0] * (registers - 4), dtype=np.int64),
    }


def members_of(state: Mapping[str, Any], name: str, n: int, present: int | None, lowest: int = 0) -> NDArray[np.int64]:
    """Return the members of a state, cell by cell as `export` gave them, or raise a ``ValueError``. O(N).

    Codes are 0, those of norms, and ``lowest``. By default all n examples are present.
    """
    members: NDArray[np.int64] = Field(np.int64, (n if present is None else present,), at_least=0).read(state, name)
    fault = int(_find_fault(members, n, lowest))
    if fault >= 0:
        raise ValueError(f"state[{name!r}][{fault}] = {members[fault]}: does not fit the elements before it")
    return members


class Cells(Structure):
    """Examples in cells, which may leave and enter: what `Buckets` and `CalibratedCells` share.

    >>> from avare.structures import Buckets
    >>> cells: Cells = Buckets([1.0, 2.0, 5.0])
    >>> cells.remove(np.array([1]))
    >>> cells.insert(np.array([3]), np.array([4.0]))
    >>> cells.norms(), cells.probabilities()
    (array([ 1., nan,  5.,  4.]), array([0.1, 0. , 0.5, 0.4]))
    """

    _arrays: Any
    _code_of_new = 0  # without a norm

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the norms as they are kept, of some examples or by index; NaN for those without one. O(1) each."""
        return _norms_of(self._arrays, np.arange(self.n) if indices is None else indices)

    def contains(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of some indices below n is present. O(1) each."""
        return np.asarray(self._arrays.slots[indices] > 0)

    def insert(self, indices: NDArray[np.int64], norms: NDArray[np.float64] | None = None) -> None:
        """Add examples that are absent, with norms or without any; indices from n on raise n. O(1) each, amortised."""
        n = max(self.n, int(indices.max(initial=-1)) + 1)
        room = len(self._arrays.slots)
        if n > room:
            self._arrays = self._with_room(max(n, min(2 * room, MAX_EXAMPLES))).arrays
        self.n = n
        self._changed(_enter(self._arrays, indices, self._code_of_new, NO_NORMS if norms is None else norms), ONE)

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Remove distinct examples that are present. O(1) each."""
        self._changed(_leave(self._arrays, indices), -ONE)

    def _with_room(self, room: int) -> Self:
        """Return a copy with room for more examples."""
        raise NotImplementedError

    def _changed(self, members: NDArray[np.int64], times: np.int64) -> None:
        """Count members that were added (times = 1) or removed (-1) in what else a structure keeps."""


def check_cells(arrays: Any) -> NDArray[np.int64]:
    """Assert that members, slots, pages, counts and sums agree; return the codes, cell by cell. O(N)."""
    counts = arrays.cells[:, COUNT]
    slots = np.concatenate([np.empty(0, np.int64), *(_slots_of_cell(arrays, c) for c in np.flatnonzero(counts))])
    members = arrays.members[slots]
    assert (members >= 0).all(), "a member is still marked as drawn"
    codes, indices = members >> INDEX_BITS, members & _INDEX_MASK
    assert np.array_equal(np.sort(indices), np.flatnonzero(arrays.slots)), "an index is missing or occurs twice"
    assert len(indices) == arrays.registers[PRESENT], "the number of members is wrong"
    assert np.array_equal(arrays.slots[indices], slots), "an index points to a wrong slot"
    assert (codes <= floats.CODE_LARGEST).all(), "a code is out of range"
    assert np.array_equal(codes >> floats.CELL_SHIFT, np.repeat(np.arange(floats.CELLS), counts)), (
        "a member is in a wrong cell"
    )
    check_groups("octave", arrays.octaves, codes, floats.MANTISSA_BITS)
    check_groups("cell", arrays.cells, codes, floats.CELL_SHIFT)
    used = codes[codes >= floats.CODE_SMALLEST] >> floats.MANTISSA_BITS
    assert used.size == 0 or arrays.registers[LOW] <= used[0] <= used[-1] <= arrays.registers[TOP], (
        "an octave in use is out of the range of those in use"
    )
    pages_used = int((-(-counts // _PAGE)).sum())
    tables_used = int((-(-counts // (_PAGE * _TABLE))).sum())
    free_pages = arrays.free_pages[: arrays.registers[_FREE_PAGES]]
    free_tables = arrays.free_tables[: arrays.registers[_FREE_TABLES]]
    assert len(free_pages) + pages_used == len(arrays.free_pages), "pages are lost"
    assert len(free_tables) + tables_used == len(arrays.free_tables), "page tables are lost"
    assert len(np.unique(free_pages)) == len(free_pages), "a page is free twice"
    assert not np.isin(slots >> _PAGE_BITS, free_pages).any(), "a page is both free and in use"
    return codes


def check_groups(name: str, groups: NDArray[np.int64], codes: NDArray[np.int64], shift: int) -> None:
    """Assert that each group, the codes with the same ``code >> shift``, has the right count and sum. O(N)."""
    sums = np.zeros(len(groups), dtype=np.int64)
    np.add.at(sums, codes >> shift, [floats.mantissa_of(code) for code in codes])
    assert np.array_equal(groups[:, COUNT], np.bincount(codes >> shift, minlength=len(groups))), (
        f"{name} counts are wrong"
    )
    assert np.array_equal(groups[:, SUM], sums), f"{name} sums are wrong"


# --- members -------------------------------------------------------------------------------


@inlined
def code_of(member):
    """Return the code of a member, marked or not."""
    return (member & UNMARKED) >> INDEX_BITS


@inlined
def index_of(member):
    """Return the index of a member, marked or not."""
    return member & _INDEX_MASK


@inlined
def slot_of(directory, tables, cell, k):
    """Return the slot of the k-th member of a cell."""
    table = directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)]
    page = tables[(table << _TABLE_BITS) + ((k >> _PAGE_BITS) & (_TABLE - 1))]
    return (np.int64(page) << _PAGE_BITS) + (k & (_PAGE - 1))


@inlined
def _reserve(arrays, cell, k):
    """Make room for the k-th member of a cell, the first of its page."""
    if k & (_PAGE * _TABLE - 1) == 0:
        arrays.registers[_FREE_TABLES] -= 1
        arrays.directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)] = arrays.free_tables[arrays.registers[_FREE_TABLES]]
    arrays.registers[_FREE_PAGES] -= 1
    table = arrays.directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)]
    arrays.tables[(table << _TABLE_BITS) + ((k >> _PAGE_BITS) & (_TABLE - 1))] = arrays.free_pages[
        arrays.registers[_FREE_PAGES]
    ]


@inlined
def _release(arrays, cell, k):
    """Free the page whose first member, the k-th of the cell, was removed."""
    table = arrays.directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)]
    page = arrays.tables[(table << _TABLE_BITS) + ((k >> _PAGE_BITS) & (_TABLE - 1))]
    arrays.free_pages[arrays.registers[_FREE_PAGES]] = page
    arrays.registers[_FREE_PAGES] += 1
    if k & (_PAGE * _TABLE - 1) == 0:
        arrays.free_tables[arrays.registers[_FREE_TABLES]] = table
        arrays.registers[_FREE_TABLES] += 1


@inlined
def _take_out(arrays, slot, cell):
    """Fill the slot of a member with the last member of its cell; the caller changes the counts afterwards."""
    last = arrays.cells[cell, COUNT] - 1
    moved = arrays.members[slot_of(arrays.directory, arrays.tables, cell, last)]
    arrays.members[slot] = moved
    arrays.slots[index_of(moved)] = slot
    if last & (_PAGE - 1) == 0:
        _release(arrays, cell, last)


@inlined
def _put_in(arrays, index, cell):
    """Make room for an example at the end of a cell; return its slot. The caller changes the counts afterwards."""
    end = arrays.cells[cell, COUNT]
    if end & (_PAGE - 1) == 0:
        _reserve(arrays, cell, end)
    slot = slot_of(arrays.directory, arrays.tables, cell, end)
    arrays.slots[index] = slot
    _widen(arrays.registers, cell >> (floats.MANTISSA_BITS - floats.CELL_SHIFT))
    return slot


@merged
def recode(arrays, index, old, code):
    """Change the code of an example: move it to its new cell, and update the counts and sums."""
    slot = np.int64(arrays.slots[index])
    cell, old_cell = code >> floats.CELL_SHIFT, old >> floats.CELL_SHIFT
    if cell != old_cell:
        _take_out(arrays, slot, old_cell)
        slot = _put_in(arrays, index, cell)
        count(arrays, old, -ONE)
        count(arrays, code, ONE)
    else:
        arrays.cells[cell, SUM] += floats.mantissa_of(code) - floats.mantissa_of(old)
        arrays.octaves[code >> floats.MANTISSA_BITS, SUM] += floats.mantissa_of(code) - floats.mantissa_of(old)
    arrays.members[slot] = code << INDEX_BITS | index


@inlined
def count(arrays, code, times):
    """Add a code to the counts and sums of its cell and octave (times = 1), or remove it (-1)."""
    add(arrays.cells, code >> floats.CELL_SHIFT, times, times * floats.mantissa_of(code))
    add(arrays.octaves, code >> floats.MANTISSA_BITS, times, times * floats.mantissa_of(code))


@inlined
def add(groups, group, members, mantissa):
    """Add to the count and the sum of a group."""
    groups[group, COUNT] += members
    groups[group, SUM] += mantissa


@inlined
def _widen(registers, octave):
    """Record that an octave is in use."""
    if octave > 0:
        registers[TOP] = max(registers[TOP], octave)
        registers[LOW] = min(registers[LOW], octave)


@inlined
def narrow(registers, octaves):
    """Update the highest and the lowest octave in use."""
    while registers[TOP] > 0 and octaves[registers[TOP], COUNT] == 0:
        registers[TOP] -= 1
    if registers[TOP] == 0:
        registers[LOW] = floats.OCTAVES
    else:
        while octaves[registers[LOW], COUNT] == 0:
            registers[LOW] += 1


@kernel
def _enter(arrays, indices, code, norms):
    """Add absent examples, with a code for all or with norms; return their members."""
    members = np.empty(len(indices), dtype=np.int64)
    for j in range(len(indices)):
        new = floats.encode(norms[j]) if len(norms) > 0 else code
        members[j] = new << INDEX_BITS | indices[j]
        arrays.members[_put_in(arrays, indices[j], new >> floats.CELL_SHIFT)] = members[j]
        count(arrays, new, ONE)
    arrays.registers[PRESENT] += len(indices)
    return members


@kernel
def _leave(arrays, indices):
    """Remove distinct examples; return the members that they were."""
    members = np.empty(len(indices), dtype=np.int64)
    for j in range(len(indices)):
        slot = np.int64(arrays.slots[indices[j]])
        members[j] = arrays.members[slot]
        _take_out(arrays, slot, code_of(members[j]) >> floats.CELL_SHIFT)
        count(arrays, code_of(members[j]), -ONE)
        arrays.slots[indices[j]] = 0
    arrays.registers[PRESENT] -= len(indices)
    return members


# --- all at once ---------------------------------------------------------------------------


@inlined
def code_at(members, norms, j):
    """Return the code of one of the given members or, if there are none, of the norm of index j."""
    return code_of(members[j]) if len(members) > 0 else floats.encode(norms[j])


@kernel
def load(arrays, members, norms):
    """Put members into cells that are empty, each cell in the order given.

    If no members are given, they are those for the norms, by index.
    """
    size = max(len(members), len(norms))
    arrays.registers[PRESENT] = size
    for j in range(size):
        code = code_at(members, norms, j)
        add(arrays.cells, code >> floats.CELL_SHIFT, 1, floats.mantissa_of(code))
    ends = np.empty(floats.CELLS, dtype=np.int64)  # the next slot of each cell
    for cell in range(floats.CELLS):
        members_in = arrays.cells[cell, COUNT]
        ends[cell] = (len(arrays.free_pages) - arrays.registers[_FREE_PAGES] + 1) << _PAGE_BITS
        for k in range(0, members_in, _PAGE):
            _reserve(arrays, cell, k)
        if members_in > 0:
            octave = cell >> (floats.MANTISSA_BITS - floats.CELL_SHIFT)
            add(arrays.octaves, octave, members_in, arrays.cells[cell, SUM])
            _widen(arrays.registers, octave)
    for j in range(size):
        code = code_at(members, norms, j)
        index = index_of(members[j]) if len(members) > 0 else j
        slot = ends[code >> floats.CELL_SHIFT]
        ends[code >> floats.CELL_SHIFT] = slot + 1
        arrays.members[slot] = code << INDEX_BITS | index
        arrays.slots[index] = slot


@kernel
def export(arrays):
    """Return all members, cell by cell."""
    members = np.empty(arrays.registers[PRESENT], dtype=np.int64)
    j = 0
    for cell in range(floats.CELLS):
        for k in range(arrays.cells[cell, COUNT]):
            members[j] = arrays.members[slot_of(arrays.directory, arrays.tables, cell, k)]
            j += 1
    return members


@kernel
def _norms_of(arrays, indices):
    """Return the norms of some examples as they are kept; NaN if absent, or if the code is between 0 and all norms."""
    norms = np.empty(len(indices), dtype=np.float64)
    for j in range(len(indices)):
        slot = arrays.slots[indices[j]]
        code = code_of(arrays.members[slot])
        norms[j] = floats.value_of(code) if slot > 0 and (code == 0 or code >= floats.CODE_SMALLEST) else np.nan
    return norms


@kernel
def _find_fault(members, n, lowest):
    """Return the place of the first member that `export` cannot have given, or -1."""
    seen = np.zeros(n, dtype=np.bool_)
    cell = 0
    for j in range(len(members)):
        code, index = members[j] >> INDEX_BITS, index_of(members[j])
        valid = code == 0 or code == lowest or floats.CODE_SMALLEST <= code <= floats.CODE_LARGEST
        if not valid or code >> floats.CELL_SHIFT < cell or index >= n or seen[index]:
            return j
        seen[index] = True
        cell = code >> floats.CELL_SHIFT
    return -1


@kernel
def _slots_of_cell(arrays, cell):
    slots = np.empty(arrays.cells[cell, COUNT], dtype=np.int64)
    for k in range(len(slots)):
        slots[k] = slot_of(arrays.directory, arrays.tables, cell, k)
    return slots
