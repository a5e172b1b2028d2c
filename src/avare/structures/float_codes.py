"""Norms as integers that have the same order.

A norm is kept with 24 significant bits (a float32, without its loss of precision near zero) as a
**code**, an integer that grows with the norm: ``octave << 23 | mantissa``. Octave 0 contains only
the zeros. ``code >> 20``, an eighth of an octave, is the **cell** of the norm: norms within a
factor 9/8.

*Example.* The norm 5.0 = 1.25 * 2^2 has octave 152 and mantissa 0.25 * 2^23: it is in the third
cell of that octave, with all norms in [5, 5.5).
"""

import math

import numpy as np

from avare._compilation import inlined

OCTAVES = 278  # the zeros, then 2^-149 up to 2^128: every float32, including subnormals
MANTISSA_BITS = 23
CELL_SHIFT = 20
CELLS = OCTAVES << (MANTISSA_BITS - CELL_SHIFT)
CELLS_PER_OCTAVE = 1 << (MANTISSA_BITS - CELL_SHIFT)
IMPLICIT = 1 << MANTISSA_BITS  # the leading bit of a mantissa, which a code does not store
CODE_SMALLEST = 1 << MANTISSA_BITS
CODE_LARGEST = (OCTAVES << MANTISSA_BITS) - 1
LARGEST = 2.0**128
"""What larger norms count as."""
_CODE_OFFSET = (1023 - 150) << MANTISSA_BITS  # float64's exponent field at octave 0
_UNIT_EXPONENT = 1023 - 173  # float64's exponent field for the unit of octave 0


@inlined
def encode(norm):
    """Return the code of a norm: its float64 bits, rounded to a 23-bit mantissa, half to even."""
    if norm == 0.0:
        return 0
    bits = np.float64(norm).view(np.int64)
    code = ((bits + ((1 << 28) - 1) + ((bits >> 29) & 1)) >> 29) - _CODE_OFFSET
    return min(max(code, CODE_SMALLEST), CODE_LARGEST)


@inlined
def encode_average(code, norm, share):
    """Return the code of the average of a remembered norm, by its code, and another; of the other if there is none."""
    if share == 0.0 or code < CODE_SMALLEST:
        return encode(norm)
    return encode(share * value_of(code) + (1.0 - share) * norm)


@inlined
def encode_square_average(code, norm, share):
    """Do the same with squares: return the code of the root of their average."""
    if share == 0.0 or code < CODE_SMALLEST:
        return encode(norm)
    old, new = value_of(code), min(norm, LARGEST)
    return encode(math.sqrt(share * old * old + (1.0 - share) * new * new))


@inlined
def unit_of(octave):
    """Return the value of a mantissa's last bit, 2^(octave - 173), built from its bits."""
    return np.int64((octave + _UNIT_EXPONENT) << 52).view(np.float64)


@inlined
def mantissa_of(code):
    """Return the norm in units of its octave; 0 for any code below all norms."""
    return (code & (IMPLICIT - 1)) | IMPLICIT if code >= CODE_SMALLEST else 0


@inlined
def value_of(code):
    """Return the norm of a code; for ``cell << 20``, the lower edge of that cell."""
    return mantissa_of(code) * unit_of(code >> MANTISSA_BITS)
