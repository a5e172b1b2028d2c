"""Softmax: multinomial logistic regression."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, product, quick
from avare.problems.linear import Linear, Terms
from avare.problems.losses import register_vector_kernels
from avare.problems.registry import register


class SoftmaxLoss(NamedTuple):
    """The cross entropy, which has no parameters."""


@register()
class Softmax(Linear):
    r"""Softmax regression, :math:`f_i(x) = s_i [\log \sum_k e^{a_i \cdot x_k} - a_i \cdot x_{y_i}]`.

    x holds the coefficients class by class: `coefficients` returns them as a
    table.

    Parameters
    ----------
    X : array or sparse matrix
        Examples by features: float32 or float64, in any order, or sparse (CSR). Not copied.
    y : array-like
        The class of each example, any labels; `classes` lists them in order.
    l2 : float or array_like, default=1.0
        Strength of the l2 term, ``l2/2 |x|^2`` in total (not per example). An array has one number per column of X,
        and with ``bias=True`` a last one for the bias. As a prior, its standard deviation is 1 / sqrt(l2).
    l1 : float, default=0.0
        Strength of the l1 term, ``l1 |x|_1`` in total. `minimize` and `avare.saga` can minimise it, `avare.sgd` cannot.
    sample_weight : array-like or None, default=None
        s, one number per example; 1 by default.
    bias : bool or "free", default=False
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
    is_positive = True
    curvature = 0.5
    separable_loss = math.log(2.0)  # the right class is likelier than all others together

    def loss(self) -> SoftmaxLoss:
        return SoftmaxLoss()

    # For all examples at once: `Terms.curvature` holds the probabilities.

    def terms_at(self, outputs: NDArray[np.float64]) -> Terms:
        slopes, chances, totals = np.empty(outputs.shape), np.empty(outputs.shape), np.empty(self.n)
        loss = _subtract_largest(self.model.targets, self.model.sample_weight, outputs, chances)
        np.exp(chances, out=chances)  # several at once, unlike `math.exp`
        _terms_into(self.model.targets, self.model.sample_weight, slopes, chances, totals)
        return Terms(float(loss) + self.weighted_sum(np.log(totals, out=totals)), slopes, chances)

    def curve(self, terms: Terms, directions: NDArray[np.float64], part: slice = slice(None)) -> NDArray[np.float64]:
        curved = np.empty(directions.shape)
        _curve_into(self.model.sample_weight[part], terms.curvature[part], directions, curved)
        return curved

    def mean_curvatures(self, terms: Terms) -> NDArray[np.float64]:
        squares = np.einsum("ik,ik->i", terms.curvature, terms.curvature)
        curvatures = (1.0 - squares) / self.outputs
        return curvatures * self.model.sample_weight if len(self.model.sample_weight) else curvatures


# --- kernels -------------------------------------------------------------------------------


def _value(loss: SoftmaxLoss, target: float, outputs: Any) -> float:
    largest = _largest(outputs)
    total = 0.0
    for k in range(len(outputs)):
        total += math.exp(outputs[k] - largest)
    return largest + math.log(total) - outputs[int(target)]


def _slope(loss: SoftmaxLoss, target: float, outputs: Any) -> float:
    largest = _largest(outputs)
    total = 0.0
    for k in range(len(outputs)):
        outputs[k] = math.exp(outputs[k] - largest)
        total += outputs[k]
    for k in range(len(outputs)):
        outputs[k] /= total
    outputs[int(target)] -= 1.0
    squares = 0.0
    for k in range(len(outputs)):
        squares += outputs[k] * outputs[k]
    return math.sqrt(squares)


@quick
def _subtract_largest(targets, sample_weight, outputs, result):
    """Set the outputs less the largest of their row; return how far the targets' are below it, in sum."""
    loss = 0.0
    for i in range(len(outputs)):
        largest = _largest(outputs[i])
        for k in range(outputs.shape[1]):
            result[i, k] = outputs[i, k] - largest
        loss -= (sample_weight[i] if len(sample_weight) > 0 else 1.0) * result[i, int(targets[i])]
    return loss


@quick
def _terms_into(targets, sample_weight, slopes, chances, totals):
    """Set all slopes, turn exponentials into probabilities, and set the sums of the exponentials."""
    for i in range(len(slopes)):
        factor, total = sample_weight[i] if len(sample_weight) > 0 else 1.0, 0.0
        for k in range(slopes.shape[1]):
            total += chances[i, k]
        for k in range(slopes.shape[1]):
            chances[i, k] /= total
            slopes[i, k] = factor * chances[i, k]
        slopes[i, int(targets[i])] -= factor
        totals[i] = total


@product
def _curve_into(sample_weight, chances, directions, curved):
    for i in range(len(curved)):
        mean = 0.0
        for k in range(curved.shape[1]):
            mean += chances[i, k] * directions[i, k]
        factor = sample_weight[i] if len(sample_weight) > 0 else 1.0
        for k in range(curved.shape[1]):
            curved[i, k] = factor * chances[i, k] * (directions[i, k] - mean)


@inlined
def _largest(outputs: Any) -> Any:
    largest = outputs[0]
    for k in range(1, len(outputs)):
        largest = max(largest, outputs[k])
    return largest


register_vector_kernels(SoftmaxLoss, value=_value, slope=_slope)
