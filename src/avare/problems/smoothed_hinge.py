"""SmoothedHinge: a support vector machine whose hinge is rounded off."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare.problems.linear import Linear, two_classes
from avare.problems.losses import SMOOTHED_HINGE, Loss


class SmoothedHinge(Linear):
    r"""A linear support vector machine with a smoothed hinge loss.

    With :math:`u = 1 - y_i a_i \cdot x`, :math:`f_i(x) / s_i` is 0 where :math:`u \le 0`,
    :math:`u^2 / 2\gamma` where :math:`u \le \gamma`, and :math:`u - \gamma / 2` beyond.

    Parameters
    ----------
    X
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y
        The class of each example: two labels, of which the smaller counts as -1, the larger as +1.
    l2
        Of the l2 term, l2/2 |x|^2 in all (not by example).
    gamma
        How wide the rounding is, above 0.
    sample_weight
        s, one for each example; 1 by default.
    bias
        Whether to add a column of ones, whose coefficient is penalised like the others.

    Examples
    --------
    >>> import numpy as np
    >>> problem = SmoothedHinge(np.array([[1.0], [-2.0], [0.5]]), [1, 0, 0], l2=1.0, gamma=0.5)
    >>> problem.minimize().round(6)
    array([0.5])
    """

    def __init__(
        self,
        X: Any,
        y: ArrayLike,
        *,
        l2: float = 1.0,
        gamma: float = 1.0,
        sample_weight: ArrayLike | None = None,
        bias: bool = False,
    ) -> None:
        self.gamma = validation.number("gamma", gamma, above=0.0)
        self.curvature = 1.0 / self.gamma
        super().__init__(X, y, l2=l2, sample_weight=sample_weight, bias=bias)

    def _targets(self, y: ArrayLike) -> NDArray[np.float64]:
        self.classes, targets = two_classes(y)
        return targets

    def _loss(self) -> Loss:
        return Loss(SMOOTHED_HINGE, self.gamma)

    def _more(self) -> str:
        return f", gamma={self.gamma:g}"
