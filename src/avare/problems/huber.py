"""Huber: linear regression that large residuals do not dominate."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare.problems.linear import Linear, real_targets
from avare.problems.losses import HUBER, Loss


class Huber(Linear):
    r"""Robust regression: half the squared residual, linear where it is beyond delta.

    With :math:`r = a_i \cdot x - y_i`, :math:`f_i(x) = s_i r^2 / 2` where :math:`|r| \le \delta`, and
    :math:`s_i \delta (|r| - \delta / 2)` elsewhere.

    Parameters
    ----------
    X
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y
        A number for each example.
    l2
        Of the l2 term, l2/2 |x|^2 in all (not by example).
    delta
        The residual from which on the loss is linear, above 0.
    sample_weight
        s, one for each example; 1 by default.
    bias
        Whether to add a column of ones, whose coefficient is penalised like the others.

    Examples
    --------
    >>> import numpy as np
    >>> problem = Huber(np.ones((3, 1)), [0.0, 1.0, 100.0], l2=0.0, delta=1.0)
    >>> problem.minimize().round(6)
    array([1.])
    """

    curvature = 1.0

    def __init__(
        self,
        X: Any,
        y: ArrayLike,
        *,
        l2: float = 1.0,
        delta: float = 1.0,
        sample_weight: ArrayLike | None = None,
        bias: bool = False,
    ) -> None:
        self.delta = validation.number("delta", delta, above=0.0)
        super().__init__(X, y, l2=l2, sample_weight=sample_weight, bias=bias)

    def _targets(self, y: ArrayLike) -> NDArray[np.float64]:
        return real_targets(y)

    def _loss(self) -> Loss:
        return Loss(HUBER, self.delta)

    def _more(self) -> str:
        return f", delta={self.delta:g}"
