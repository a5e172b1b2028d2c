"""Steps of dynamics whose law is the posterior, in the metric F, with xi standard normal.

Langevin steps of size a are

    x <- x - a F F^T g + sqrt(2 a) F xi.

Hamiltonian steps have a velocity v and friction r: a kick, half a move, friction with noise, and half a move. With the
step size h (BAOAB; the two half kicks of neighbouring steps are made at once, by the same batch),

    v <- v - h F^T g,   x <- x + h/2 F v,   v <- c v + s xi,   x <- x + h/2 F v,

with c = exp(-r h) and s^2 = 1 - c^2 - c^2 h^2 V. V are the variances of F^T g as far as they have been measured, and 0
before: the noise of the batches replaces a part of the noise of the friction. If F is a whole matrix, it is turned such
that F^T g has no correlations. For a normal law and an exact gradient, x has exactly the right law, whatever the step
size.
"""

import math
from typing import NamedTuple

import numpy as np

from avare._compilation import lean
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY, SAVED, add_penalty, move_by_gradient
from avare.solvers.updates.metric import Metric, colour, whiten


class Langevin(NamedTuple):
    """The state of Langevin dynamics."""

    metric: Metric
    held: Vector
    """What a step overwrites."""


SAVED[Langevin] = ()


class Hamiltonian(NamedTuple):
    """The state of Hamiltonian dynamics."""

    metric: Metric
    velocity: Vector
    excess: Vector
    """The measured variances of F^T g."""
    held: Vector
    """What a step overwrites."""
    friction: float


SAVED[Hamiltonian] = ("velocity", "excess")


def subtract(motion: Hamiltonian, noise: Vector) -> None:
    """Subtract this covariance of F^T g from the noise of the friction; F, the velocity and the covariance are turned.

    Without a whole matrix F only its diagonal is used, and may be given alone.
    """
    factor = motion.metric.factor
    if not len(factor):
        motion.excess[:] = noise
        return
    values, turn = np.linalg.eigh(noise)
    motion.excess[:], factor[:] = np.maximum(values, 0.0), factor @ turn
    motion.velocity[:], noise[:] = motion.velocity @ turn, np.diag(values)


# --- kernels -------------------------------------------------------------------------------


@APPLY.version(Langevin)
@lean
def _apply_langevin(langevin, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    held, spread = langevin.held, math.sqrt(2.0 * size)
    whiten(langevin.metric, work.gradient, held)
    for j in range(len(held)):
        held[j] = spread * noise[done, j] - size * held[j]
    colour(langevin.metric, held, work.gradient)
    return move_by_gradient(work)


@APPLY.version(Hamiltonian)
@lean
def _apply_hamiltonian(motion, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    velocity, held, kept = motion.velocity, motion.held, math.exp(-motion.friction * size)
    whiten(motion.metric, work.gradient, held)
    for j in range(len(held)):
        velocity[j] -= size * held[j]
        spread = math.sqrt(max(1.0 - kept * kept * (1.0 + size * size * motion.excess[j]), 0.0))
        held[j] = velocity[j]
        velocity[j] = kept * velocity[j] + spread * noise[done, j]
        held[j] = 0.5 * size * (held[j] + velocity[j])
    colour(motion.metric, held, work.gradient)
    return move_by_gradient(work)
