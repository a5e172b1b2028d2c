"""Norms as integers, grouped into narrow cells, whose members move in constant time.

A norm is kept with 24 significant bits (a float32, without its gap near zero) as a **code**, an
integer that grows with the norm: ``octave << 23 | mantissa``. Octave 0 holds the zeros alone;
``code >> 20``, an eighth of an octave, is its **cell**: norms within a factor 9/8.

The members of a cell fill pages of 128, taken from a common pool and found through a two-level
page table. Moving a member to another cell fills its hole with the last member of the old cell
and appends it to the new one: two writes, however far apart the cells are.

The kernels take any tuple of arrays with the fields that `allocate` gives.

*Example.* The norm 5.0 = 1.25 * 2^2 has octave 152 and mantissa 0.25 * 2^23: it stands in the
third cell of that octave, with all norms in [5, 5.5).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, kernel

OCTAVES = 278  # the zeros, then 2^-149 up to 2^128: every float32, subnormals included
MANTISSA_BITS = 23
CELL_SHIFT = 20
CELLS = OCTAVES << (MANTISSA_BITS - CELL_SHIFT)
CELLS_AN_OCTAVE = 1 << (MANTISSA_BITS - CELL_SHIFT)
IMPLICIT = 1 << MANTISSA_BITS
_CODE_OFFSET = (1023 - 150) << MANTISSA_BITS  # float64's exponent field at octave 0
CODE_SMALLEST = 1 << MANTISSA_BITS
CODE_LARGEST = (OCTAVES << MANTISSA_BITS) - 1
_UNIT_EXPONENT = 1023 - 173  # float64's exponent field for the unit of octave 0

INDEX_BITS = 31  # a member is code << 31 | index, positive; its sign marks it as drawn
INDEX_MASK = (1 << INDEX_BITS) - 1
UNMARKED = np.int64(0x7FFFFFFFFFFFFFFF)
MARK = ~UNMARKED
_PAGE_BITS = 7
_PAGE = 1 << _PAGE_BITS
_TABLE_BITS = 7
_TABLE = 1 << _TABLE_BITS
MAX_EXAMPLES = (1 << INDEX_BITS) - (1 << 20)

COUNT, SUM = 0, 1  # columns of `octaves` and `cells`
TOP, LOW, FREE_PAGES, FREE_TABLES = range(4)  # entries of `registers`: octaves in use, heights of the stacks
REGISTERS = 4


def allocate(n: int, *, registers: int = REGISTERS) -> dict[str, Any]:
    """Arrays for n examples, all cells empty, with room for further registers. O(N)."""
    # A cell's last page and last table may be nearly empty, but no more cells than examples are in use.
    spare = min(n, CELLS) + 1
    pages = n // _PAGE + spare
    tables = n // (_PAGE * _TABLE) + spare
    return {
        "members": np.empty(pages * _PAGE, dtype=np.int64),
        "slots": np.empty(n, dtype=np.int32),
        "cells": np.zeros((CELLS, 2), dtype=np.int64),
        "directory": np.empty((CELLS, n // (_PAGE * _TABLE) + 1), dtype=np.int32),
        "tables": np.empty(tables * _TABLE, dtype=np.int32),
        "free_pages": np.arange(pages - 1, -1, -1, dtype=np.int32),
        "free_tables": np.arange(tables - 1, -1, -1, dtype=np.int32),
        "registers": np.array([0, OCTAVES, pages, tables] + [0] * (registers - REGISTERS), dtype=np.int64),
    }


def fill(arrays: Any, code: int) -> None:
    """Give every example one code below all norms, in arrays whose cells are empty. O(N)."""
    n, cell = len(arrays.slots), code >> CELL_SHIFT
    arrays.members[:n] = arrays.slots[:] = np.arange(n)
    arrays.members[:n] |= code << INDEX_BITS
    arrays.cells[cell, COUNT] = n
    pages, tables = -(-n // _PAGE), -(-n // (_PAGE * _TABLE))
    arrays.tables[:pages] = np.arange(pages)
    arrays.directory[cell, :tables] = np.arange(tables)
    arrays.registers[FREE_PAGES] -= pages
    arrays.registers[FREE_TABLES] -= tables


def check_members(arrays: Any) -> NDArray[np.int64]:
    """Assert that members, places and pages agree; return the code of each member, cell by cell. O(N)."""
    counts = arrays.cells[:, COUNT]
    slots = np.concatenate([np.empty(0, np.int64), *(_slots_of_cell(arrays, c) for c in np.flatnonzero(counts))])
    members = arrays.members[slots]
    assert (members >= 0).all(), "a member is still marked as drawn"
    codes, indices = members >> INDEX_BITS, members & INDEX_MASK
    assert np.array_equal(np.sort(indices), np.arange(len(arrays.slots))), "not every index is there once"
    assert np.array_equal(arrays.slots[indices], slots), "an index points to another slot than its own"
    assert (codes <= CODE_LARGEST).all(), "a code out of range"
    assert np.array_equal(codes >> CELL_SHIFT, np.repeat(np.arange(CELLS), counts)), (
        "a member stands in a cell that is not its own"
    )
    used = codes[codes >= CODE_SMALLEST] >> MANTISSA_BITS
    assert used.size == 0 or arrays.registers[LOW] <= used[0] <= used[-1] <= arrays.registers[TOP], (
        "octaves in use are missed"
    )
    pages_used = int((-(-counts // _PAGE)).sum())
    tables_used = int((-(-counts // (_PAGE * _TABLE))).sum())
    free_pages = arrays.free_pages[: arrays.registers[FREE_PAGES]]
    free_tables = arrays.free_tables[: arrays.registers[FREE_TABLES]]
    assert len(free_pages) + pages_used == len(arrays.free_pages), "pages were lost"
    assert len(free_tables) + tables_used == len(arrays.free_tables), "page tables were lost"
    assert len(np.unique(free_pages)) == len(free_pages), "a page is free twice"
    assert not np.isin(slots >> _PAGE_BITS, free_pages).any(), "a page is both free and in use"
    return codes


# --- codes ---------------------------------------------------------------------------------


@inlined
def encode(norm):
    """The code of a norm: its float64 bits, rounded to a 23-bit mantissa, half to even."""
    if norm == 0.0:
        return 0
    bits = np.float64(norm).view(np.int64)
    code = ((bits + ((1 << 28) - 1) + ((bits >> 29) & 1)) >> 29) - _CODE_OFFSET
    return min(max(code, CODE_SMALLEST), CODE_LARGEST)


@inlined
def unit_of(octave):
    """What a mantissa's last digit is worth: 2^(octave - 173), by its bits."""
    return np.int64((octave + _UNIT_EXPONENT) << 52).view(np.float64)


@inlined
def mantissa_of(code):
    """The norm in units of its octave; 0 of any code below all norms."""
    return (code & (IMPLICIT - 1)) | IMPLICIT if code >= CODE_SMALLEST else 0


@inlined
def value_of(code):
    """The norm that a code stands for; of ``cell << 20``, the lower edge of that cell."""
    return mantissa_of(code) * unit_of(code >> MANTISSA_BITS)


# --- members and their pages ---------------------------------------------------------------


@inlined
def slot_of(directory, tables, cell, k):
    """Where the k-th member of a cell stands."""
    table = directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)]
    page = tables[(table << _TABLE_BITS) + ((k >> _PAGE_BITS) & (_TABLE - 1))]
    return (np.int64(page) << _PAGE_BITS) + (k & (_PAGE - 1))


@inlined
def reserve(arrays, cell, k):
    """Make room for the k-th member of a cell, the first of its page."""
    if k & (_PAGE * _TABLE - 1) == 0:
        arrays.registers[FREE_TABLES] -= 1
        arrays.directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)] = arrays.free_tables[arrays.registers[FREE_TABLES]]
    arrays.registers[FREE_PAGES] -= 1
    table = arrays.directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)]
    arrays.tables[(table << _TABLE_BITS) + ((k >> _PAGE_BITS) & (_TABLE - 1))] = arrays.free_pages[
        arrays.registers[FREE_PAGES]
    ]


@inlined
def release(arrays, cell, k):
    """Give back the page whose first member, the k-th of the cell, has gone."""
    table = arrays.directory[cell, k >> (_PAGE_BITS + _TABLE_BITS)]
    page = arrays.tables[(table << _TABLE_BITS) + ((k >> _PAGE_BITS) & (_TABLE - 1))]
    arrays.free_pages[arrays.registers[FREE_PAGES]] = page
    arrays.registers[FREE_PAGES] += 1
    if k & (_PAGE * _TABLE - 1) == 0:
        arrays.free_tables[arrays.registers[FREE_TABLES]] = table
        arrays.registers[FREE_TABLES] += 1


@inlined
def move(arrays, index, slot, old_cell, cell):
    """Take the member at a slot out of its cell and make room for it at the end of another; return where.

    Counts are the caller's to change, afterwards.
    """
    last = arrays.cells[old_cell, COUNT] - 1
    moved = arrays.members[slot_of(arrays.directory, arrays.tables, old_cell, last)]
    arrays.members[slot] = moved
    arrays.slots[moved & INDEX_MASK] = slot
    if last & (_PAGE - 1) == 0:
        release(arrays, old_cell, last)
    end = arrays.cells[cell, COUNT]
    if end & (_PAGE - 1) == 0:
        reserve(arrays, cell, end)
    slot = slot_of(arrays.directory, arrays.tables, cell, end)
    arrays.slots[index] = slot
    widen(arrays.registers, cell >> (MANTISSA_BITS - CELL_SHIFT))
    return slot


@inlined
def add(groups, group, count, mantissa):
    """Add to the count and the sum of an octave or a cell."""
    groups[group, COUNT] += count
    groups[group, SUM] += mantissa


@inlined
def widen(registers, octave):
    """Note that an octave is in use."""
    if octave > 0:
        registers[TOP] = max(registers[TOP], octave)
        registers[LOW] = min(registers[LOW], octave)


@inlined
def narrow(registers, octaves):
    """Bring the highest and the lowest octave in use up to date."""
    while registers[TOP] > 0 and octaves[registers[TOP], COUNT] == 0:
        registers[TOP] -= 1
    if registers[TOP] == 0:
        registers[LOW] = OCTAVES
    else:
        while octaves[registers[LOW], COUNT] == 0:
            registers[LOW] += 1


@inlined
def set_aside(members, slot, end):
    """Swap a marked member, at the end of its cell or else at a slot, with that at the end; return where it stood."""
    hole = end if members[end] < 0 else slot
    member = members[hole] & UNMARKED
    members[hole] = members[end]
    members[end] = member
    return hole


@inlined
def bring_back(members, hole, end):
    """Undo the last `set_aside`."""
    member = members[end]
    members[end] = members[hole]
    members[hole] = member
    return member


@kernel
def lay_out(arrays):
    """Give each cell, whose count is known, its pages, one after another; return each cell's first slot."""
    ends = np.empty(CELLS, dtype=np.int64)
    for cell in range(CELLS):
        ends[cell] = (len(arrays.free_pages) - arrays.registers[FREE_PAGES]) << _PAGE_BITS
        for k in range(0, arrays.cells[cell, COUNT], _PAGE):
            reserve(arrays, cell, k)
        if arrays.cells[cell, COUNT] > 0:
            widen(arrays.registers, cell >> (MANTISSA_BITS - CELL_SHIFT))
    return ends


@kernel
def settle(arrays, members):
    """Lay out cells, whose counts are known, and put members there that come in the order of their cells."""
    ends = lay_out(arrays)
    for j in range(len(members)):
        cell = members[j] >> (INDEX_BITS + CELL_SHIFT)
        arrays.members[ends[cell]] = members[j]
        arrays.slots[members[j] & INDEX_MASK] = ends[cell]
        ends[cell] += 1


@kernel
def find_fault(arrays, members, lowest):
    """Where members are not what `export` may have given, or -1; beside 0 and the norms' there is one code, lowest."""
    n = len(members)
    arrays.slots[:] = -1
    cell = 0
    for j in range(n):
        code, index = members[j] >> INDEX_BITS, members[j] & INDEX_MASK
        valid = code == 0 or code == lowest or CODE_SMALLEST <= code <= CODE_LARGEST
        if not valid or code >> CELL_SHIFT < cell or index >= n or arrays.slots[index] != -1:
            return j
        arrays.slots[index] = 0
        cell = code >> CELL_SHIFT
    return -1


@kernel
def export(arrays):
    """All members, cell by cell."""
    members = np.empty(len(arrays.slots), dtype=np.int64)
    j = 0
    for cell in range(CELLS):
        for k in range(arrays.cells[cell, COUNT]):
            members[j] = arrays.members[slot_of(arrays.directory, arrays.tables, cell, k)]
            j += 1
    return members


@kernel
def _slots_of_cell(arrays, cell):
    slots = np.empty(arrays.cells[cell, COUNT], dtype=np.int64)
    for k in range(len(slots)):
        slots[k] = slot_of(arrays.directory, arrays.tables, cell, k)
    return slots


@kernel
def norms_of(arrays):
    """The norms as they are kept, by index."""
    norms = np.empty(len(arrays.slots), dtype=np.float64)
    for index in range(len(norms)):
        norms[index] = value_of(arrays.members[arrays.slots[index]] >> INDEX_BITS)
    return norms
