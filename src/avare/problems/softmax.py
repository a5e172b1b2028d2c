"""Softmax: multinomial logistic regression."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.problems.linear import Linear, many_classes
from avare.problems.losses import SOFTMAX, Loss


class Softmax(Linear):
    r"""Softmax regression, :math:`f_i(x) = s_i [\log \sum_k e^{a_i \cdot x_k} - a_i \cdot x_{y_i}]`.

    x holds the coefficients of one class after another: `coefficients` gives them as a table.

    Parameters
    ----------
    X
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y
        The class of each example, any labels; `classes` lists them in order.
    l2
        Of the l2 term, l2/2 |x|^2 in all (not by example).
    sample_weight
        s, one for each example; 1 by default.
    bias
        Whether to add a column of ones, whose coefficients are penalised like the others.

    Examples
    --------
    >>> import numpy as np
    >>> problem = Softmax(np.eye(3), ["a", "b", "c"], l2=0.5)
    >>> x = problem.minimize()
    >>> problem.coefficients(x).round(3)
    array([[ 0.772, -0.386, -0.386],
           [-0.386,  0.772, -0.386],
           [-0.386, -0.386,  0.772]])
    """

    curvature = 0.5

    def __init__(
        self, X: Any, y: ArrayLike, *, l2: float = 1.0, sample_weight: ArrayLike | None = None, bias: bool = False
    ) -> None:
        super().__init__(X, y, l2=l2, sample_weight=sample_weight, bias=bias)

    @property
    def outputs(self) -> int:  # type: ignore[override]  # the number of classes is known with the data
        """The number of classes."""
        return len(self.classes)

    def _targets(self, y: ArrayLike) -> NDArray[np.float64]:
        self.classes, targets = many_classes(y)
        return targets

    def _loss(self) -> Loss:
        return Loss(SOFTMAX, 0.0)
