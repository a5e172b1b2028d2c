"""Stochastic gradient descent with any sampler."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._progress import Line
from avare._state import plain
from avare.plotting import run_figure
from avare.problems import Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.schedules import Auto
from avare.solvers.auto import adapting, request_of
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Callback, DivergenceWarning, Loop, StepSize, checked_pair
from avare.solvers.steps import NEVER
from avare.solvers.trace import Trace, evaluation_steps

_AVERAGING = ("none", "polyak", "suffix", "recent")
_RECENT = 3.0  # the power with which the weights of "recent" grow


class Run:
    """The result of `sgd` and `saga`.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=0.0)
    >>> run = sgd(problem, avare.Uniform(2, 1, seed=0), 0.1, epochs=50)
    >>> run.x.round(3), run.epochs, run.status, len(run.trace) > 1
    (array([1.]), 50, 'finished', True)
    """

    def __init__(self, loop: Loop, step_size: StepSize, solver: str = "sgd") -> None:
        self._loop, self._solver = loop, solver
        self.x: Vector = loop.x.copy()
        """The average of the iterates if averaging was requested and has begun, otherwise the last iterate."""
        self.last: Vector = loop.iterates.x.copy()
        """The last iterate."""
        self.trace: Trace = loop.trace
        """One row per evaluation; each column is an attribute, as in ``run.trace.objective``."""
        self.steps: int = loop.step
        """Number of steps."""
        self.epochs: int = loop.step // max(1, loop.problem.n // loop.sampler.batch_size)
        """Number of whole epochs."""
        self.seconds: float = loop.seconds
        """Time of the steps, without evaluations."""
        self.status: str = loop.status
        """"finished", "converged", "stopped" (by the callback), "interrupted" (by Ctrl-C) or "diverged"."""
        self.message: str = loop.message
        """Why it ended, if it did not finish."""
        self.step_size: StepSize = step_size
        """The step sizes; if they were "auto", the size of the last step."""

    def plot(self) -> Any:
        """Draw the run over epochs and over seconds; return a Matplotlib figure.

        It shows the suboptimality, or the objective if its least value is not known: call ``problem.minimize()``
        before the run.
        """
        return run_figure(type(self._loop.sampler).__name__, self.trace)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed for ``sgd(..., resume=state)`` or ``saga``, including the sampler's state.

        It can be pickled, or saved with ``numpy.savez(file, **state)``. Call this before the sampler draws again.
        """
        return {"solver": self._solver, **self._loop.state()}

    def __repr__(self) -> str:
        reached = f", objective {self.trace.objective[-1]:.9g}" if len(self.trace) else ""
        return f"Run({self.status} after {self.steps} steps in {self.seconds:.3g} s{reached})"


def sgd(
    problem: Problem,
    sampler: Sampler,
    step_size: StepSize | Auto | Literal["auto"] = "auto",
    *,
    epochs: int | None = None,
    steps: int | None = None,
    start: ArrayLike | None = None,
    averaging: Literal["none", "polyak", "suffix", "recent"] | None = None,
    evaluate: Any = "epoch",
    optimum: float | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Run:
    r"""Minimise a finite sum by :math:`x \leftarrow x - \alpha_t (\sum_j w_j g_{I_j} + \nabla R(x))`.

    Each step draws a batch, takes a step, and reports the norms of the batch to the sampler. The loop is compiled as
    a whole for the linear models of `avare.problems`, with a sampler that brings kernels: `Avare`, `Calibrated`,
    `Uniform`, `Static`, `Srg`, `Passes`, or your own (see `avare.samplers.kernels`).

    Parameters
    ----------
    problem
        One of `avare.problems`.
    sampler
        Any sampler for the same number of examples. It continues from its present state.
    step_size
        "auto" finds step sizes that fit the problem and the sampler while it runs, from the distance to the start
        and the gradients so far. No step is spent on trials; each costs two sums over the coefficients more.
        ``schedules.auto(power)`` sets how fast step sizes fall. Or a number, one of `avare.schedules`, or a function
        of the step t = 1, 2, ...
        It multiplies the **sum** of gradients.
    epochs
        Number of epochs, 10 by default. An epoch has ``n // batch_size`` steps, at least 1.
    steps
        Number of steps, instead of `epochs`.
    start
        The first iterate; 0 by default.
    averaging
        "polyak" averages all iterates, "suffix" those of the second half, and "recent" all with weights that grow as
        t^3, so that the first ones are soon forgotten. ``run.x`` and the objectives in the trace are then those of the
        average, once it has begun. By default "recent" if the step sizes are "auto", otherwise "none".
    evaluate
        When to evaluate: "epoch", "never", an interval in steps (an integer), or a list of steps, where 0 is
        before the first. Each evaluation costs a pass over the data; the measured time does not include it.
    optimum
        The smallest objective, for the suboptimality; by default the problem's, if it is known.
    progress
        Whether to show the progress on the standard error stream.
    callback
        Called with a `Progress` after each evaluation. It can stop the run by returning True.
    resume
        The state of an earlier run. The iterates are the same as without the interruption. Other
        arguments must be the same, but there may be more steps, unless ``averaging="suffix"`` or the step sizes are
        ``schedules.auto(power)``.

    Returns
    -------
    Run
        Also after a divergence, with a `DivergenceWarning`, and after Ctrl-C: see ``run.status``.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 3)) * rng.lognormal(0, 1, (1000, 1))
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0, 3.0], l2=0.0)
    >>> sampler = avare.Avare(problem.n, batch_size=10, seed=0)
    >>> run = sgd(problem, sampler, epochs=20)
    >>> run.x.round(2)
    array([1., 2., 3.])
    >>> bool(run.trace.objective[-1] < 1e-3 * run.trace.objective[0])
    True
    """
    checked_pair(problem, sampler)
    epoch = max(1, problem.n // sampler.batch_size)
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs = {epochs} and steps = {steps}: pass only one of them")
    if steps is None:
        steps = epoch * validation.integer("epochs", 10 if epochs is None else epochs, at_least=0)
    steps = validation.integer("steps", steps, at_least=0)
    wanted = request_of(step_size)
    if averaging is None:
        averaging = "none" if wanted is None else "recent"
    if averaging not in _AVERAGING:
        raise ValueError(f"averaging = {averaging!r}: must be one of {', '.join(map(repr, _AVERAGING))}")
    progress = validation.boolean("progress", progress)
    evaluations = evaluation_steps(evaluate, steps, epoch)
    state = None if resume is None else resume_of("sgd", resume)

    settings: dict[str, Any] = {"step_size": step_size}
    if wanted is not None:
        origin = np.zeros(problem.dim) if start is None else problem.vector("start", start)
        settings = adapting(wanted, problem, origin, sampler.batch_size, steps)
    loop = Loop(
        problem,
        sampler,
        steps=steps,
        evaluations=evaluations,
        optimum=optimum,
        start=start,
        average_from={"none": NEVER, "suffix": steps // 2}.get(averaging, 0),
        average_power=_RECENT if averaging == "recent" else 0.0,
        callback=callback,
        **settings,
    )
    if state is not None:
        loop.resume(*loop.read(state))
    with Interrupt() as interrupt, Line(f"sgd with {type(sampler).__name__}", shown=progress) as line:
        loop.run(interrupt, lambda loop: line.say(describe(loop)))
    if loop.status == "diverged":
        warnings.warn(loop.message, DivergenceWarning, stacklevel=2)
    return Run(loop, loop.step_size(loop.step) if isinstance(step_size, str | Auto) else step_size)


def describe(loop: Loop) -> str:
    """Describe the progress of a loop in one line."""
    objective = f", objective {loop.rows[-1][3]:.6g}" if loop.rows else ""
    return f"step {loop.step} of {loop.steps}{objective}, {loop.seconds_left():.0f} s left"


def resume_of(solver: str, resume: Any) -> Mapping[str, Any]:
    """Return the state, or raise an error if it is not one of this solver."""
    if not isinstance(resume, Mapping):
        raise TypeError(f"resume is of type {type(resume).__name__}: must be a mapping, as state_dict() returns")
    found = plain(resume["solver"]) if "solver" in resume else None
    if not isinstance(found, str) or found != solver:
        raise ValueError(f"resume['solver'] = {found!r}: must be {solver!r}")
    return {key: each for key, each in resume.items() if key != "solver"}
