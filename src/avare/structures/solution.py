"""What Lemma 1 gives, whichever structure found it."""

import math
from typing import NamedTuple


class Solution(NamedTuple):
    """Lemma 1's solution ``p_i = max(h_i, threshold) / scale``."""

    floor: float
    """The smallest probability there may be: threshold / scale."""
    threshold: float
    """e: smaller norms count as this."""
    scale: float
    """Z, the paper's lambda: the sum of all max(h_i, threshold)."""
    above: int
    """The paper's rho: how many norms count as they are."""


def floor_of(floor: float) -> float:
    """A floor that can be solved for: anything from 0 on; above 1/N it means 1/N."""
    if not 0.0 <= floor < math.inf:
        raise ValueError(f"floor = {floor}: must be finite and not negative")
    return float(floor)
