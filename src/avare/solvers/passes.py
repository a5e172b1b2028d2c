"""Passes in order: many rows and few columns are fitted by a sample that the gradient of all rows corrects.

A pass over the rows in order takes a fraction of the time of as many random draws. At the iterate x0 it gives the
gradient g of all rows. A sample of the rows j, with weights w, gives the rest. The next iterate minimises

    sum_j w_j (f_j(x) - grad f_j(x0) . x) + g . x + penalty.

This is a control variate, as in SAGA: the gradient is exact at x0, and away from it only the *differences* from x0 are
those of the sample. Rows are drawn in proportion to these. Of the distance to the minimum, each pass leaves about the
root of (columns / rows of the sample).
"""

import math

import numpy as np
from numpy.typing import NDArray

from avare.problems.base import Vector
from avare.problems.linear import Linear, Survey
from avare.solvers.metric import bends_of

_SHARE = 16  # one over the share of the rows in a sample
_FEWEST, _ROWS_PER_COLUMN = 1000, 20  # rows in a sample
_NEWTON_STEPS, _ENOUGH = 20, 1e-3  # stop when a step promises less than this share of what the first one did
_SHORTEST = 1e-3  # of a Newton step
_FLAT = 1e-12  # of the largest curvature


def sample_size(problem: Linear) -> int | None:
    """The number of rows of a sample; None if there are too few."""
    size = problem.n // _SHARE
    return None if size < max(_FEWEST, _ROWS_PER_COLUMN * problem.width) else size


def sample_of(problem: Linear, size: int, scores: Vector, generator: np.random.Generator) -> Linear:
    """Draw rows in proportion to scores, with weights that make all sums unbiased."""
    ends = np.cumsum(scores)
    places = np.sort(generator.random(size)) * ends[-1]
    rows = np.minimum(np.searchsorted(ends, places, side="right"), np.flatnonzero(scores)[-1])
    weights = ends[-1] / (size * scores[rows])
    if len(problem._model.sample_weight):
        weights *= problem._model.sample_weight[rows]
    return problem._sample(rows, weights)


def first_scores(problem: Linear) -> Vector:
    """Scores for a sample before anything is known: the sample weights, with the same sum for each class."""
    weights, targets = problem._model.sample_weight, problem._model.targets
    scores = weights.copy() if len(weights) else np.ones(problem.n)
    if len(problem.classes):
        places = targets.astype(np.int64) if problem.target == "classes" else (targets > 0.0).astype(np.int64)
        shares = np.bincount(places, weights=scores)
        scores /= np.maximum(shares, np.finfo(float).tiny)[places]
    return scores


def corrected_minimum(problem: Linear, x: Vector, survey: Survey, lengths: NDArray[np.float32]) -> tuple[Vector, float]:
    """Return the minimum of a sample that is corrected by a survey at x, and what it promises the objective to fall by.

    `lengths` are those of the rows in some metric. By Newton's method, from x. If that takes too many steps, as with
    several classes of different curvatures, the promise is infinite.
    """
    size = sample_size(problem)
    assert size is not None
    sample = sample_of(problem, size, _scores(problem, survey, lengths.astype(np.float64)), np.random.default_rng(0))
    shift = survey.gradient - sample._gradient(x)

    def height(at: Vector) -> float:
        return sample._objective(at) + float(shift @ at) + problem._penalty(at)

    first = high = height(x)
    slope, enough = survey.gradient + problem._l2 * x, 0.0
    for step in range(_NEWTON_STEPS):
        direction = _newton_step(sample, x, slope)
        decrease = -float(slope @ direction)
        if not decrease > enough:
            break
        enough = enough if step else _ENOUGH * decrease
        size_of_step = 1.0
        while size_of_step >= _SHORTEST:
            there = x + size_of_step * direction
            low = height(there)
            if low <= high - 0.1 * size_of_step * decrease:
                break
            size_of_step *= 0.5
        else:
            break
        x, high = there, low
        slope = sample._gradient(x) + shift + problem._l2 * x
    else:
        return x, math.inf
    return x, first - high


def _scores(problem: Linear, survey: Survey, lengths: Vector) -> Vector:
    """How much the gradient of each example may differ from that at x: a third each by three measures.

    These are its curvature, its slope, and the bound on its curvature, for examples whose loss is flat at x only.
    """
    scores = np.zeros(problem.n)
    slopes = np.abs(survey.slopes).sum(axis=1)
    for each in (survey.curvatures * lengths**2, slopes * lengths, bends_of(problem) * lengths**2):
        total = float(each.sum())
        scores += each / total if total > 0.0 else 1.0 / problem.n
    return scores


def _newton_step(sample: Linear, x: Vector, slope: Vector) -> Vector:
    """With several outputs, one matrix serves all."""
    matrix = sample.gram(x)
    matrix[np.diag_indices_from(matrix)] += sample._l2[: sample.width]
    root = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(matrix / root / root[:, None])
    scaled = slope.reshape(sample.outputs, sample.width) / root
    found = (scaled @ vectors) / np.maximum(values, _FLAT * max(float(values[-1]), 1e-300)) @ vectors.T
    return np.asarray(-found / root).ravel()
