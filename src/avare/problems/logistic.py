"""Logistic: logistic regression for two classes."""

from __future__ import annotations

import math
from typing import NamedTuple

from avare._compilation import inlined
from avare.problems.linear import Linear
from avare.problems.losses import register_kernels
from avare.problems.registry import register


class LogisticLoss(NamedTuple):
    """The logistic loss, which has no parameters."""


@register()
class Logistic(Linear):
    r"""Logistic regression, :math:`f_i(x) = s_i \log(1 + e^{-y_i a_i \cdot x})`.

    Parameters
    ----------
    X : array or sparse matrix
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y : array-like
        The class of each example: two labels, of which the smaller counts as -1, the larger as +1.
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
    >>> problem = Logistic(np.array([[1.0], [-2.0], [0.5]]), [1, 0, 0], l2=1.0)
    >>> problem.minimize().round(4)
    array([0.5653])
    """

    target = "two classes"
    is_positive = True
    slope_range = (-1.0, 0.0)
    curvature = 0.25
    separable_loss = math.log(2.0)  # the right class is the likelier one

    def loss(self) -> LogisticLoss:
        return LogisticLoss()


# --- kernels -------------------------------------------------------------------------------


def _value(loss: LogisticLoss, target: float, z: float) -> float:
    margin = target * z
    return math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0)


def _slope(loss: LogisticLoss, target: float, z: float) -> float:
    return -target * float(_sigmoid(-target * z))


def _curvature(loss: LogisticLoss, target: float, z: float) -> float:
    chance = float(_sigmoid(z))
    return chance * (1.0 - chance)


@inlined
def _sigmoid(z: float) -> float:
    small = math.exp(-abs(z))
    return (1.0 if z >= 0.0 else small) / (1.0 + small)


register_kernels(LogisticLoss, value=_value, slope=_slope, curvature=_curvature)
