"""Logistic: logistic regression for two classes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, quick
from avare.problems.linear import Linear, Terms
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
        Strength of the l1 term, ``l1 |x|_1`` in total; `avare.saga` minimises it.
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
    endless = math.log(2.0)  # the right class is the likelier one

    def loss(self) -> LogisticLoss:
        return LogisticLoss()

    def terms_at(self, outputs: NDArray[np.float64]) -> Terms:
        slopes, curvatures, bits = np.empty(outputs.shape), np.empty(outputs.shape), np.empty(_BLOCK, dtype=np.int64)
        arrays = (outputs[:, 0], slopes[:, 0], curvatures[:, 0], np.empty(_BLOCK), bits, bits.view(np.float64))
        loss = _terms_into(self.model.targets, self.model.sample_weight, *arrays)
        return Terms(float(loss), slopes, curvatures)

    def excess(self, outputs: NDArray[np.float64], terms: Terms, slopes: NDArray[np.float64]) -> float:
        arrays = (outputs[:, 0], terms.slopes[:, 0], np.ascontiguousarray(slopes[:, 0]))
        return float(_excess(self.model.targets, self.model.sample_weight, *arrays))

    def constant_outputs(self) -> NDArray[np.float64]:
        negative, positive = self.class_weights()[1]
        return np.array([math.log(positive / negative) if positive > 0.0 < negative else 0.0])


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


_BLOCK = 512  # examples at a time
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93145751953125e-1, 1.42860682030941723212e-6
_NEAR, _CERTAIN, _ROUNDING = 0.5, 1e-12, 1e-15  # relative change of a probability; probabilities


@quick
def _terms_into(targets, sample_weight, outputs, slopes, curvatures, small, bits, powers):
    """Set all slopes and curvatures; return the sum of the losses.

    Most of the time is for exp and log. exp(-|z|) = 2^k exp(r) is computed by a series of r, with |r| <= log(2) / 2,
    which the processor does for several examples at once; so is log(1 + exp(-|z|)).
    """
    total = 0.0
    for first in range(0, len(outputs), _BLOCK):
        count = min(_BLOCK, len(outputs) - first)
        for i in range(count):
            t = max(-abs(outputs[first + i]), -700.0)
            k = math.floor(t * _LOG2_E + 0.5)
            r = t - k * _LN2_HIGH - k * _LN2_LOW
            s = 1 / 3628800 + r / 39916800
            s = 1 / 5040 + r * (1 / 40320 + r * (1 / 362880 + r * s))
            small[i] = 1.0 + r * (
                1.0 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * s)))))
            )
            bits[i] = (np.int64(k) + 1023) << 52
        for i in range(count):
            small[i] *= powers[i]  # the bits of 2^k
            margin = targets[first + i] * outputs[first + i]
            chance = (small[i] if margin > 0.0 else 1.0) / (1.0 + small[i])
            factor = sample_weight[first + i] if len(sample_weight) > 0 else 1.0
            slopes[first + i] = -targets[first + i] * factor * chance
            curvatures[first + i] = factor * chance * (1.0 - chance)
            total += factor * max(-margin, 0.0)
        for i in range(count):
            r = small[i] / (2.0 + small[i])
            s = r * r
            t = 1 / 25 + s * (1 / 27 + s * (1 / 29 + s * (1 / 31 + s / 33)))
            t = 1 / 15 + s * (1 / 17 + s * (1 / 19 + s * (1 / 21 + s * (1 / 23 + s * t))))
            t = 1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * (1 / 13 + s * t)))))
            small[i] = 2.0 * r * (1.0 + s * t)
        for i in range(count):
            total += small[i] * (sample_weight[first + i] if len(sample_weight) > 0 else 1.0)
    return total


@quick
def _excess(targets, sample_weight, outputs, slopes, others):
    """Sum the losses at their outputs, plus their conjugates at other slopes, less the outputs times these.

    For one example it is the Kullback-Leibler divergence of two probabilities of the wrong class, p by the other slope
    and q by the output. If they are near to each other, log(1 + u) <= u (6 + u) / (6 + 4 u) bounds it.
    """
    total = 0.0
    for i in range(len(outputs)):
        factor = sample_weight[i] if len(sample_weight) > 0 else 1.0
        q, change = abs(slopes[i]), targets[i] * (slopes[i] - others[i])
        p, least = q + change, min(q, factor - q)
        if p < -_ROUNDING * factor or p > factor + _ROUNDING * factor:
            return math.inf
        p = min(max(p, 0.0), factor)
        if abs(change) <= _NEAR * least and least > _CERTAIN * factor:
            u, v = change / q, change / (q - factor)
            total += p * u * (6.0 + u) / (6.0 + 4.0 * u) + (factor - p) * v * (6.0 + v) / (6.0 + 4.0 * v)
        elif change != 0.0:
            margin = targets[i] * outputs[i]
            total += factor * (math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0)) + p * margin
            total += p * math.log(p / factor) if p > 0.0 else 0.0
            total += (factor - p) * math.log(1.0 - p / factor) if p < factor else 0.0
    return total


register_kernels(LogisticLoss, value=_value, slope=_slope, curvature=_curvature)
