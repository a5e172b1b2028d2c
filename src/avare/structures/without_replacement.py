"""Draws without replacement from examples in cells, for any structure that can draw with replacement.

Drawing with replacement, and dropping what was drawn before, has the right law. It is also the
fastest way, until half of the mass is drawn: all draws of a batch are looked up at once. From then on,
each drawn member is **set aside**: removed from counts and sums and swapped past the end of its cell.
Afterwards all of them are put back, so `slots` does not change. Either way a draw takes at most two
tries on average, however concentrated the distribution is.

What differs between structures is passed as two kernels. ``law`` is a NamedTuple of numbers that says
how to draw; its ``total`` is the mass of all members that are left, summed again whenever half of it is gone.

- ``propose(arrays, law, source, slots, indices, masses)`` draws members with replacement.
- ``exclude(arrays, law, codes, is_first)`` returns the law after members with these codes were set aside: several the
  first time, then one.
"""

import numpy as np

from avare._compilation import merged
from avare.structures.cells import COUNT, MARK, ONE, UNMARKED, code_of, count, slot_of
from avare.structures.float_codes import CELL_SHIFT


@merged
def draw_members(arrays, law, available, scale, replacement, source, indices, probabilities, left, propose, distinct):
    """Fill indices and probabilities, which are masses over ``scale``; return whether enough are available.

    ``distinct`` is a kernel that calls `draw_distinct`. One draw is the same either way, and allocates no array.
    """
    if replacement or len(indices) == 1:
        propose(arrays, law, source, indices, indices, probabilities)
        if not replacement:
            left[0] = 1.0
    elif len(indices) > available:
        return False
    else:
        distinct(arrays, law, source, indices, probabilities, left)
        for j in range(len(indices)):
            left[j] /= scale
    for j in range(len(indices)):
        probabilities[j] /= scale
    return True


@merged
def draw_distinct(arrays, law, source, indices, masses, left, propose, exclude):
    """Fill indices and masses with distinct draws, in order, and the mass left before each; there must be enough."""
    members, directory, tables = arrays.members, arrays.directory, arrays.tables
    scratch = np.empty((3, len(indices)), dtype=np.int64)
    slots, holes, codes = scratch[0], scratch[1], scratch[2]  # slots, then slots and codes of members set aside
    size, half = len(indices), 0.5 * law.total
    done, aside, mass = np.int64(0), np.int64(0), 0.0
    while done < size:
        first, stop = done, done + 1 if aside > 0 else size
        propose(arrays, law, source, slots[first:stop], indices[first:stop], masses[first:stop])
        for j in range(first, stop):
            if members[slots[j]] >= 0 and (mass <= half or aside > 0):
                members[slots[j]] |= MARK
                slots[done], indices[done], masses[done] = slots[j], indices[j], masses[j]
                left[done] = law.total if aside > 0 else law.total - mass
                mass += masses[done]
                done += 1
        if mass > half and done < size:
            first, is_first = aside, aside == 0
            for j in range(aside, done):
                while members[slots[j]] < 0:  # otherwise it was at the end of its cell, and was set aside before
                    cell = code_of(members[slots[j]]) >> CELL_SHIFT
                    end = slot_of(directory, tables, cell, arrays.cells[cell, COUNT] - 1)
                    holes[aside] = end if members[end] < 0 else slots[j]
                    members[holes[aside]] &= UNMARKED
                    members[holes[aside]], members[end] = members[end], members[holes[aside]]
                    codes[aside] = code_of(members[end])
                    count(arrays, codes[aside], -ONE)
                    aside += 1
            law = exclude(arrays, law, codes[first:aside], is_first)
    for j in range(aside, size):
        members[slots[j]] &= UNMARKED
    for j in range(aside - 1, -1, -1):
        count(arrays, codes[j], ONE)
        cell = codes[j] >> CELL_SHIFT
        end = slot_of(directory, tables, cell, arrays.cells[cell, COUNT] - 1)
        members[holes[j]], members[end] = members[end], members[holes[j]]
