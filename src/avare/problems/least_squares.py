"""LeastSquares: linear regression."""

import math
from typing import NamedTuple

from avare.problems.linear import Linear
from avare.problems.losses import register_kernels
from avare.problems.registry import register


class SquaredLoss(NamedTuple):
    """Half the squared residual, which has no parameters."""


@register()
class LeastSquares(Linear):
    r"""Linear regression, :math:`f_i(x) = \tfrac{s_i}{2} (a_i \cdot x - y_i)^2`.

    Parameters
    ----------
    X : array or sparse matrix
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y : array-like
        A number per example.
    l2 : float or array_like, default=1.0
        Strength of the l2 term, ``l2/2 |x|^2`` in total (not per example). An array has one number per column of X,
        and with ``bias=True`` a last one for the bias. As a prior, its standard deviation is 1 / sqrt(l2).
    l1 : float, default=0.0
        Strength of the l1 term, ``l1 |x|_1`` in total. `minimize` and `avare.saga` can minimise it, `avare.sgd` cannot.
    sample_weight : array-like or None, default=None
        s, one number per example; 1 by default. For a negative log-likelihood, one over the variance of the noise.
    bias : bool or "free", default=False
        Whether to add a column of ones. Its coefficient is penalised like the others; with "free" it is not.

    Examples
    --------
    >>> import numpy as np
    >>> problem = LeastSquares(np.array([[1.0], [2.0]]), [1.0, 3.0], l2=2.0)
    >>> problem.minimize()
    array([1.])
    """

    target = "numbers"
    is_positive = True
    curvature = 1.0
    is_quadratic = True
    slope_range = (-math.inf, math.inf)

    def loss(self) -> SquaredLoss:
        return SquaredLoss()


# --- kernels -------------------------------------------------------------------------------


def _value(loss: SquaredLoss, target: float, z: float) -> float:
    return 0.5 * (z - target) ** 2


def _slope(loss: SquaredLoss, target: float, z: float) -> float:
    return z - target


def _curvature(loss: SquaredLoss, target: float, z: float) -> float:
    return 1.0


register_kernels(SquaredLoss, value=_value, slope=_slope, curvature=_curvature)
