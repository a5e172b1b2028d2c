"""Steps of Hamiltonian dynamics with friction: a kick, half a move, friction with noise, and half a move.

With a velocity v, friction r, step size h and the metric F (BAOAB; the two half kicks of neighbouring steps are made at
once, by the same batch):

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
from avare.solvers.kernels import APPLY, add_penalty
from avare.solvers.updates.metric import Metric, colour, whiten


class Motion(NamedTuple):
    """What Hamiltonian steps remember: a `Metric`, and ..."""

    root: Vector
    factor: Vector
    basis: Vector
    gain: Vector
    velocity: Vector
    excess: Vector
    """The measured variances of F^T g."""


class Hamiltonian(NamedTuple):
    """The state of Hamiltonian dynamics."""

    memory: Motion
    friction: float
    held: Vector
    """What a step overwrites."""


def hamiltonian(metric: Metric, friction: float, velocity: Vector) -> Hamiltonian:
    """Return the state for a metric, which is copied."""
    root, factor, basis, gain = (each.copy() for each in metric)
    none = np.zeros(len(velocity))
    return Hamiltonian(Motion(root, factor, basis, gain, velocity, none), friction, none.copy())


def subtract(motion: Motion, noise: Vector) -> None:
    """Subtract this covariance of F^T g from the noise of the friction; F, the velocity and the covariance are turned.

    Without a whole matrix F only its diagonal is used, and may be given alone.
    """
    if not len(motion.factor):
        motion.excess[:] = noise
        return
    values, turn = np.linalg.eigh(noise)
    motion.excess[:], motion.factor[:] = np.maximum(values, 0.0), motion.factor @ turn
    motion.velocity[:], noise[:] = motion.velocity @ turn, np.diag(values)


@APPLY.version(Hamiltonian)
@lean
def _apply(hamiltonian, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    motion, held, kept = hamiltonian.memory, hamiltonian.held, math.exp(-hamiltonian.friction * size)
    velocity = motion.velocity
    whiten(motion, work.gradient, held)
    for j in range(len(held)):
        velocity[j] -= size * held[j]
        spread = math.sqrt(max(1.0 - kept * kept * (1.0 + size * size * motion.excess[j]), 0.0))
        held[j] = velocity[j]
        velocity[j] = kept * velocity[j] + spread * noise[done, j]
        held[j] = 0.5 * size * (held[j] + velocity[j])
    colour(motion, held, work.gradient)
    for j in range(len(held)):
        work.x[j] += work.gradient[j]
    return True
