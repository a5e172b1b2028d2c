"""Steps of Langevin dynamics, x <- x - a D g + sqrt(2 a D) xi, with D a diagonal and xi standard normal."""

import math
from typing import NamedTuple

import numpy as np

from avare._compilation import lean
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY, add_penalty


class Scale(NamedTuple):
    """The preconditioner of a chain."""

    scale: Vector
    """D, one number per coordinate."""
    root: Vector
    """Its square root."""


class Langevin(NamedTuple):
    """The state of Langevin dynamics."""

    memory: Scale


def langevin(scale: Vector) -> Langevin:
    """Return the state for a diagonal D."""
    return Langevin(Scale(scale.copy(), np.sqrt(scale)))


@APPLY.version(Langevin)
@lean
def _apply(langevin, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    scale, root = langevin.memory
    spread = math.sqrt(2.0 * size)
    for j in range(len(work.x)):
        work.x[j] -= size * scale[j] * work.gradient[j] - spread * root[j] * noise[done, j]
    return True
