"""What Lemma 1 gives, whichever structure found it."""

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
