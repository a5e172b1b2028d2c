"""Draws without replacement from examples in cells, for any structure that can draw with replacement.

Drawing with replacement, and dropping what was drawn before, has the right law. It is also the
fastest way, until half of the mass is drawn: all draws of a batch are looked up at once. From then on,
each drawn member is **set aside**: removed from counts and sums and swapped past the end of its cell.
Afterwards all of them are put back, so `slots` does not change. Either way a draw takes at most two
tries on average, however concentrated the distribution is.

A structure provides four kernels for the type of its arrays. ``law`` is a NamedTuple of numbers that
says how to draw; its ``total`` is the mass of all members that are left.

- `propose(arrays, law, source, slots, indices, masses)` draws members with replacement.
- `remove(arrays, law, code)` returns the law without a member that was set aside. Its masses are not
  updated.
- `weigh(arrays, law)` updates all masses, and returns the law.
- `reweigh(arrays, law, code)` does the same after the removal of one member only.
"""

import numpy as np

from avare._compilation import ByType, inlined, kernel
from avare.structures.cells import COUNT, code_of, count, mark, slot_of, unmark
from avare.structures.codes import CELL_SHIFT

proposing, removing, weighing, reweighing = map(ByType, ("propose", "remove", "weigh", "reweigh"))
propose, remove, weigh, reweigh = proposing.function, removing.function, weighing.function, reweighing.function


@kernel
def draw_distinct(arrays, law, source, indices, masses):
    """Fill indices with distinct draws, in order, and masses with the mass of each; there must be enough."""
    size = len(indices)
    slots = np.empty_like(indices)
    done, mass = np.int64(0), 0.0  # typed, because Numba compiles a callee once more for a literal
    while done < size and mass <= 0.5 * law.total:
        propose(arrays, law, source, slots[done:], indices[done:], masses[done:])
        for j in range(done, size):
            if mass <= 0.5 * law.total and mark(arrays, slots[j]):
                slots[done], indices[done], masses[done] = slots[j], indices[j], masses[j]
                mass += masses[done]
                done += 1
    if done < size:
        _draw_rest(arrays, law, source, slots, indices, masses, done)
    else:
        for j in range(size):
            unmark(arrays, slots[j])


@kernel
def _draw_rest(arrays, law, source, slots, indices, masses, done):
    """Complete a draw whose first ``done`` members are marked: set them aside, then each that is drawn."""
    size, aside = len(indices), 0
    holes, ends = np.empty_like(slots), np.empty_like(slots)
    for j in range(size):
        if j == done:
            law = weigh(arrays, law)
        if j >= done:
            propose(arrays, law, source, slots[j : j + 1], indices[j : j + 1], masses[j : j + 1])
            mark(arrays, slots[j])
        while arrays.members[slots[j]] < 0:  # otherwise it was at the end of its cell, and was set aside before
            code = code_of(arrays.members[slots[j]])
            cell = code >> CELL_SHIFT
            ends[aside] = slot_of(arrays.directory, arrays.tables, cell, arrays.cells[cell, COUNT] - 1)
            holes[aside] = _set_aside(arrays, slots[j], ends[aside])
            code = code_of(arrays.members[ends[aside]])
            count(arrays, code, -1)
            law = remove(arrays, law, code)
            aside += 1
        if j >= done:
            law = reweigh(arrays, law, code)
    for j in range(size - 1, -1, -1):
        count(arrays, _put_back(arrays, holes[j], ends[j]), 1)


@inlined
def _set_aside(arrays, slot, end):
    """Swap a marked member, at the end of its cell or else at a slot, with the one at the end; return its slot."""
    hole = end if arrays.members[end] < 0 else slot
    unmark(arrays, hole)
    arrays.members[hole], arrays.members[end] = arrays.members[end], arrays.members[hole]
    return hole


@inlined
def _put_back(arrays, hole, end):
    """Undo the last `_set_aside`; return the code of the member."""
    arrays.members[hole], arrays.members[end] = arrays.members[end], arrays.members[hole]
    return code_of(arrays.members[hole])
