r"""The memory of samplers that remember norms: the last norm of each example, or an average.

The last norm is one noisy observation if examples are augmented, with dropout, or with large steps. With the share
:math:`\rho` = ``memory`` above 0, each visit averages:

.. math:: h \leftarrow \rho h + (1 - \rho)\, n / s, \qquad h \leftarrow n / s \text{ at the first visit,}

with the unit :math:`s`, a running mean of the norms of all examples. Norms fall during training: without a unit, what
was seen long ago would look large. `Calibrated` averages squares instead, because it learns mean squares.

Each batch whose norms are reported in full gives an unbiased estimate of the mean norm, :math:`\sum_j w_j n_j / N`. The
unit is the geometric mean of these over roughly the last thirty batches. So it follows norms that fall or grow at any
constant rate, up to a constant factor, which does not matter. A batch of zeros does not change it, and a batch far
above it starts it again. Norms that are reported before any batch start it with their mean.

`Avare` starts from norms of 0, so that for it a remembered 0 counts as none: the next norm is taken in full.

*Example.* With :math:`\rho` = 0.5, an example has the norms 4 and 6 at two visits, while the unit is 2 and then 1. Its
memory is 2, and then 0.5 · 2 + 0.5 · 6 = 4: at that time, four times the unit.
"""

import math

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import inlined, lean

DECAY = 0.97  # per batch: the unit looks back roughly thirty batches
JUMP = 10.0  # octaves above the unit: a batch that is higher starts the unit again
LOG, COUNT = 4, 5
"""Places in the sums of `avare.samplers.gain`: the sum of the logarithms of mean norms, to base 2, and their number."""
_GIVEN = 1e-9  # how many batches the initial norms count for: less than any batch


def checked_share(memory: float) -> float:
    """Return the share of the past in an average, or raise an error."""
    return validation.number("memory", memory, at_least=0.0, at_most=0.99)


def start(moments: NDArray[np.float64], norms: NDArray[np.float64]) -> float:
    """Take the mean of the initial norms as the unit until the first batch, and return it."""
    mean = float((norms / len(norms)).sum())
    if mean > 0.0:
        moments[LOG], moments[COUNT] = _GIVEN * math.log2(mean), _GIVEN
    return current_unit(moments, 1.0)


def current_unit(moments: NDArray[np.float64], share: float) -> float:
    """Return the unit of remembered norms: 1 for the last norm, or if nothing above 0 was reported yet."""
    return float(2.0 ** (moments[LOG] / moments[COUNT])) if share > 0.0 and moments[COUNT] > 0.0 else 1.0


# --- kernels -------------------------------------------------------------------------------


@lean
def add_mean(moments, mean):
    """Add the mean norm of all examples, as a batch estimates it, to the sums of the unit."""
    if not 0.0 < mean < np.inf:
        return
    log, total, count = math.log2(mean), moments[LOG], moments[COUNT]
    if log * count > total + JUMP * count:
        total, count = 0.0, 0.0
    moments[LOG] = DECAY * total + log
    moments[COUNT] = DECAY * count + 1.0


@lean
def unit_for(moments, share, norms):
    """Return the unit for norms that were reported; those before any batch start it."""
    if share == 0.0:
        return 1.0
    if moments[COUNT] == 0.0:
        mean = 0.0
        for norm in norms:
            mean += norm / len(norms)
        add_mean(moments, mean)
    return 2.0 ** (moments[LOG] / moments[COUNT]) if moments[COUNT] > 0.0 else 1.0


@inlined
def average(old, new, share):
    """Return the average of what is remembered, if anything is (0 or more), and a new norm."""
    return new if old < 0.0 else share * old + (1.0 - share) * new
