"""Steps that draw batches: draw, estimate, apply, learn, record; compiled if the problem and the sampler have kernels.

Both loops do the same arithmetic in the same order and use the same random numbers, so that they give the same iterates
from the same seed.
"""

from typing import Any

import numpy as np

from avare._compilation import lean
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.samplers.base import smooth
from avare.samplers.kernels import can_learn, draw_into, learn_from
from avare.solvers.checkpoint import Bounds, Memory
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.kernels import Record, Work, apply, estimate, keep
from avare.solvers.loop import Method
from avare.solvers.updates.descent import Descent, pace
from avare.state import State


class Steps(Method):
    """Steps with an estimator and an update.

    Parameters
    ----------
    name : str
        The name of the method.
    sampler : Sampler
    estimator : PlainEstimator
        Or one derived from it.
    update : NamedTuple
        The state of an update. It may be replaced between chunks by another of the same type.
    record : Record, optional
        What to keep of the iterates; nothing by default.
    """

    sampler: Sampler

    def __init__(
        self, name: str, sampler: Sampler, estimator: PlainEstimator, update: Any, record: Record | None = None
    ) -> None:
        problem, m = estimator.problem, sampler.batch_size
        super().__init__(problem, estimator.x, record)
        self.name, self.sampler, self.estimator, self.update = name, sampler, estimator, update
        self.epoch_steps = max(1, problem.n // m)
        table = self.x.reshape(estimator.shape)
        buffers = (np.empty(m, dtype=np.int64), np.empty(m), np.empty(m), np.empty(m))
        self.work = Work(self.x, table, estimator.gradient, problem.penalty.l2, *buffers)
        self.compiled = isinstance(problem, Linear) and can_learn(sampler.kernels) and not sampler.follows_path

    def advance(self, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        return (self._advance_compiled if self.compiled else self._advance_plainly)(step, sizes, noise)

    def _advance_compiled(self, step: int, sizes: Vector, noise: Vector) -> int:
        assert isinstance(self.problem, Linear)
        with self.sampler.compiled_draws() as draws:
            done: int = advance(
                (draws.kernels, draws.source, draws.moments),
                self.problem.model,
                self.estimator.state,
                self.update,
                self.record,
                self.work,
                self.estimator.scratch,
                (self.problem.n, draws.steps, step),
                sizes,
                noise,
            )
            draws.steps += min(done + 1, len(sizes))
        return done

    def _advance_plainly(self, step: int, sizes: Vector, noise: Vector) -> int:
        sampler, work = self.sampler, self.work
        for done, size in enumerate(sizes):
            batch = sampler.sample()
            work.indices[:], work.probabilities[:], work.weights[:] = batch.indices, batch.probabilities, batch.weights
            before = self.estimator.moving.copy() if sampler.follows_path else self.x
            if not self.estimator.take(work, step + done):
                return done
            if not apply(self.update, work, size, noise, done, step + done + 1):
                return done
            sampler.update(batch.indices, work.norms)
            if sampler.follows_path:
                length = float(np.linalg.norm(self.estimator.moving - before))
                sampler.move(length)  # type: ignore[attr-defined]  # such samplers have it
            keep(self.record, self.x, step + done + 1)
        return len(sizes)

    def norms(self) -> Vector:
        """Return the true norms that the sampler would learn."""
        return self.estimator.norms(self.x)

    def pace(self) -> float:
        """Return what multiplies the given step sizes."""
        adapts = isinstance(self.update, Descent) and len(self.update.memory.reach)
        return pace(self.update.memory.reach) if adapts else 1.0

    def settings(self) -> State:
        """Return what must be the same when a state is resumed."""
        states = (self.record, self.update)
        numbers = (int, float)
        return {key: each for state in states for key, each in state._asdict().items() if isinstance(each, numbers)}

    def memory(self) -> Memory:
        """Return what to save besides the iterate."""
        parts = {"estimator": self.estimator.memory, "update": getattr(self.update, "memory", None)}
        if parts["update"] is parts["estimator"]:  # one state for both
            del parts["update"]
        return {name: part for name, part in {**parts, "record": self.record.memory}.items() if part is not None}

    def bounds(self, step: int) -> Bounds:
        """Return the bounds of fields in the memory that are not any finite number."""
        return {"update/reach": {"at_least": 0.0}, "estimator/since": {"at_least": 0, "at_most": step}}


# --- kernels -------------------------------------------------------------------------------


@lean
def advance(sampler, model, estimator, update, record, work, scratch, numbers, sizes, noise):
    """Make one step per size, until one is not finite; return how many were."""
    kernels, source, moments = sampler
    n, drawn, step = numbers
    for done in range(len(sizes)):
        draw_into(kernels, drawn + done, source, work.indices, work.probabilities, work.weights)
        if not estimate(estimator, model, work, scratch, step + done):
            return done
        if not apply(update, work, sizes[done], noise, done, step + done + 1):
            return done
        learn_from(kernels, work.indices, work.norms)
        smooth(moments, n, work.weights, work.probabilities, work.norms)
        keep(record, work.x, step + done + 1)
    return len(sizes)
