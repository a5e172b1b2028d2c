"""How `saga` fits a linear model: the loop of the chosen method, and of SAGA after it if the method stops."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from avare import _validation as validation
from avare._randomness import Seed
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.samplers import Sampler
from avare.solvers.linear.choose import DEFAULT, build_by_norms, method_for, start_from_sample
from avare.solvers.linear.dual_ascent import DualAscent
from avare.solvers.linear.preconditioner import Preconditioner, bends_of, preconditioner_of
from avare.solvers.linear.saga_steps import SagaSteps
from avare.solvers.linear.subsampled_newton import SubsampledNewton
from avare.solvers.loop import Loop, Method, Watch, checked_pair, run_loops
from avare.solvers.step_sizes import sizes_of
from avare.state import Field, plain

_MOST_SEEDS = 1 << 62
_SILENT = Watch("never", None, False, None)


class LinearFit:
    """The arguments of `saga`, checked."""

    def __init__(
        self,
        problem: Linear,
        sampler: Sampler | str,
        step_size: float | str,
        epochs: int,
        tol: float,
        batch_size: int | None,
        seed: Seed,
    ) -> None:
        self.problem, self.sampler, self.batch_size, self.seed = problem, sampler, batch_size, seed
        self.epochs = validation.integer("epochs", epochs, at_least=0)
        self.tol = validation.number("tol", tol, at_least=0.0)
        if isinstance(step_size, str) and step_size != "auto":
            raise ValueError(f'step_size = {step_size!r}: must be a number or "auto"')
        self.size = None if isinstance(step_size, str) else validation.number("step_size", step_size, above=0.0)
        if not isinstance(sampler, str):
            if batch_size is not None or seed is not None:
                name, value = ("seed", seed) if batch_size is None else ("batch_size", batch_size)
                raise ValueError(
                    f"{name} = {value!r}: the sampler has its own; pass it only with the name of a sampler"
                )
            checked_pair(problem, sampler)

    def run(self, method: str, start: Vector | None, watch: Watch, state: Mapping[str, Any] | None) -> Loop:
        """Run a method from a start, or from a saved state; return its loop, or that of SAGA if it stopped."""
        problem, tol = self.problem, self.tol
        chosen = method_for(method, problem, self.sampler, start, automatic=self.size is None)
        if state is not None and method == "auto":
            chosen = str(plain(state.get("method", chosen)))
        if start is None and self.size is None and state is None and self.epochs > 0 and chosen != "dual_ascent":
            start = start_from_sample(problem, self._fit_sample)
        x = np.zeros(problem.dim) if start is None else start.copy()
        if chosen == "dual_ascent":
            return self._made(DualAscent(problem, x, self._order_seed(), tol=tol), watch, state)
        preconditioner, survey, before = preconditioner_of(problem, bends_of(problem)), None, None
        helps = start is not None or state is not None or method != "auto"  # or the fit of a sample does not
        if chosen == "subsampled_newton" and helps:
            newton = SubsampledNewton(problem, x, problem.survey(x), preconditioner, tol=tol)
            loop = self._made(newton, watch, state)
            if method != "auto" or not newton.stopped or loop.message != newton.stopped:
                return loop
            survey, before, state = newton.survey, loop, None
        drawn = self._sampler(preconditioner)
        steps = SagaSteps(problem, drawn, x, preconditioner, size=self.size, tol=tol, survey=survey)
        return self._made(steps, watch, state, before)

    def _made(self, method: Method, watch: Watch, state: Mapping[str, Any] | None, before: Loop | None = None) -> Loop:
        """Run the loop of a method, which may continue that of another."""
        made = 0 if before is None else before.step
        if state is not None and method.name == "saga":
            made = Field(int, at_least=0, at_most=self.epochs).read(state, "before", "resume")
        steps = (self.epochs - made) * method.epoch_steps
        loop = Loop(method, watch, sizes_of(1.0 if self.size is None else self.size), steps, before=made)
        if before is not None:
            loop.rows, loop.seconds = before.rows, before.seconds
        if state is not None:
            loop.resume(*loop.read(state))
        means = method.name if method.sampler is None else type(method.sampler).__name__
        run_loops([loop], f"saga with {means}")
        return loop

    def _sampler(self, preconditioner: Preconditioner) -> Sampler:
        """Return the given sampler, or build one by its name with norms that fit the first step."""
        if not isinstance(self.sampler, str):
            return self.sampler
        lengths, weights = preconditioner.lengths.astype(np.float64), self.problem.model.sample_weight
        norms, scores = lengths * weights if len(weights) else lengths, bends_of(self.problem) * lengths**2
        return build_by_norms(self.sampler, self.problem, self.batch_size, norms, scores, self.seed)

    def _order_seed(self) -> int:
        """A seed for a method without a sampler: the same for a sampler and for its name with the same seed."""
        if isinstance(self.sampler, str):
            return int(np.random.default_rng(self.seed).integers(_MOST_SEEDS))
        return int(copy.deepcopy(self.sampler.generator).integers(_MOST_SEEDS))

    def _fit_sample(self, sample: Linear, epochs: int, tol: float) -> Vector:
        loop = LinearFit(sample, DEFAULT, "auto", epochs, tol, None, 0).run("auto", None, _SILENT, None)
        if loop.status == "interrupted":
            raise KeyboardInterrupt(loop.message)
        return loop.x
