"""SAGA with any sampler: control variates and importance sampling together, for linear models.

SAGA is by Defazio, Bach and Lacoste-Julien (NIPS 2014); see `avare.solvers.estimators.table` for its table. Its steps
are proximal: each coefficient moves by its own step size alpha D_j, is soft-thresholded at alpha D_j l1 and divided by
1 + alpha D_j l2. If columns are centred implicitly, the steps are those for X - mean, and the intercept, last, follows.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._compilation import product
from avare._randomness import Seed
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.arguments import DEFAULT, resolve_sampler, sizes_of
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.kernels import update_kernel
from avare.solvers.loop import Callback, Loop, Monitoring
from avare.solvers.preconditioner import DiagonalPreconditioner, diagonal_preconditioner
from avare.solvers.run import Run, run_of
from avare.solvers.steps import Steps


def saga(
    problem: Linear,
    sampler: Sampler | str = DEFAULT,
    step_size: float | Literal["auto"] = "auto",
    *,
    epochs: int = 100,
    tol: float = 1e-4,
    batch_size: int | None = None,
    start: ArrayLike | None = None,
    evaluate: Any = "epoch",
    progress: bool = False,
    callback: Callback | None = None,
    resume: Mapping[str, Any] | None = None,
    seed: Seed = None,
) -> Run:
    r"""Fit a linear model by SAGA, with batches drawn where the gradients have changed most.

    A table holds the last slope :math:`c_i` of each example, and :math:`G = \sum_i c_i a_i`. A step draws a batch with
    weights w, computes its slopes :math:`c'`, and moves x along :math:`G + \sum_j w_j (c'_j - c_j) a_j`. This is
    unbiased for any sampler, and its variance falls to 0, so that a constant step size converges to the minimum. The
    sampler learns the norms of the differences, :math:`|c'_j - c_j|\,|a_j|`.

    Each coefficient has its own step size, in proportion to one over the curvature along it: X need not be scaled. The
    penalties of the problem, l2 and l1, are taken by a proximal step.

    This is the method to study samplers with, and for streams. To fit a linear model, `Linear.minimize` and the
    estimators of `avare.sklearn` are faster: they use Newton's method.

    Cost: O(entries of the batch + dim) per step. Memory: 8 bytes per example and output, and 4 per
    example, besides the sampler's.

    Parameters
    ----------
    problem : Linear
        A linear model of `avare.problems`.
    sampler : Sampler or str, default="Calibrated"
        A sampler for the same number of examples, or the name of one. `Calibrated` is the best by far for differences.
        A sampler continues from its present state.
    step_size : "auto" or float, default="auto"
        A number, which multiplies the sum of gradients divided by their curvatures, or "auto". Then it is
        1 / (5 S / m + 10 L), with S the sum of all smoothness constants and L that of the sum, in the metric of the
        steps, and m the batch size.
    epochs : int, default=100
        Most epochs to run. An epoch has ``n // batch_size`` steps, at least 1.
    tol : float, default=1e-4
        Stop when the objective is certified to be above its minimum by at most tol^2 times that of the best constant
        model (`Linear.gap`). The bound costs some passes over the data; it is computed when an estimate, which
        costs nothing, is small enough. 0 runs all epochs.
    batch_size : int, optional
        Draws per step if the sampler is given by name; 32 by default, and fewer for less than 3200 examples.
    start : array_like, optional
        The first iterate; 0 by default.
    evaluate : "epoch", "never", int or list of int, default="epoch"
        As for `sgd`; "never" saves one pass over the data per epoch.
    progress : bool, default=False
        Whether to show the progress on the standard error stream.
    callback : callable, optional
        Called with a `Progress` after each evaluation. It can stop the run by returning True.
    resume : mapping, optional
        The state of an earlier run. The iterates are the same as without the interruption. Other
        arguments must be the same, but there may be more epochs.
    seed : int, SeedSequence or Generator, optional
        Seed of the sampler, if it is given by name.

    Returns
    -------
    Run
        With ``status`` "converged" if `tol` was reached. Also after a divergence, with a `DivergenceWarning`.

    Raises
    ------
    SolverInterrupted
        After Ctrl-C: a ``KeyboardInterrupt`` whose attribute ``run`` is the result so far.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 3)) * [1.0, 100.0, 0.01]  # columns of any scale
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0, 3.0] + 5.0, l2=0.0, bias="free")
    >>> run = saga(problem, tol=1e-8, seed=0)
    >>> run.status, run.x.round(3)
    ('converged', array([1., 2., 3., 5.]))
    """
    if not isinstance(problem, Linear):
        raise TypeError(f"problem is of type {type(problem).__name__}: must be a linear model of avare.problems")
    epochs = validation.integer("epochs", epochs, at_least=0)
    tol = validation.number("tol", tol, at_least=0.0)
    if not isinstance(step_size, str):
        step_size = validation.number("step_size", step_size, above=0.0)
    elif step_size != "auto":
        raise ValueError(f'step_size = {step_size!r}: must be a number or "auto"')
    preconditioner = diagonal_preconditioner(problem)
    sampler = resolve_sampler(problem, sampler, batch_size, seed, **preconditioner.sampler_options(problem))
    x = np.zeros(problem.dim) if start is None else problem.vector("start", start).copy()
    size = preconditioner.step_size(problem, sampler.batch_size) if isinstance(step_size, str) else step_size
    estimator = TableEstimator(problem, x, sampler.batch_size, lengths=preconditioner.lengths)
    steps = SagaSteps(sampler, estimator, preconditioner, size, tol)
    monitoring = Monitoring(evaluate, progress, callback)
    return run_of(Loop(steps, monitoring, sizes_of(size), epochs * steps.epoch_steps), size, resume)


class SagaSteps(Steps):
    """The steps of one run of SAGA, all of one size. The table is filled at the first iterate, unless that is 0."""

    problem: Linear
    estimator: TableEstimator

    def __init__(
        self,
        sampler: Sampler,
        estimator: TableEstimator,
        preconditioner: DiagonalPreconditioner,
        size: float,
        tol: float,
    ) -> None:
        problem, sizes = estimator.problem, size * preconditioner.inverse
        l1, l2 = problem.penalty.l1[: problem.width], problem.penalty.l2[: problem.width]
        update = Proximal(sizes, sizes * l1, 1.0 / (1.0 + sizes * l2), preconditioner.shift, size)
        super().__init__("saga", sampler, estimator, update)
        self._preconditioner, self.period = preconditioner, self.epoch_steps
        self._goal = tol**2 * problem.best_constant() if tol > 0.0 else -math.inf
        if self.x.any():  # with an empty table, the noise of the first epoch would lead away again
            estimator.fill(self.x)

    def check(self, step: int) -> str | None:
        """Return why the iterates have converged, if they have."""
        whole = self.problem.penalty.subgradient(self.x, self.estimator.state.sums.ravel())
        table = whole.reshape(self.estimator.shape)
        table = table - table[:, -1:] * self._preconditioner.shift
        if 0.5 * float((table**2 @ self._preconditioner.inverse).sum()) > self._goal:  # an estimate, without a pass
            return None
        gap = self.problem.gap(self.x)
        if gap > self._goal:
            return None
        return f"converged after step {step}: the objective is at most {gap:.3g} above the minimum"


class Proximal(NamedTuple):
    """One number per column: what a step of the present size does."""

    size: Vector
    """alpha D_j."""
    threshold: Vector
    """alpha D_j l1."""
    shrink: Vector
    """1 / (1 + alpha D_j l2)."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise 0."""
    step_size: float


@update_kernel(Proximal, saved=())
def _apply(rates, work, size, noise, done, at):
    x, gradient = work.coefficients, work.gradient
    width = x.shape[1]
    for k in range(len(x)):
        along = gradient[k * width : (k + 1) * width]
        moved = _move(x[k], along, rates.shift, along[width - 1], rates.size, rates.threshold, rates.shrink)
        x[k, width - 1] -= moved
    return True


@product
def _move(x, gradient, shift, along, size, threshold, shrink):
    """Move as if the columns were centred; return what the move adds to each output."""
    moved = 0.0
    for j in range(len(x)):
        there = x[j] - size[j] * (gradient[j] - shift[j] * along)
        there = (there - min(max(there, -threshold[j]), threshold[j])) * shrink[j]
        moved += shift[j] * (there - x[j])
        x[j] = there
    return moved
