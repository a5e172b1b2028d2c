"""SmoothedHinge: a support vector machine with a smooth loss."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from numpy.typing import ArrayLike

from avare import _validation as validation
from avare.problems.linear import Common, Linear
from avare.problems.losses import register_kernels
from avare.problems.registry import register


class SmoothedHingeLoss(NamedTuple):
    """The smoothed hinge loss."""

    gamma: float


@register()
class SmoothedHinge(Linear):
    r"""A linear support vector machine with a smoothed hinge loss.

    With :math:`u = 1 - y_i a_i \cdot x`, :math:`f_i(x) / s_i` is 0 if :math:`u \le 0`,
    :math:`u^2 / 2\gamma` if :math:`0 < u \le \gamma`, and :math:`u - \gamma / 2` beyond.

    Parameters
    ----------
    X : array or sparse matrix
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y : array-like
        The class of each example: two labels, of which the smaller counts as -1, the larger as +1.
    gamma : float, default=1.0
        Width of the quadratic part, above 0.
    l2 : float or array_like, default=1.0
        Strength of the l2 term, ``l2/2 |x|^2`` in total (not per example). An array has one number per column of X,
        and with ``bias=True`` a last one for the bias. As a prior, its standard deviation is 1 / sqrt(l2).
    l1 : float, default=0.0
        Strength of the l1 term, ``l1 |x|_1`` in total. `minimize` and `avare.saga` can minimise it, `avare.sgd` cannot.
    sample_weight : array-like or None, default=None
        s, one number per example; 1 by default.
    bias : bool or "free", default=False
        Whether to add a column of ones. Its coefficient is penalised like the others; with "free" it is not.

    Examples
    --------
    >>> import numpy as np
    >>> problem = SmoothedHinge(np.array([[1.0], [-2.0], [0.5]]), [1, 0, 0], l2=1.0, gamma=0.5)
    >>> problem.minimize().round(6)
    array([0.5])
    """

    target = "two classes"
    is_positive = True
    slope_range = (-1.0, 0.0)
    flattens = True

    def __init__(self, X: Any, y: ArrayLike, *, gamma: float = 1.0, **common: Unpack[Common]) -> None:
        self.gamma = validation.number("gamma", gamma, above=0.0)
        self.curvature = 1.0 / self.gamma
        super().__init__(X, y, **common)

    def loss(self) -> SmoothedHingeLoss:
        return SmoothedHingeLoss(self.gamma)


# --- kernels -------------------------------------------------------------------------------


def _value(loss: SmoothedHingeLoss, target: float, z: float) -> float:
    short = 1.0 - target * z
    if short <= 0.0:
        return 0.0
    if short >= loss.gamma:
        return short - 0.5 * loss.gamma
    return 0.5 * short * short / loss.gamma


def _slope(loss: SmoothedHingeLoss, target: float, z: float) -> float:
    return -target * min(max(1.0 - target * z, 0.0) / loss.gamma, 1.0)


def _curvature(loss: SmoothedHingeLoss, target: float, z: float) -> float:
    return 1.0 / loss.gamma if 0.0 < 1.0 - target * z < loss.gamma else 0.0


register_kernels(SmoothedHingeLoss, value=_value, slope=_slope, curvature=_curvature)
