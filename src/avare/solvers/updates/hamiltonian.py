"""Steps of Hamiltonian dynamics with friction: a kick, half a move, friction with noise, and half a move.

With a velocity v, friction r and step size h (BAOAB; the two half kicks of neighbouring steps are made at once, by the
same batch):

    v <- v - h sqrt(D) g,   x <- x + h/2 sqrt(D) v,   v <- c v + s xi,   x <- x + h/2 sqrt(D) v,

with c = exp(-r h) and s^2 = 1 - c^2 - c^2 h^2 V. V is the covariance of sqrt(D) g as far as it has been measured, and 0
before: the noise of the batches replaces a part of the noise of the friction. s is a matrix like V, of which only the
diagonal is used if there are many coordinates. For a normal law and an exact gradient, x has exactly the right law,
whatever the step size.
"""

import math
from typing import NamedTuple

import numpy as np

from avare._compilation import lean, product
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY, add_penalty

_WIDEST = 256  # coordinates, up to which the noise of the friction has correlations


class Motion(NamedTuple):
    """What Hamiltonian steps remember."""

    scale: Vector
    """D, one number per coordinate."""
    root: Vector
    """Its square root."""
    velocity: Vector
    excess: Vector
    """The measured variances of the gradient estimate times sqrt(D), along the directions of `turn`."""
    turn: Vector
    """Directions, one per column; empty if they are the coordinates."""


class Hamiltonian(NamedTuple):
    """The state of Hamiltonian dynamics."""

    memory: Motion
    friction: float
    turned: Vector
    """What a step overwrites."""


def hamiltonian(scale: Vector, friction: float, velocity: Vector, *, measured: bool) -> Hamiltonian:
    """Return the state for a diagonal D; `measured` says whether the noise of the gradient will be measured."""
    dim = len(scale)
    turn = np.eye(dim if measured and dim <= _WIDEST else 0)
    return Hamiltonian(Motion(scale.copy(), np.sqrt(scale), velocity, np.zeros(dim), turn), friction, np.zeros(dim))


def principal(motion: Motion, noise: Vector) -> tuple[Vector, Vector]:
    """Return `Motion.excess` and `Motion.turn` for a covariance of the gradient estimate, or for variances alone."""
    if noise.ndim == 1 or len(noise) > _WIDEST:
        variances = noise if noise.ndim == 1 else np.diag(noise)
        return motion.scale * variances, np.empty((0, 0))
    values, vectors = np.linalg.eigh(motion.root[:, None] * noise * motion.root)
    return np.maximum(values, 0.0), np.ascontiguousarray(vectors)


# --- kernels -------------------------------------------------------------------------------


@APPLY.version(Hamiltonian)
@lean
def _apply(hamiltonian, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    x, gradient, turned = work.x, work.gradient, hamiltonian.turned
    _, root, velocity, excess, turn = hamiltonian.memory
    kept = math.exp(-hamiltonian.friction * size)
    for j in range(len(x)):
        velocity[j] -= size * root[j] * gradient[j]
        x[j] += 0.5 * size * root[j] * velocity[j]
    whole = len(turn) > 0
    if whole:
        _turn_into(turn, noise[done], turned)
    for j in range(len(x)):
        spread = math.sqrt(max(1.0 - kept * kept * (1.0 + size * size * excess[j]), 0.0))
        turned[j] = spread * (turned[j] if whole else noise[done, j])
    if whole:
        _turn_back(turn, turned, gradient)
    for j in range(len(x)):
        velocity[j] = kept * velocity[j] + (gradient[j] if whole else turned[j])
        x[j] += 0.5 * size * root[j] * velocity[j]
    return True


@product
def _turn_into(turn, vector, result):
    for j in range(len(result)):
        result[j] = 0.0
    for i in range(len(vector)):
        for j in range(len(result)):
            result[j] += turn[i, j] * vector[i]


@product
def _turn_back(turn, vector, result):
    for i in range(len(result)):
        total = 0.0
        for j in range(len(vector)):
            total += turn[i, j] * vector[j]
        result[i] = total
