"""The steps of a chain: Langevin, or Hamiltonian with friction; compiled if the problem and the sampler have kernels.

With g an estimate of the gradient of f, D a diagonal and xi standard normal, a step of Langevin dynamics of size a is

    x <- x - a D g + sqrt(2 a D) xi.

A step of Hamiltonian dynamics of size h, with a velocity v and friction r, is a kick, half a move, friction with
noise, and half a move (BAOAB, with the two half kicks of neighbouring steps made at once, by the same batch):

    v <- v - h sqrt(D) g,   x <- x + h/2 sqrt(D) v,   v <- c v + s xi,   x <- x + h/2 sqrt(D) v,

with c = exp(-r h) and s^2 = 1 - c^2 - c^2 h^2 V. V is the covariance of sqrt(D) g, where it was measured, and 0 before:
the noise of the batches takes the place of a part of the noise of the friction. s is a matrix like V, of which only the
diagonal is used if there are many coordinates. For a normal law and an exact gradient, x has exactly the right law,
whatever the step size.

The compiled loop and the loop in Python do the same arithmetic in the same order and use the same random numbers.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from avare._compilation import lean, product
from avare._state import Field, State, read
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.samplers.base import smooth
from avare.samplers.kernels import can_learn, draw_into, learn_from
from avare.solvers.control import Estimator, batch_gradients, estimate
from avare.solvers.steps import NEVER, Iterates, Settings, magnitude

PRECONDITIONS = ("none", "hessian", "moments")
_BATCHES = 32  # to measure the noise of the gradient with, every so often
_KEEP = 0.98  # of earlier measurements
_WIDEST = 256  # coordinates, up to which the noise of the friction has correlations
_PERIOD, _OFTEN = 1000, 4  # steps between two measurements; at first it is measured this many times as often
_ADAPTATIONS = 20  # of the scale
_LEAST = 1e-12  # of the largest second moment: coordinates below it do not move faster
_NAME = "dynamics/kind"
MODE = "dynamics/mode"
"""Where a state has the mode."""


class Motion(NamedTuple):
    """What moves an iterate, as kernels take it."""

    friction: float
    """0 for Langevin dynamics."""
    velocity: Vector
    scale: Vector
    """D."""
    root: Vector
    """Its square root."""
    excess: Vector
    """The variances of the gradient estimate times sqrt(D), as far as they are known, along ..."""
    turn: Vector
    """... these directions, one per column; empty: along the coordinates."""
    turned: Vector
    """What a step overwrites."""


class Dynamics:
    """The steps of one chain: a `Method` of the loop.

    Parameters
    ----------
    scale
        D, one number per coordinate.
    friction
        0 for Langevin dynamics.
    adapt_until
        The scale is taken from second moments of the gradient until this step.
    """

    def __init__(
        self,
        estimator: Estimator,
        sampler: Sampler,
        iterates: Iterates,
        *,
        scale: Vector,
        friction: float = 0.0,
        adapt_until: int = 0,
        velocity: Vector | None = None,
    ) -> None:
        self.estimator, self._sampler, self._iterates = estimator, sampler, iterates
        self._adapt_until = adapt_until
        dim = len(iterates.x)
        moved = np.zeros(0) if velocity is None else velocity.copy()
        whole = dim if friction > 0.0 and sampler.independent and dim <= _WIDEST else 0
        turn = np.eye(dim)[:whole, :whole]
        self.motion = Motion(friction, moved, scale.copy(), np.sqrt(scale), np.zeros(dim), turn.copy(), np.empty(dim))
        self._moments = np.zeros(dim)  # second moments of the gradient, for the scale
        self._noise = np.zeros((whole, whole))  # the covariance of the gradient estimate
        self._measured = np.zeros(1, dtype=np.int64)  # how often
        self.period = NEVER
        if friction > 0.0 and sampler.independent:
            self.period = max(1, _PERIOD // _OFTEN)
        if adapt_until > 0:
            self.period = max(1, adapt_until // _ADAPTATIONS)
        problem = estimator.problem
        self._compiles = isinstance(problem, Linear) and can_learn(sampler._compiled()) and not sampler.follows_path

    # --- the method of a loop -----------------------------------------------------------------

    def advance(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        return (self._advance_compiled if self._compiles else self._advance_plainly)(settings, step, sizes, noise)

    def check(self, step: int) -> str | None:
        """Measure the noise of the gradient, with batches that the sampler does not learn from; a chain never ends."""
        late = step > max(self._adapt_until, _OFTEN * _PERIOD)
        if late and (self.motion.friction == 0.0 or step % _PERIOD >= self.period):
            return None
        sampler, x, motion = self._sampler, self._iterates.x, self.motion
        found = batch_gradients(self.estimator, sampler, x, _BATCHES)
        if 0 < self._adapt_until >= step:
            self._take_in(self._moments, np.mean((found + self.estimator.problem._l2 * x) ** 2, axis=0))
            motion.scale[:] = 1.0 / np.maximum(self._moments, _LEAST * max(float(self._moments.max()), 1e-300))
            motion.root[:] = np.sqrt(motion.scale)
        if motion.friction > 0.0 and sampler.independent:
            found -= found.mean(axis=0)
            if len(motion.turn):
                self._take_in(self._noise, found.T @ found / (_BATCHES - 1))
                motion.excess[:], motion.turn[:] = principal(motion, self._noise)
            else:
                self._take_in(motion.excess, motion.scale * (found**2).sum(axis=0) / (_BATCHES - 1))
        self._measured[0] += 1
        return None

    def _take_in(self, average: Vector, found: Vector) -> None:
        keep = min(_KEEP, 1.0 - 1.0 / (self._measured[0] + 1.0))
        average[:] = keep * average + (1.0 - keep) * found

    def norms(self) -> Vector:
        """Return the true norms that the sampler would learn."""
        return self.estimator.norms(self._iterates.x)

    def state(self) -> dict[str, Any]:
        """Return what else to save; nothing for plain Langevin steps."""
        if self._kind() == _PLAIN:
            return {}
        return {_NAME: self._kind(), **{name: array.copy() for name, array in self._arrays().items()}}

    def read(self, state: Mapping[str, Any], step: int) -> State:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""
        found = state.get(_NAME, _PLAIN)
        if found != self._kind():
            raise ValueError(f"resume was made with {found}: this call has {self._kind()}")
        fields = {name: Field(array.dtype, array.shape) for name, array in self._arrays().items()}
        return {} if found == _PLAIN else read(state, fields, "resume")

    def resume(self, values: State) -> None:
        """Continue from what `read` returned."""
        for name, array in values.items():
            self._arrays()[name][...] = array

    def _arrays(self) -> dict[str, Any]:
        """All that the steps remember, by name."""
        table, motion = self.estimator.table, self.motion
        arrays = {
            "mode": np.empty(0) if self.estimator.mode is None else self.estimator.mode,
            "slopes": table.slopes,
            "sums": table.sums,
            "velocity": motion.velocity,
            "scale": motion.scale,
            "root": motion.root,
            "excess": motion.excess,
            "turn": motion.turn,
            "noise": self._noise,
            "moments": self._moments,
            "measured": self._measured,
        }
        return {f"dynamics/{name}": array for name, array in arrays.items()}

    def _kind(self) -> str:
        motion = self.motion
        scaled = self._adapt_until > 0 or bool((motion.scale != 1.0).any())
        return f"control={self.estimator.control}, friction={motion.friction:g}, scaled={scaled}"

    # --- their parts --------------------------------------------------------------------------

    def _advance_compiled(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        sampler, estimator = self._sampler, self.estimator
        assert isinstance(estimator.problem, Linear)
        with sampler._lock:
            done: int = _advance(
                sampler._compiled(),
                estimator.problem._model,
                settings,
                (sampler.n, sampler._steps, step),
                sampler._source,
                sampler._moments,
                sizes,
                noise,
                self._iterates,
                self.motion,
                estimator.table,
                estimator.buffers,
                estimator.scratch,
            )
            sampler._steps += min(done + 1, len(sizes))
            return done

    def _advance_plainly(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        sampler, estimator, x = self._sampler, self.estimator, self._iterates.x
        for done, size in enumerate(sizes):
            batch = sampler.sample()
            estimator.take(batch.indices, batch.weights)
            before = x.copy() if sampler.follows_path else x
            if not move(settings, self.motion, x, estimator.buffers, size, noise[done]):
                return done
            sampler.update(batch.indices, estimator.buffers.norms)
            if sampler.follows_path:
                sampler.move(float(np.linalg.norm(x - before)))  # type: ignore[attr-defined]  # such samplers have it
            keep(settings, self._iterates, step + done + 1)
        return len(sizes)


def principal(motion: Motion, noise: Vector) -> tuple[Vector, Vector]:
    """Return `Motion.excess` and `Motion.turn` for a covariance of the gradient estimate, or for variances alone."""
    if noise.ndim == 1 or len(noise) > _WIDEST:
        variances = noise if noise.ndim == 1 else np.diag(noise)
        return motion.scale * variances, np.empty((0, 0))
    values, vectors = np.linalg.eigh(motion.root[:, None] * noise * motion.root)
    return np.maximum(values, 0.0), np.ascontiguousarray(vectors)


_PLAIN = "control=none, friction=0, scaled=False"  # the only kind that earlier states have


# --- kernels -------------------------------------------------------------------------------


@lean
def _advance(state, model, settings, numbers, source, moments, sizes, noise, iterates, motion, table, buffers, scratch):
    n, drawn, step = numbers
    for done in range(len(sizes)):
        draw_into(state, drawn + done, source, buffers.indices, buffers.probabilities, buffers.weights)
        estimate(model, table, buffers, scratch)
        if not move(settings, motion, iterates.x, buffers, sizes[done], noise[done]):
            return done
        learn_from(state, buffers.indices, buffers.norms)
        smooth(moments, n, buffers.weights, buffers.probabilities, buffers.norms)
        keep(settings, iterates, step + done + 1)
    return len(sizes)


@lean
def move(settings, motion, x, buffers, size, noise):
    """Move the iterate by the gradient in the buffers, to which the l2 term is added; return whether it was finite."""
    gradient, velocity, root = buffers.gradient, motion.velocity, motion.root
    for j in range(len(x)):
        gradient[j] += settings.l2[j] * x[j]
    if not np.isfinite(size * (magnitude(gradient) + magnitude(buffers.norms))):
        return False
    if motion.friction == 0.0:
        spread = math.sqrt(2.0 * size)
        for j in range(len(x)):
            x[j] -= size * motion.scale[j] * gradient[j] - spread * root[j] * noise[j]
        return True
    kept, turned = math.exp(-motion.friction * size), motion.turned
    for j in range(len(x)):
        velocity[j] -= size * root[j] * gradient[j]
        x[j] += 0.5 * size * root[j] * velocity[j]
    whole = len(motion.turn) > 0
    if whole:
        _turn_into(motion.turn, noise, turned)
    for j in range(len(x)):
        spread = math.sqrt(max(1.0 - kept * kept * (1.0 + size * size * motion.excess[j]), 0.0))
        turned[j] = spread * (turned[j] if whole else noise[j])
    if whole:
        _turn_back(motion.turn, turned, gradient)
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


@lean
def keep(settings, iterates, step):
    """Keep the iterate as a draw, if it is due after this step."""
    after = step - settings.burn_in
    if after > 0 and after % settings.thin == 0:
        for j in range(len(iterates.x)):
            iterates.draws[after // settings.thin - 1, j] = iterates.x[j]
