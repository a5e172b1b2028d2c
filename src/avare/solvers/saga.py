"""SAGA with any sampler: control variates and importance sampling together, for linear models."""

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._progress import Line
from avare._randomness import Seed
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler, build, get
from avare.solvers.balance import Balance, squares_to_balance
from avare.solvers.differences import Differences
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Callback, DivergenceWarning, Loop, checked_pair
from avare.solvers.metric import bends_of, is_narrow, metric_of
from avare.solvers.passes import first_scores, sample_of, sample_size
from avare.solvers.sgd import Run, describe, resume_of
from avare.solvers.steps import Iterates
from avare.solvers.trace import evaluation_steps

_DEFAULT = "Calibrated"
_BATCH = 32
_SAMPLE_EPOCHS = 8


def saga(
    problem: Linear,
    sampler: Sampler | str = "Calibrated",
    step_size: float | str = "auto",
    *,
    epochs: int = 100,
    tol: float = 1e-4,
    batch_size: int | None = None,
    start: ArrayLike | None = None,
    evaluate: Any = "epoch",
    optimum: float | None = None,
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

    Each coefficient has its own step size, in proportion to one over the curvature along it: X need not be scaled. If
    X is dense and has at most 256 columns, and l1 is 0, a whole matrix takes the place of these numbers, about the
    inverse of the second derivative: correlated columns do not slow the steps down. With more columns, the 128
    directions of largest curvature are flattened, and half of the draws follow the smoothness of the rows. The
    penalties of the problem, l2 and l1, are taken by a proximal step.

    With the defaults, automatic steps and the sampler "Calibrated" by its name, two kinds of problems have epochs that
    need fewer passes over the data and no sampler:

    - Many rows and few columns (16,000 rows and 320 per column, at most 256 columns, l1 = 0). An epoch is one pass over
      the rows in order, for the gradient of all, and a fit of a sixteenth of them that this gradient corrects. If the
      objective does not fall as the fit promises, the steps above take over.
    - Sparse X, l2 > 0 and rows that are short next to it: the mean of the smoothness constants is at most l2, or 100 l2
      if there are no more rows than columns. An epoch has n visits to rows, each a step of dual coordinate ascent; rows
      are visited in proportion to 1 + smoothness / l2, evenly. There is no step size: ``run.step_size`` is infinite.

    Both have the same table, the same stopping rule, and everything else below. Pass a `start`, a number as the step
    size, or a sampler object for the steps of SAGA only.

    Cost: O(entries of the batch) per step, plus O(dim) if X is dense, or O(128 dim) with more than 256 dense columns.
    Memory: 8 bytes per example and output, and 4 per example (8 with these columns), besides the sampler's.

    Parameters
    ----------
    problem
        A linear model of `avare.problems`.
    sampler
        A sampler for the same number of examples, or the name of one. `Calibrated` is the best by far for differences.
        A sampler continues from its present state.
    step_size
        A number, which multiplies the sum of gradients divided by their curvatures, or "auto". Then it is
        1 / (5 S / m + 10 L), with S the sum of all smoothness constants and L that of the sum, in the metric of the
        steps, and m the batch size. After 4, 8, 16, ... epochs the curvatures are measured at the iterate: if they are
        less, the steps grow. They also grow by a quarter, up to 1 / 2L (1 / (S / m + 2L) with more than 256 dense
        columns), after an epoch that left more than half of the gradient, and shrink again, but not below this, if it
        grew. If the differences or the gradient grow much, the run returns to the iterate of the last epoch and halves
        the step, or gives up the measured curvatures.
    epochs
        Most epochs to run. An epoch has ``n // batch_size`` steps, at least 1.
    tol
        Stop when :math:`\frac12 |\nabla f(x)|^2 \le tol^2 f_0`, with :math:`f_0` the sum of the losses at x = 0. The
        norm is that of the metric, :math:`\sum_j D_j g_j^2` with one over the curvature as :math:`D_j`. The left side
        is about the decrease that is still possible; if steps could grow, the right side is divided by how much. The
        left side is estimated after each epoch at no cost, and verified by a pass over the data when the estimate is
        small enough. 0 runs all epochs.
    batch_size
        Draws per step if the sampler is given by name; 32 by default, and fewer for less than 3200 examples.
    start
        The first iterate. By default 0, or the fit of a sixteenth of the rows if there are at least 1000 of these, and
        20 per column. The sample has the same number of each class.
    evaluate
        As for `sgd`; "never" saves one pass over the data per epoch.
    optimum
        The smallest objective, for the suboptimality; by default the problem's, if it is known.
    progress
        Whether to show the progress on the standard error stream.
    callback
        Called with a `Progress` after each evaluation. It can stop the run by returning True.
    resume
        The state of an earlier run. The iterates are the same as without the interruption. Other
        arguments must be the same, but there may be more epochs.
    seed
        Seed of the sampler, if it is given by name.

    Returns
    -------
    Run
        With ``status`` "converged" if `tol` was reached. Also after a divergence (with a `DivergenceWarning`; not with
        "auto") and after Ctrl-C.

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
    auto = isinstance(step_size, str)
    if auto and step_size != "auto":
        raise ValueError(f'step_size = {step_size!r}: must be a number or "auto"')
    size = None if auto else validation.number("step_size", step_size, above=0.0)
    first = None if start is None else problem.vector("start", start)
    alone = auto and isinstance(sampler, str) and sampler == _DEFAULT  # others are asked for all rows
    squares, survey = _squares(problem, first, resume) if alone else None, None
    if first is None and auto and squares is None and resume is None and epochs > 0:
        first = start_from_sample(problem)
        survey = problem._survey(first) if first is not None and alone and is_narrow(problem) else None
    bends = bends_of(problem)
    if squares is None:
        metric = metric_of(problem, bends)
        lengths = metric.lengths.astype(np.float64)
    else:
        lengths = np.sqrt(squares)
    if isinstance(sampler, str):
        weights = problem._model.sample_weight
        norms = lengths * weights if len(weights) else lengths
        drawn = build_by_norms(sampler, problem, batch_size, norms, bends * lengths**2, seed)
    elif batch_size is not None or seed is not None:
        name, value = ("seed", seed) if batch_size is None else ("batch_size", batch_size)
        raise ValueError(f"{name} = {value!r}: the sampler has its own; pass it only with the name of a sampler")
    else:
        drawn = sampler
    checked_pair(problem, drawn)
    epoch = max(1, problem.n // drawn.batch_size)
    progress = validation.boolean("progress", progress)

    def steps(iterates: Iterates) -> Balance | Differences:
        if squares is not None:
            return Balance(problem, drawn, iterates, squares, tol=tol)
        return Differences(problem, drawn, iterates, metric, size=size, tol=tol, survey=survey)

    loop = Loop(
        problem,
        drawn,
        1.0 if size is None else size,
        steps=epochs * epoch,
        evaluations=evaluation_steps(evaluate, epochs * epoch, epoch),
        optimum=optimum,
        start=first,
        callback=callback,
        method=steps,
    )
    if resume is not None:
        loop.resume(*loop.read(resume_of("saga", resume)))
    with Interrupt() as interrupt, Line(f"saga with {type(drawn).__name__}", shown=progress) as line:
        loop.run(interrupt, lambda loop: line.say(describe(loop)))
    if loop.status == "diverged":
        warnings.warn(loop.message, DivergenceWarning, stacklevel=2)
    method = loop._method
    assert isinstance(method, Balance | Differences)
    return Run(loop, method.size, solver="saga")


def _squares(problem: Linear, start: Vector | None, resume: Any) -> Vector | None:
    """The squared lengths of the rows if the steps are those of `balance`: now, or when the state was saved."""
    if isinstance(resume, Mapping):
        return problem._squared_lengths() if "balance/seed" in resume else None
    passes = start is None and is_narrow(problem) and sample_size(problem) is not None
    return None if passes else squares_to_balance(problem, start)


def batch_size_of(n: int) -> int:
    """Choose a batch size: 32, but at most a hundredth of the examples."""
    return min(_BATCH, math.ceil(n / 100))


def start_from_sample(problem: Linear) -> Vector | None:
    """Fit a sixteenth of the rows, for a start near the minimum; None if there are too few, or if it does not help.

    Rows are drawn in proportion to their sample weights, the same number of each class. The error that is left is that
    of the sample: fitting it any closer would be in vain. Other rows tell whether the fit is better than 0.
    """
    size, weights = sample_size(problem), problem._model.sample_weight
    if size is None or (len(weights) and not weights.any()):
        return None
    generator, scores = np.random.default_rng(0), first_scores(problem)
    sample, others = (sample_of(problem, size, scores, generator) for _ in range(2))
    tol = 0.3 * math.sqrt(problem.width / size)
    run = saga(sample, epochs=_SAMPLE_EPOCHS, tol=tol, evaluate="never", seed=0)
    if run.status == "interrupted":
        raise KeyboardInterrupt(run.message)
    return run.x if run.x.any() and others._objective(run.x) < others._objective_at_zero() else None


def build_by_norms(
    name: str, problem: Linear, batch_size: int | None, norms: Vector, scores: Vector, seed: Seed, **more: Any
) -> Sampler:
    """Build a sampler by name, with first norms and fixed scores, and those of more options that it has."""
    kind = get(name)
    parameters = inspect.signature(kind).parameters
    options = {key: value for key, value in {"initial_norms": norms, **more}.items() if key in parameters}
    if "smoothness" in kind.needs:
        options["smoothness"] = scores
    size = batch_size_of(problem.n) if batch_size is None else batch_size
    return build(name, problem, size, lasting_floor=True, seed=seed, **options)
