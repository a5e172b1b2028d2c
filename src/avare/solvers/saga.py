"""SAGA with any sampler: control variates and importance sampling together, for linear models.

Next to the solver, this is what it needs of a model: a sampler by name, the scale of the columns, a step size, and
when to stop.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler, build, get, names
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.loop import Callback, Loop, Watch, checked_pair, checked_problem
from avare.solvers.run import Run, run_of
from avare.solvers.step_sizes import sizes_of
from avare.solvers.steps import Steps
from avare.solvers.updates.proximal import proximal

DEFAULT = "Calibrated"
"""The sampler of `saga` by default."""
_BATCH = 32
_ROWS, _ROUNDS = 1024, 10  # of the power method: a rough estimate is enough
_SHARE = 0.2  # of the batch over the total smoothness, and ...
_LARGEST = 0.1  # ... of one over the smoothness of the sum: good on several problems, with and without weights


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
    Interrupted
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
    preconditioner = preconditioner_of(problem)
    sampler = sampler_of(problem, sampler, batch_size, seed, **first_norms(problem, preconditioner))
    x = np.zeros(problem.dim) if start is None else problem.vector("start", start).copy()
    size = step_size_of(problem, preconditioner, sampler.batch_size) if isinstance(step_size, str) else step_size
    estimator = TableEstimator(problem, x, sampler.batch_size, lengths=preconditioner.lengths)
    steps = SagaSteps(sampler, estimator, preconditioner, size, tol)
    watch = Watch(evaluate, progress, callback)
    return run_of(Loop(steps, watch, sizes_of(size), epochs * steps.epoch_steps), size, resume)


def batch_size_of(n: int) -> int:
    """Choose a batch size: 32, but at most a hundredth of the examples."""
    return min(_BATCH, math.ceil(n / 100))


def sampler_of(problem: Problem, sampler: Sampler | str, batch_size: int | None, seed: Seed, **options: Any) -> Sampler:
    """Return the given sampler; or build one by its name, with those of the options that it takes."""
    if not isinstance(sampler, str):
        checked_pair(problem, sampler, batch_size=batch_size, seed=seed)
        return sampler
    checked_problem(problem)
    parameters = inspect.signature(get(validation.choice("sampler", sampler, names()))).parameters
    known = {key: value for key, value in options.items() if key in parameters}
    size = batch_size_of(problem.n) if batch_size is None else batch_size
    return build(sampler, problem, size, lasting_floor=True, seed=seed, **known)


class Preconditioner(NamedTuple):
    """How steps scale with the columns of X, so that data need not be scaled."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise 0."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner, sqrt(sum_j D_j a_ij^2)."""


def bends_of(problem: Linear) -> Vector:
    """Return the largest curvature of each example, times its weight."""
    weights = problem.model.sample_weight
    return problem.curvature * (weights if len(weights) else np.ones(problem.n))


def _rows_of(problem: Linear) -> Any:
    """Return the rows; dense columns are centred if there is a free bias."""
    return problem.rows(centred=problem.model.matrix.sparse is None)


def preconditioner_of(problem: Linear) -> Preconditioner:
    """Measure the columns of X. O(size of X)."""
    rows = _rows_of(problem)
    curvature = rows.squares(bends_of(problem)) + problem.penalty.l2[: problem.width]
    inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=curvature > 0.0)
    shift = np.zeros(problem.width) if rows.means is None else np.append(rows.means + rows.shift, 0.0)
    return Preconditioner(inverse, shift, np.sqrt(rows.lengths(inverse)).astype(np.float32))


def step_size_of(problem: Linear, preconditioner: Preconditioner, batch_size: int, rows: Any = None) -> float:
    """Choose a step size, 1 / (5 S / m + 10 L).

    S is the sum of the smoothness constants and L the constant of the sum, both in the preconditioner. The power method
    on some rows estimates L; they can be centred by other means than their own.
    """
    bends = bends_of(problem)
    constants = bends * preconditioner.lengths.astype(np.float64) ** 2
    total = float(constants.sum())
    if total == 0.0:
        return 1.0
    generator = np.random.default_rng(0)
    chosen = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
    weights = bends[chosen] * total / (len(chosen) * constants[chosen])
    rows, root = (rows or _rows_of(problem)).subset(chosen), np.sqrt(preconditioner.inverse)
    direction, largest = generator.standard_normal((1, problem.width)), 0.0
    for _ in range(_ROUNDS):
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        direction = root * rows.sums(weights[:, None] * rows.outputs(root * direction))
        largest = float(np.linalg.norm(direction))
    return 1.0 / (total / (_SHARE * batch_size) + largest / _LARGEST)


def first_norms(problem: Linear, preconditioner: Preconditioner) -> dict[str, Vector]:
    """Return norms for the first step, and the smoothness of each example: both in the preconditioner."""
    lengths, weights = preconditioner.lengths.astype(np.float64), problem.model.sample_weight
    norms = lengths * weights if len(weights) else lengths
    return {"initial_norms": norms, "smoothness": problem.curvature * norms * lengths}


class SagaSteps(Steps):
    """The steps of one run of SAGA, all of one size. The table is filled at the first iterate, unless that is 0."""

    problem: Linear
    estimator: TableEstimator

    def __init__(
        self, sampler: Sampler, estimator: TableEstimator, preconditioner: Preconditioner, size: float, tol: float
    ) -> None:
        problem = estimator.problem
        super().__init__("saga", sampler, estimator, proximal(problem, preconditioner, size))
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
