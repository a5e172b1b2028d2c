"""When the iterates of a linear model have converged."""

import math
from collections.abc import Callable


class Tolerance:
    """The bound on the length of the gradient, in some preconditioner.

    Half of the squared length is roughly the decrease of the objective that is still possible; `scale` is the objective
    that it is compared with. Methods know an estimate of the length; the true one costs a pass over the data, and is
    computed when the estimate is below `margin` times the bound.

    >>> tolerance = Tolerance(0.1, 50.0)
    >>> tolerance.reached(7, 0.4, lambda: 1.5), round(tolerance.margin, 3)  # the bound is 1
    (None, 0.187)
    >>> tolerance.reached(8, 0.1, lambda: 0.5)
    'converged after step 8: the gradient is 0.05 of its scale'
    """

    def __init__(self, tol: float, scale: float, margin: float = 0.5) -> None:
        self._tol, self._scale, self.margin = tol, scale, margin

    def reached(self, step: int, estimate: float, length: Callable[[], float], widest: float = 1.0) -> str | None:
        """Return why the iterates have converged, if they have; `widest` divides the scale."""
        bound = self._tol * math.sqrt(2.0 * self._scale / widest)
        if self._tol == 0.0 or estimate > self.margin * bound:
            return None
        true = length()
        if true > bound:  # wait until the estimate is smaller by as much as it was wrong
            self.margin = min(0.5 * self.margin, 0.7 * estimate / true)
            return None
        return f"converged after step {step}: the gradient is {true / bound * self._tol:.3g} of its scale"
