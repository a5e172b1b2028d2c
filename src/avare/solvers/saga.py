"""SAGA with any sampler: control variates and importance sampling together, for linear models."""

from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import ArrayLike

from avare._randomness import Seed
from avare.problems import Linear
from avare.samplers import Sampler
from avare.solvers.linear.fit import LinearFit
from avare.solvers.loop import Callback, Watch
from avare.solvers.run import Run, ended, resume_of


def saga(
    problem: Linear,
    sampler: Sampler | str = "Calibrated",
    step_size: float | Literal["auto"] = "auto",
    *,
    method: Literal["auto", "saga", "dual_ascent", "subsampled_newton"] = "auto",
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

    These are the steps of ``method="saga"``. Two other methods need fewer passes over the data for some problems. They
    draw nothing: the sampler is not used, and a step is one pass.

    - "subsampled_newton", for many rows and few columns (16,000 rows and 320 per column, at most 256 columns, l1 = 0).
      A pass over the rows in order gives the gradient of all. It corrects the fit of a sixteenth of them. If the
      objective does not fall as this fit promises, the method stops, and with "auto" the steps of SAGA take over.
    - "dual_ascent", for sparse X, l2 > 0 and rows that are short compared with it. A pass has n visits to rows, each a
      step of dual coordinate ascent; rows are visited in proportion to 1 + smoothness / l2, evenly. There is no step
      size: ``run.step_size`` is infinite.

    Cost: O(entries of the batch) per step, plus O(dim) if X is dense, or O(128 dim) with more than 256 dense columns.
    Memory: 8 bytes per example and output, and 4 per example (8 with these columns), besides the sampler's.

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
        steps, and m the batch size. After 4, 8, 16, ... epochs the curvatures are measured at the iterate: if they are
        less, the steps grow. They also grow by a quarter, up to 1 / 2L (1 / (S / m + 2L) with more than 256 dense
        columns), after an epoch that left more than half of the gradient, and shrink again, but not below this, if it
        grew. If the differences or the gradient grow much, the run returns to the iterate of the last epoch and halves
        the step, or gives up the measured curvatures.
    method : {"auto", "saga", "dual_ascent", "subsampled_newton"}, default="auto"
        "auto" chooses "subsampled_newton" or "dual_ascent" if the problem suits it, steps are automatic and the sampler
        is `Calibrated`, by its name or as an object. The first needs no `start`, the second a mean of the smoothness
        constants of at most l2, or 100 l2 if there are no more rows than columns. Otherwise it is "saga".
        ``run.method`` says which one ran last.
    epochs : int, default=100
        Most epochs to run. An epoch has ``n // batch_size`` steps, at least 1.
    tol : float, default=1e-4
        Stop when :math:`\frac12 |\nabla f(x)|^2 \le tol^2 f_0`, with :math:`f_0` the sum of the losses at x = 0. The
        norm is that of the preconditioner, :math:`\sum_j D_j g_j^2` with one over the curvature as :math:`D_j`. The
        left side is roughly the decrease that is still possible. If steps have grown by a factor s, the right side is
        divided by s. The left side is estimated after each epoch at no cost, and verified by a pass over the data when
        the estimate is small enough. 0 runs all epochs.
    batch_size : int, optional
        Draws per step if the sampler is given by name; 32 by default, and fewer for less than 3200 examples.
    start : array_like, optional
        The first iterate. By default 0, or the fit of a sixteenth of the rows if there are at least 1000 of these, and
        20 per column. The sample has the same number of each class.
    evaluate : "epoch", "never", int or list of int, default="epoch"
        As for `sgd`; "never" saves one pass over the data per epoch.
    optimum : float, optional
        The smallest objective, for the suboptimality; by default the problem's, if it is known.
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
        With ``status`` "converged" if `tol` was reached. Also after a divergence (with a `DivergenceWarning`; not with
        "auto").

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
    fit = LinearFit(problem, sampler, step_size, epochs, tol, batch_size, seed)
    watch, state = Watch(evaluate, optimum, progress, callback), resume_of("saga", resume)
    loop = fit.run(method, None if start is None else problem.vector("start", start), watch, state)
    run = Run("saga", loop, loop.method.step_size)
    ended(run, [loop])
    return run
