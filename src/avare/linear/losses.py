"""What the solver needs of a loss besides `avare.problems`: convex conjugates, and a quick logistic loss.

For a loss l of one example, its conjugate l*(s) = max_z (s z - l(z)), and any dual variable s, the Fenchel-Young sum
l(z) + l*(s) - s z is at least 0, and 0 for the derivative s = l'(z). Summed over the examples, it is the part of the
duality gap that the losses contribute. A loss whose derivative is clipped to `slope_range` and linear in between has
the conjugate s y + s^2 / (2 curvature); those of probabilities are entropies.
"""

import math
from typing import Any

import numpy as np

from avare._compilation import lean, quick
from avare.problems.linear import Linear, Terms
from avare.problems.logistic import LogisticLoss
from avare.problems.rows import Array
from avare.problems.softmax import SoftmaxLoss

_BLOCK = 512  # examples at a time: their numbers stay in the nearest cache
_LOG2_E = 1.4426950408889634  # 1 / log(2)
_LN2_HIGH, _LN2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6  # log(2) in two parts: k times the first is exact
_NEAR = 0.5  # of a probability: up to this change, the logarithm is bounded by a quotient that does not cancel
_CERTAIN, _ROUNDING = 1e-12, 1e-15  # a probability below is not divided by; what one may be above 1 by rounding
_INSIDE = 1.0 - 1e-15  # of the domain of a conjugate: clipped dual variables are not beyond its end by rounding


def terms_at(problem: Linear, outputs: Array) -> Terms:
    """Return the losses, their first and their second derivatives, for a row of linear predictors each. O(n).

    That of the logistic loss takes about half of the time of `Linear.terms_at`.
    """
    if not isinstance(problem.model.loss, LogisticLoss):
        return problem.terms_at(outputs)
    slopes, curvatures, bits = np.empty(outputs.shape), np.empty(outputs.shape), np.empty(_BLOCK, dtype=np.int64)
    arrays = (outputs[:, 0], slopes[:, 0], curvatures[:, 0], np.empty(_BLOCK), bits, bits.view(np.float64))
    loss = _logistic_terms_into(problem.model.targets, problem.model.sample_weight, *arrays)
    return Terms(float(loss), slopes, curvatures)


def curvature_of_pair(problem: Linear, terms: Terms, k: int, j: int, part: Any = slice(None)) -> Array:
    """Return the second derivative of some losses by two of their outputs; by different ones, minus this."""
    if not isinstance(problem.model.loss, SoftmaxLoss):
        return terms.curvature[part, 0]
    chances, weights = terms.curvature[part].T, problem.model.sample_weight
    curvatures = chances[k] * (1.0 - chances[k] if k == j else chances[j])
    return curvatures * weights[part] if len(weights) else curvatures


def summed_curvature(problem: Linear, terms: Terms) -> Array:
    """Return the sum of the second derivatives of all losses: a matrix with a row per output. O(n outputs^2)."""
    if not isinstance(problem.model.loss, SoftmaxLoss):
        return np.array([[terms.curvature.sum()]])
    weights = problem.model.sample_weight
    weighted = terms.curvature.T * weights if len(weights) else terms.curvature.T
    return np.asarray(np.diag(weighted.sum(axis=1)) - weighted @ terms.curvature)


def fenchel_young(problem: Linear, outputs: Array, terms: Terms, duals: Array) -> float:
    """Sum the losses at some outputs, plus their conjugates at some dual variables, less the products of both. O(n).

    `terms` are those of the outputs. It is infinite if a dual variable is outside of the domain of the conjugate, or
    if the conjugate is not known.
    """
    targets, weights = problem.model.targets, problem.model.sample_weight
    if isinstance(problem.model.loss, SoftmaxLoss):
        return float(_softmax_divergence(targets, weights, outputs, terms.curvature, duals))
    outputs, duals = outputs[:, 0], np.ascontiguousarray(duals[:, 0])
    if isinstance(problem.model.loss, LogisticLoss):
        return float(_logistic_divergence(targets, weights, outputs, terms.slopes[:, 0], duals))
    if problem.slope_range is None:
        return math.inf
    is_signed = problem.target == "two classes"
    return terms.loss + float(
        _quadratic_conjugates(targets, weights, outputs, duals, problem.curvature, *problem.slope_range, is_signed)
    )


def clip(problem: Linear, duals: Array) -> Array:
    """Return the dual variables, those outside of the domains of the conjugates moved to the nearest end. O(n)."""
    targets, weights = problem.model.targets, problem.model.sample_weight
    if isinstance(problem.model.loss, SoftmaxLoss):
        inside = duals.copy()
        _clip_to_simplex(targets, weights, inside)
        return inside
    if problem.slope_range is None or problem.is_quadratic:
        return duals
    sizes = _INSIDE * (weights[:, None] if len(weights) else 1.0)
    sizes = sizes * targets[:, None] if problem.target == "two classes" else sizes
    first, second = (end * sizes for end in problem.slope_range)
    return np.clip(duals, np.minimum(first, second), np.maximum(first, second))


# --- kernels -------------------------------------------------------------------------------


@lean
def _quadratic_conjugates(targets, sample_weight, outputs, slopes, curvature, low, high, is_signed):
    """Sum slope (slope / 2 curvature + target - output) over all examples, times their weights.

    Infinite if a slope, or the target times it, is out of a range.
    """
    total = 0.0
    for i in range(len(slopes)):
        factor = sample_weight[i] if len(sample_weight) > 0 else 1.0
        each = slopes[i] / factor if factor > 0.0 else 0.0
        if not low <= (each * targets[i] if is_signed else each) <= high:
            return math.inf
        total += factor * each * (0.5 * each / curvature + targets[i] - outputs[i])
    return total


@quick
def _logistic_terms_into(targets, sample_weight, outputs, slopes, curvatures, small, bits, powers):
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
def _logistic_divergence(targets, sample_weight, outputs, slopes, others):
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


@quick
def _clip_to_simplex(targets, sample_weight, slopes):
    """Replace slopes that belong to no probabilities: negative ones become 0."""
    for i in range(len(slopes)):
        factor, target, total = sample_weight[i] if len(sample_weight) > 0 else 1.0, int(targets[i]), 0.0
        for k in range(slopes.shape[1]):
            total += max(slopes[i, k] + factor * (k == target), 0.0)
        if total > factor * (1.0 + _ROUNDING):
            for k in range(slopes.shape[1]):
                slopes[i, k] = max(slopes[i, k] + factor * (k == target), 0.0) * (factor / total)
            slopes[i, target] -= factor


@quick
def _softmax_divergence(targets, sample_weight, outputs, chances, slopes):
    """Sum the losses at their outputs, plus their conjugates at some slopes, less the outputs times these.

    For one example it is the Kullback-Leibler divergence of two sets of probabilities, p by the slopes and q by the
    outputs. Where they are near to each other, log(1 + u) <= u (6 + u) / (6 + 4 u) bounds it.
    """
    total = 0.0
    for i in range(len(outputs)):
        factor, target = sample_weight[i] if len(sample_weight) > 0 else 1.0, int(targets[i])
        known, divergence = math.inf, 0.0
        for k in range(outputs.shape[1] if factor > 0.0 else 0):
            q, p = chances[i, k], slopes[i, k] / factor + (k == target)
            if p < -_ROUNDING:
                return math.inf
            change = p - q
            if abs(change) <= _NEAR * q and q > _CERTAIN:
                u = change / q
                divergence += p * u * (6.0 + u) / (6.0 + 4.0 * u)
            elif p > 0.0:
                if known == math.inf:
                    likeliest = np.argmax(chances[i])
                    known = math.log(chances[i, likeliest]) - outputs[i, likeliest]
                divergence += p * (math.log(p) - known - outputs[i, k])
        total += factor * divergence
    return total
