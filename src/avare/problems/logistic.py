"""Logistic: regression of two classes."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.problems.linear import Linear, two_classes
from avare.problems.losses import LOGISTIC, Loss


class Logistic(Linear):
    r"""Logistic regression, :math:`f_i(x) = s_i \log(1 + e^{-y_i a_i \cdot x})`.

    Parameters
    ----------
    X
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y
        The class of each example: two labels, of which the smaller counts as -1, the larger as +1.
    l2
        Of the l2 term, l2/2 |x|^2 in all (not by example).
    sample_weight
        s, one for each example; 1 by default.
    bias
        Whether to add a column of ones, whose coefficient is penalised like the others.

    Examples
    --------
    >>> import numpy as np
    >>> problem = Logistic(np.array([[1.0], [-2.0], [0.5]]), [1, 0, 0], l2=1.0)
    >>> problem.minimize().round(4)
    array([0.5653])
    """

    curvature = 0.25

    def __init__(
        self, X: Any, y: ArrayLike, *, l2: float = 1.0, sample_weight: ArrayLike | None = None, bias: bool = False
    ) -> None:
        super().__init__(X, y, l2=l2, sample_weight=sample_weight, bias=bias)

    def _targets(self, y: ArrayLike) -> NDArray[np.float64]:
        self.classes, targets = two_classes(y)
        return targets

    def _loss(self) -> Loss:
        return Loss(LOGISTIC, 0.0)
