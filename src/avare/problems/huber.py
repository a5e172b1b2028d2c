"""Huber: linear regression that is robust to large residuals."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from numpy.typing import ArrayLike

from avare import _validation as validation
from avare.problems.linear import Common, Linear
from avare.problems.losses import register_kernels
from avare.problems.registry import register


class HuberLoss(NamedTuple):
    """Huber's loss."""

    delta: float


@register()
class Huber(Linear):
    r"""Robust regression: half the squared residual up to delta, linear beyond.

    With :math:`r = a_i \cdot x - y_i`, :math:`f_i(x) = s_i r^2 / 2` if :math:`|r| \le \delta`, and
    :math:`s_i \delta (|r| - \delta / 2)` otherwise.

    Parameters
    ----------
    X : array or sparse matrix
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y : array-like
        A number per example.
    delta : float, default=1.0
        The residual from which on the loss is linear, above 0.
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
    >>> problem = Huber(np.ones((3, 1)), [0.0, 1.0, 100.0], l2=0.0, delta=1.0)
    >>> problem.minimize().round(6)
    array([1.])
    """

    target = "numbers"
    is_positive = True
    curvature = 1.0
    flattens = True

    def __init__(self, X: Any, y: ArrayLike, *, delta: float = 1.0, **common: Unpack[Common]) -> None:
        self.delta = validation.number("delta", delta, above=0.0)
        self.slope_range = (-self.delta, self.delta)
        super().__init__(X, y, **common)

    def loss(self) -> HuberLoss:
        return HuberLoss(self.delta)


# --- kernels -------------------------------------------------------------------------------


def _value(loss: HuberLoss, target: float, z: float) -> float:
    residual = abs(z - target)
    if residual <= loss.delta:
        return 0.5 * residual * residual
    return loss.delta * (residual - 0.5 * loss.delta)


def _slope(loss: HuberLoss, target: float, z: float) -> float:
    return min(max(z - target, -loss.delta), loss.delta)


def _curvature(loss: HuberLoss, target: float, z: float) -> float:
    return 1.0 if abs(z - target) <= loss.delta else 0.0


register_kernels(HuberLoss, value=_value, slope=_slope, curvature=_curvature)
