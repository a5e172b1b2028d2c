"""Softmax: multinomial logistic regression."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._compilation import inlined
from avare.problems.linear import Linear
from avare.problems.losses import register_vector_kernels
from avare.problems.registry import register


class SoftmaxLoss(NamedTuple):
    """The cross entropy, which has no parameters."""


@register()
class Softmax(Linear):
    r"""Softmax regression, :math:`f_i(x) = s_i [\log \sum_k e^{a_i \cdot x_k} - a_i \cdot x_{y_i}]`.

    x holds the coefficients of the first class, then those of the second, and so on: `coefficients` returns them as a
    table.

    Parameters
    ----------
    X
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y
        The class of each example, any labels; `classes` lists them in order.
    l2
        Strength of the l2 term, ``l2/2 |x|^2`` in total (not per example).
    l1
        Strength of the l1 term, ``l1 |x|_1`` in total; `avare.saga` minimises it.
    sample_weight
        s, one number per example; 1 by default.
    bias
        Whether to add a column of ones. Its coefficients are penalised like the others; with "free" they are not.

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

    target = "classes"
    curvature = 0.5
    endless = math.log(2.0)  # the right class is likelier than all others together

    @property
    def curvature_at_zero(self) -> float:
        """The largest second derivative where all outputs are 0: one over the number of classes."""
        return 1.0 / self.outputs

    def link(self, outputs: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class, for a row of outputs per example."""
        z = np.asarray(outputs, dtype=np.float64)
        shares = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))

    def _loss(self) -> SoftmaxLoss:
        return SoftmaxLoss()


# --- kernels -------------------------------------------------------------------------------


def _value(loss: SoftmaxLoss, target: float, outputs: Any) -> float:
    largest = _largest(outputs)
    total = 0.0
    for k in range(len(outputs)):
        total += math.exp(outputs[k] - largest)
    return largest + math.log(total) - outputs[int(target)]  # type: ignore[no-any-return]  # compiled


def _slope(loss: SoftmaxLoss, target: float, outputs: Any) -> float:
    _to_probabilities(outputs)
    outputs[int(target)] -= 1.0
    return math.sqrt(_sum_of_squares(outputs))


def _curve(loss: SoftmaxLoss, target: float, outputs: Any, directions: Any) -> None:
    _to_probabilities(outputs)
    mean = 0.0
    for k in range(len(outputs)):
        mean += outputs[k] * directions[k]
    for k in range(len(outputs)):
        directions[k] = outputs[k] * (directions[k] - mean)


def _mean_curvature(loss: SoftmaxLoss, target: float, outputs: Any) -> float:
    _to_probabilities(outputs)
    return (1.0 - _sum_of_squares(outputs)) / len(outputs)  # type: ignore[no-any-return]  # compiled


@inlined
def _largest(outputs: Any) -> Any:
    largest = outputs[0]
    for k in range(1, len(outputs)):
        largest = max(largest, outputs[k])
    return largest


@inlined
def _to_probabilities(outputs: Any) -> None:
    largest = _largest(outputs)
    total = 0.0
    for k in range(len(outputs)):
        outputs[k] = math.exp(outputs[k] - largest)
        total += outputs[k]
    for k in range(len(outputs)):
        outputs[k] /= total


@inlined
def _sum_of_squares(values: Any) -> float:
    squares = 0.0
    for k in range(len(values)):
        squares += values[k] * values[k]
    return squares


register_vector_kernels(SoftmaxLoss, value=_value, slope=_slope, curve=_curve, mean_curvature=_mean_curvature)
