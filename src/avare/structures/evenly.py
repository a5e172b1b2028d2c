"""Draws in which every index is alike."""

import numpy as np

from avare._compilation import inlined, kernel
from avare._randomness import next_uniform


@kernel
def draw_evenly(n, source, indices, replacement):
    """Fill indices with numbers below n, in random order and, without replacement, distinct. O(size)."""
    if replacement:
        for j in range(len(indices)):
            indices[j] = _below(n, source)
    elif 2 * len(indices) > n:
        _shuffle(n, source, indices)
    else:
        _draw_distinct(n, source, indices)


@inlined
def _below(n, source):
    return min(np.int64(next_uniform(source) * n), n - 1)


@kernel
def _shuffle(n, source, indices):
    """The first of a shuffle of all."""
    every = np.arange(n)
    for j in range(len(indices)):
        k = j + _below(n - j, source)
        indices[j] = every[k]
        every[k] = every[j]


@kernel
def _draw_distinct(n, source, indices):
    """Draw, and draw again what was there before: less than twice as many draws, since at most half are taken."""
    bits = 2
    while 1 << bits < 2 * len(indices):
        bits += 1
    places = np.full(1 << bits, -1, dtype=np.int64)  # a table of those drawn, open-addressed
    j = 0
    while j < len(indices):
        index = _below(n, source)
        place = ((index * 0x9E3779B1) & 0xFFFFFFFF) >> (32 - bits)
        while places[place] != -1 and places[place] != index:
            place = (place + 1) & ((1 << bits) - 1)
        if places[place] == -1:
            places[place] = index
            indices[j] = index
            j += 1
