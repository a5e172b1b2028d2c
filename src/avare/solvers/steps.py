"""Steps: draw, estimate, apply, learn, record; compiled if the problem and the sampler have kernels.

Both loops do the same arithmetic in the same order and use the same random numbers, so that they give the same iterates
from the same seed.
"""

from typing import Any

import numpy as np

from avare._compilation import lean
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.samplers.gain import smooth
from avare.samplers.kernels import can_learn, draw_into, learn_from
from avare.solvers.checkpoint import ArrayGroups
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.kernels import NEVER, IterateRecord, Work, apply, estimate, record_iterate, record_of
from avare.state import State


class Steps:
    """Steps with an estimator and an update, which change the iterate of the estimator in place.

    Parameters
    ----------
    name : str
        The name of the method.
    sampler : Sampler
    estimator : PlainEstimator
        Or one derived from it.
    update : NamedTuple
        The state of an update.
    record : IterateRecord, optional
        What to keep of the iterates; nothing by default.
    """

    period: int = NEVER
    """After how many steps to call `check`, again and again."""

    def __init__(
        self, name: str, sampler: Sampler, estimator: PlainEstimator, update: Any, record: IterateRecord | None = None
    ) -> None:
        self.problem, self.x, m = estimator.problem, estimator.x, sampler.batch_size
        self.name, self.sampler, self.estimator, self.update = name, sampler, estimator, update
        self.record = record_of(self.problem.dim) if record is None else record
        self.epoch_steps = max(1, self.problem.n // m)
        table = self.x.reshape(estimator.shape)
        buffers = (np.empty(m, dtype=np.int64), np.empty(m), np.empty(m), np.empty(m), estimator.scratch)
        self.work = Work(self.x, table, estimator.gradient, self.problem.penalty.l2, *buffers)
        self.compiled = isinstance(self.problem, Linear) and can_learn(sampler.kernels) and not sampler.follows_path

    def advance(self, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        return (self._advance_compiled if self.compiled else self._advance_plainly)(step, sizes, noise)

    def _advance_compiled(self, step: int, sizes: Vector, noise: Vector) -> int:
        assert isinstance(self.problem, Linear)
        model, n, state = self.problem.model, self.problem.n, self.estimator.state

        def loop(kernels: Any, drawn: int, source: Any, moments: Vector) -> int:
            sampler, numbers = (kernels, source, moments), (n, drawn, step)
            return int(advance(sampler, model, state, self.update, self.record, self.work, numbers, sizes, noise))

        return self.sampler.drive(loop, len(sizes))

    def _advance_plainly(self, step: int, sizes: Vector, noise: Vector) -> int:
        sampler, work = self.sampler, self.work
        for done, size in enumerate(sizes):
            batch = sampler.sample()
            work.indices[:], work.probabilities[:], work.weights[:] = batch.indices, batch.probabilities, batch.weights
            before = self.x.copy() if sampler.follows_path else self.x
            if not self.estimator.take(work) or not apply(self.update, work, size, noise, done, step + done + 1):
                return done
            sampler.update(batch.indices, work.norms)
            if sampler.follows_path:
                sampler.move(float(np.linalg.norm(self.x - before)))  # type: ignore[attr-defined]  # these have it
            record_iterate(self.record, self.x, step + done + 1)
        return len(sizes)

    def check(self, step: int) -> str | None:
        """Adapt to what the last steps have shown; return why the iterates have converged, if they have."""
        return None

    def step_size_factor(self) -> float:
        """Return what multiplies the given step sizes."""
        return 1.0

    def settings(self) -> State:
        """Return what must be the same when a state is resumed: all numbers of the record and the update."""
        found = {"method": self.name, "dim": self.problem.dim, "n": self.problem.n}
        fields = {**self.record._asdict(), **self.update._asdict()}
        return {**found, **{key: each for key, each in fields.items() if isinstance(each, int | float)}}

    def array_groups(self) -> ArrayGroups:
        """Return what to save besides the iterate: see `avare.solvers.checkpoint`."""
        moves = self.estimator.control == "saga"  # a table at a mode follows from the mode
        return {"update": self.update, "record": self.record, **({"estimator": self.estimator.state} if moves else {})}


# --- kernels -------------------------------------------------------------------------------


@lean
def advance(sampler, model, estimator, update, record, work, numbers, sizes, noise):
    """Make one step per size, until one is not finite; return how many were."""
    kernels, source, moments = sampler
    n, drawn, step = numbers
    for done in range(len(sizes)):
        draw_into(kernels, drawn + done, source, work.indices, work.probabilities, work.weights)
        if not estimate(estimator, model, work):
            return done
        if not apply(update, work, sizes[done], noise, done, step + done + 1):
            return done
        smooth(moments, n, work.weights, work.probabilities, work.norms)
        learn_from(kernels, work.indices, work.norms)
        record_iterate(record, work.x, step + done + 1)
    return len(sizes)
