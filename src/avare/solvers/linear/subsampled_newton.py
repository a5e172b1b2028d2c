"""Subsampled Newton: many rows and few columns are fitted by a sample that the gradient of all rows corrects.

A pass over the rows in order takes a fraction of the time of as many random draws. At the iterate x0 it gives the
gradient g of all rows. A sample of the rows j, with weights w, gives the rest. The next iterate minimises

    sum_j w_j (f_j(x) - grad f_j(x0) . x) + g . x + penalty.

This is a control variate, as in SAGA: the gradient is exact at x0, and away from it only the *differences* from x0 are
those of the sample. Rows are drawn in proportion to these. Of the distance to the minimum, each pass leaves roughly the
root of (columns / rows of the sample). If the objective does not fall as the sample promises, the method stops.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from avare.problems.base import Vector
from avare.problems.linear import Linear, Survey
from avare.solvers.checkpoint import ANY_NUMBER, Bounds, Memory
from avare.solvers.linear.preconditioner import Preconditioner, bends_of, length_of
from avare.solvers.linear.tolerance import Tolerance
from avare.solvers.loop import Method

_SHARE = 16  # one over the share of the rows in a sample
_FEWEST, _ROWS_PER_COLUMN = 1000, 20  # rows in a sample
_NEWTON_STEPS, _ENOUGH = 20, 1e-3  # stop when a step promises less than this share of what the first one did
_SHORTEST = 1e-3  # of a Newton step
_FLAT = 1e-12  # of the largest curvature
_KEPT = 0.25  # of the decrease that a pass promises: with less, it was the last


@dataclass
class Promise:
    """What the last pass has promised."""

    last_x: Vector
    """The iterate before it."""
    height: float
    """Objective at the last survey."""
    decrease: float = 0.0
    """Decrease that it promised."""
    surveyed: bool = True
    """Whether there is a survey of the present iterate."""


class SubsampledNewton(Method):
    """Passes over the data, each a step, from an iterate x with a survey of all examples."""

    name = "subsampled_newton"
    period = 1
    problem: Linear

    def __init__(
        self, problem: Linear, x: Vector, survey: Survey, preconditioner: Preconditioner, *, tol: float
    ) -> None:
        super().__init__(problem, x)
        self._preconditioner, self.survey = preconditioner, survey
        self._tol, self._tolerance = tol, Tolerance(tol, problem.loss_at_zero(), margin=1.0)  # surveys are exact
        self._promise = Promise(x.copy(), survey.loss + problem.penalty.value(x))

    def advance(self, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one pass, unless the one before was no success; return how many were made."""
        if len(sizes) and not self._promise.surveyed:
            self._look()
        if len(sizes) == 0 or self.stopped:
            return 0
        self._promise.last_x[:] = self.x
        lengths = self._preconditioner.lengths
        self.x[:], self._promise.decrease = corrected_minimum(self.problem, self.x, self.survey, lengths)
        self._promise.surveyed = False
        return 1

    def check(self, step: int) -> str | None:
        """Survey all examples; return why the iterates have converged, if they have."""
        if self._tol == 0.0:
            return None
        self._look()
        length = length_of(self._preconditioner, self.problem, self.x, self.survey.gradient)
        return self._tolerance.reached(step, length, lambda: length)

    def _look(self) -> None:
        """Survey all examples. If the objective has not fallen as the last pass promised, it was the last."""
        before = self._promise.height
        self._see()
        if not before - self._promise.height >= _KEPT * self._promise.decrease:
            self.stopped = "the objective did not fall as the sample promised"
            if not self._promise.height < before:
                self.x[:] = self._promise.last_x
                self._see()

    def _see(self) -> None:
        self.survey = self.problem.survey(self.x)
        self._promise.height = self.survey.loss + self.problem.penalty.value(self.x)
        self._promise.surveyed = True

    def memory(self) -> Memory:
        """Return what to save besides the iterate."""
        return {"promise": self._promise}

    def bounds(self, step: int) -> Bounds:
        """Return the bounds of fields in the memory that are not any finite number."""
        return {"promise/height": ANY_NUMBER, "promise/decrease": ANY_NUMBER}

    def resumed(self) -> None:
        """Survey the iterate again, if it was surveyed."""
        if self._promise.surveyed:
            self.survey = self.problem.survey(self.x)


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
    if len(problem.model.sample_weight):
        weights *= problem.model.sample_weight[rows]
    return problem.subset(rows, weights)


def corrected_minimum(problem: Linear, x: Vector, survey: Survey, lengths: NDArray[np.float32]) -> tuple[Vector, float]:
    """Return the minimum of a sample that is corrected by a survey at x, and what it promises the objective to fall by.

    `lengths` are those of the rows in some preconditioner. Newton's method starts at x and surveys the sample at each
    step. If that takes too many steps, as with several classes of different curvatures, the promise is infinite.
    """
    size = sample_size(problem)
    assert size is not None
    sample = sample_of(problem, size, _scores(problem, survey, lengths.astype(np.float64)), np.random.default_rng(0))
    here = sample.survey(x)
    shift = survey.gradient - here.gradient

    def height(at: Vector, there: Survey) -> float:
        return there.loss + float(shift @ at) + problem.penalty.value(at)

    first = high = height(x, here)
    enough = 0.0
    for step in range(_NEWTON_STEPS):
        slope = here.gradient + shift + problem.penalty.l2 * x
        direction = _newton_step(sample, x, here.curvatures, slope)
        decrease = -float(slope @ direction)
        if not decrease > enough:
            break
        enough = enough if step else _ENOUGH * decrease
        size_of_step = 1.0
        while size_of_step >= _SHORTEST:
            x_there = x + size_of_step * direction
            there = sample.survey(x_there)
            low = height(x_there, there)
            if low <= high - 0.1 * size_of_step * decrease:
                break
            size_of_step *= 0.5
        else:
            break
        x, here, high = x_there, there, low
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


def _newton_step(sample: Linear, x: Vector, curvatures: Vector, slope: Vector) -> Vector:
    """With several outputs, one matrix serves all."""
    matrix = sample.gram(x, curvatures)
    matrix[np.diag_indices_from(matrix)] += sample.penalty.l2[: sample.width]
    root = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(matrix / root / root[:, None])
    scaled = slope.reshape(sample.outputs, sample.width) / root
    found = (scaled @ vectors) / np.maximum(values, _FLAT * max(float(values[-1]), 1e-300)) @ vectors.T
    return np.asarray(-found / root).ravel()
