"""Stochastic gradient descent with any sampler."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._progress import Line
from avare.problems import Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Callback, DivergenceWarning, Loop, StepSize, checked_pair
from avare.solvers.steps import NEVER
from avare.solvers.trace import Trace, evaluation_steps


class Run:
    """What `sgd` gives."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.x: Vector = loop.x.copy()
        """The average of the iterates, where one was asked for and begun; else the last iterate."""
        self.last: Vector = loop.iterates.x.copy()
        """The last iterate."""
        self.trace: Trace = loop.trace
        """One row an evaluation; each column is an attribute, as in ``run.trace.objective``."""
        self.steps: int = loop.step
        """How many steps were made."""
        self.seconds: float = loop.seconds
        """How long they took, evaluations not counted."""
        self.status: str = loop.status
        """"finished", "stopped" (by the callback), "interrupted" (by Ctrl-C) or "diverged"."""
        self.message: str = loop.message
        """Why it ended, if before its time."""

    def state_dict(self) -> dict[str, Any]:
        """All it takes to go on with ``sgd(..., resume=state)``, the sampler's state included.

        May be pickled, or kept with ``numpy.savez(file, **state)``. To be asked for before the
        sampler draws again.
        """
        return {"solver": "sgd", **self._loop.state()}

    def __repr__(self) -> str:
        reached = f", objective {self.trace.objective[-1]:.9g}" if len(self.trace) else ""
        return f"Run({self.status} after {self.steps} steps in {self.seconds:.3g} s{reached})"


def sgd(
    problem: Problem,
    sampler: Sampler,
    step_size: StepSize,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    start: ArrayLike | None = None,
    averaging: Literal["none", "polyak", "suffix"] = "none",
    evaluate: Any = "epoch",
    optimum: float | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Run:
    r"""Minimise a finite sum, :math:`x \leftarrow x - \alpha_t (\sum_j w_j g_{I_j} + \nabla R(x))`.

    Each step draws a batch, takes a step, and tells the sampler the norms that came up. For the
    linear models of `avare.problems`, with `Avare` or `Uniform`, this loop is compiled as a whole.

    Parameters
    ----------
    problem
        One of `avare.problems`.
    sampler
        Any sampler, for as many examples; it goes on from where it is.
    step_size
        A number, one of `avare.schedules`, or a function of the step t = 1, 2, ...; of the **sum**
        of gradients.
    epochs
        How long: in epochs of ``n // batch_size`` steps (at least 1), 10 by default; or instead
    steps
        in steps.
    start
        Where to start; 0 by default.
    averaging
        "polyak" averages all iterates, "suffix" those of the second half; ``run.x`` and the
        objectives in the trace are then the average's, once begun.
    evaluate
        When to measure, outside the time that is counted: "epoch", "never", after every so many
        steps (an integer), or after given steps. 0 is before the first. Each costs a pass over the data.
    optimum
        The least objective, for the suboptimality; by default the problem's, if it is known.
    progress
        Whether to say on the standard error stream how it goes.
    callback
        Called after each evaluation with a `Progress`; may stop the run by returning True.
    resume
        The state of an earlier run, which goes on to the same iterates as without the stop. Other
        arguments must be as they were, but there may be more steps, unless their suffix is averaged.

    Returns
    -------
    Run
        Also on divergence, with a `DivergenceWarning`, and on Ctrl-C: ``run.status`` tells.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 3)) * rng.lognormal(0, 1, (1000, 1))
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0, 3.0], l2=0.0)
    >>> sampler = avare.Avare(problem.n, batch_size=10, seed=0)
    >>> run = sgd(problem, sampler, avare.schedules.constant(5e-5), epochs=20)
    >>> run.x.round(2)
    array([1., 2., 3.])
    >>> bool(run.trace.objective[-1] < 1e-3 * run.trace.objective[0])
    True
    """
    checked_pair(problem, sampler)
    epoch = max(1, problem.n // sampler.batch_size)
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs = {epochs} and steps = {steps}: give one of them")
    if steps is None:
        steps = epoch * validation.integer("epochs", 10 if epochs is None else epochs, at_least=0)
    steps = validation.integer("steps", steps, at_least=0)
    if averaging not in ("none", "polyak", "suffix"):
        raise ValueError(f'averaging = {averaging!r}: must be "none", "polyak" or "suffix"')
    progress = validation.boolean("progress", progress)
    loop = Loop(
        problem,
        sampler,
        step_size,
        steps=steps,
        evaluations=evaluation_steps(evaluate, steps, epoch),
        optimum=optimum,
        start=start,
        average_from={"none": NEVER, "polyak": 0, "suffix": steps // 2}[averaging],
        callback=callback,
    )
    if resume is not None:
        loop.resume(resume_of("sgd", resume))
    with Interrupt() as interrupt, Line(f"sgd with {type(sampler).__name__}", shown=progress) as line:
        loop.run(interrupt, lambda loop: line.say(describe(loop)))
    if loop.status == "diverged":
        warnings.warn(loop.message, DivergenceWarning, stacklevel=2)
    return Run(loop)


def describe(loop: Loop) -> str:
    """How a loop stands, in a line."""
    objective = f", objective {loop.rows[-1][3]:.6g}" if loop.rows else ""
    return f"step {loop.step} of {loop.steps}{objective}, {loop.seconds_left():.0f} s left"


def resume_of(solver: str, resume: Any) -> Mapping[str, Any]:
    """A state of the right solver."""
    if not isinstance(resume, Mapping):
        raise TypeError(f"resume is of type {type(resume).__name__}: must be a mapping, as state_dict() gives")
    found = str(np.asarray(resume["solver"])) if "solver" in resume else None
    if found != solver:
        raise ValueError(f"resume['solver'] = {found!r}: must be {solver!r}")
    return resume
