"""LeastSquares: linear regression."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.problems.linear import Linear, real_targets
from avare.problems.losses import LEAST_SQUARES, Loss


class LeastSquares(Linear):
    r"""Linear regression, :math:`f_i(x) = \tfrac{s_i}{2} (a_i \cdot x - y_i)^2`.

    Parameters
    ----------
    X
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y
        A number for each example.
    l2
        Of the l2 term, l2/2 |x|^2 in all (not by example).
    sample_weight
        s, one for each example; 1 by default. As a negative log-likelihood: one over the noise's variance.
    bias
        Whether to add a column of ones, whose coefficient is penalised like the others.

    Examples
    --------
    >>> import numpy as np
    >>> problem = LeastSquares(np.array([[1.0], [2.0]]), [1.0, 3.0], l2=2.0)
    >>> problem.minimize()
    array([1.])
    """

    curvature = 1.0

    def __init__(
        self, X: Any, y: ArrayLike, *, l2: float = 1.0, sample_weight: ArrayLike | None = None, bias: bool = False
    ) -> None:
        super().__init__(X, y, l2=l2, sample_weight=sample_weight, bias=bias)

    def _targets(self, y: ArrayLike) -> NDArray[np.float64]:
        return real_targets(y)

    def _loss(self) -> Loss:
        return Loss(LEAST_SQUARES, 0.0)
