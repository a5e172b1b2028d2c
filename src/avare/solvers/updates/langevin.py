"""Steps of Langevin dynamics, x <- x - a F F^T g + sqrt(2 a) F xi, with the metric F and xi standard normal."""

import math
from typing import NamedTuple

import numpy as np

from avare._compilation import lean
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY, add_penalty
from avare.solvers.updates.metric import Metric, colour, whiten


class Langevin(NamedTuple):
    """The state of Langevin dynamics."""

    memory: Metric
    held: Vector
    """What a step overwrites."""


def langevin(metric: Metric) -> Langevin:
    """Return the state for a metric, which is copied."""
    return Langevin(Metric(*(each.copy() for each in metric)), np.zeros(len(metric.root)))


@APPLY.version(Langevin)
@lean
def _apply(langevin, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    held, spread = langevin.held, math.sqrt(2.0 * size)
    whiten(langevin.memory, work.gradient, held)
    for j in range(len(held)):
        held[j] = spread * noise[done, j] - size * held[j]
    colour(langevin.memory, held, work.gradient)
    for j in range(len(held)):
        work.x[j] += work.gradient[j]
    return True
