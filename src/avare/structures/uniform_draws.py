"""Draws in which all indices have the same probability."""

import numpy as np

from avare._compilation import inlined, kernel, lean
from avare._randomness import next_uniform


@lean
def draw_evenly(n, source, indices, replacement):
    """Fill indices with numbers below n, in random order; without replacement they are distinct. O(size)."""
    if replacement:
        for j in range(len(indices)):
            indices[j] = draw_below(n, source)
    elif 2 * len(indices) > n:
        _shuffle(n, source, indices)
    else:
        _draw_distinct(n, source, indices)


@inlined
def draw_below(n, source):
    """Draw one number below n."""
    return min(np.int64(next_uniform(source) * n), n - 1)


@kernel
def hash_table(size):
    """Return an empty hash table for `size` indices, for `enter`."""
    places = 4
    while places < 2 * size:
        places *= 2
    return np.full(places, -1, dtype=np.int64)


@inlined
def enter(table, index):
    """Put an index into a hash table, with open addressing; return whether it is new."""
    place = ((index * 0x9E3779B1) & 0xFFFFFFFF) * len(table) >> 32
    while table[place] != -1 and table[place] != index:
        place = (place + 1) & (len(table) - 1)
    is_new = table[place] == -1
    table[place] = index
    return is_new


@kernel
def _shuffle(n, source, indices):
    """Fill indices with the first elements of a shuffle of all."""
    every = np.arange(n)
    for j in range(len(indices)):
        k = j + draw_below(n - j, source)
        indices[j] = every[k]
        every[k] = every[j]


@kernel
def _draw_distinct(n, source, indices):
    """Draw, and draw again if an index is not new: less than two draws each, because at most half are taken."""
    table = hash_table(len(indices))
    j = 0
    while j < len(indices):
        indices[j] = draw_below(n, source)
        if enter(table, indices[j]):
            j += 1
