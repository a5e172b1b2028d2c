"""What solvers return: plain data that can be pickled, resumed, drawn, and turned into tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from avare import _validation as validation
from avare._optional import require
from avare.problems.base import Vector
from avare.solvers.convergence import ConvergenceReport, ConvergenceWarning
from avare.solvers.loop import DivergenceWarning, Loop, run_loops
from avare.solvers.trace import Trace
from avare.state import State, require_mapping

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class SolverInterrupted(KeyboardInterrupt):
    """Ctrl-C has ended a solver after its current steps; the result so far is `run`.

    >>> try:
    ...     raise SolverInterrupted("interrupted after step 3 of 9", run=None)
    ... except KeyboardInterrupt as error:
    ...     print(error, error.run)
    interrupted after step 3 of 9 None
    """

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run
        """The result so far: a `Run` or a `Chain`, with ``status`` "interrupted"."""


class Run:
    """The result of `sgd` and `saga`.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=0.0)
    >>> run = avare.sgd(problem, avare.Uniform(2, 1, seed=0), 0.1, epochs=50)
    >>> run.x.round(3), run.epochs, run.status, len(run.trace) > 1
    (array([1.]), 50, 'finished', True)
    """

    def __init__(self, loop: Loop, step_size: Any) -> None:
        self.solver: str = loop.method.name
        """"sgd" or "saga"."""
        self.compiled: bool = loop.method.compiled
        """Whether all steps were compiled; otherwise the problem or the sampler has no kernels."""
        self.x: Vector = loop.x.copy()
        """The average of the iterates if averaging was requested and has begun, otherwise the last iterate."""
        self.last: Vector = loop.method.x.copy()
        """The last iterate."""
        self.trace: Trace = loop.trace
        """One row per evaluation; each column is an attribute, as in ``run.trace.objective``."""
        self.steps: int = loop.step
        """Number of steps."""
        self.epochs: int = int(loop.epoch)
        """Number of whole epochs."""
        self.seconds: float = loop.seconds
        """Time of the steps, without evaluations."""
        self.status: str = loop.status
        """"finished", "converged", "stopped" (by the callback), "interrupted" (by Ctrl-C) or "diverged"."""
        self.message: str = loop.message
        """Why it ended, if it did not finish."""
        self.step_size: Any = step_size
        """The step sizes; if they were "auto", the size of the last step."""
        self._checkpoint = loop.checkpoint()

    def to_frame(self) -> Any:
        """Return the trace as a pandas ``DataFrame``, one row per evaluation."""
        return require("pandas", "to_frame").DataFrame(self.trace)

    def plot(self) -> Any:
        """Draw the run over epochs and over seconds; return a Matplotlib figure.

        It shows the suboptimality, or the objective if its least value is not known: call ``problem.minimize()``
        before the run.
        """
        return require("avare.plotting", "drawing").run_figure(type(self._checkpoint.sampler).__name__, self.trace)

    def state_dict(self) -> State:
        """Return everything needed for ``sgd(..., resume=state)`` or ``saga``, including the sampler's state.

        It can be pickled, or saved with ``numpy.savez(file, **state)``. Call this before the sampler draws again.
        """
        return self._checkpoint.state_dict()

    def __repr__(self) -> str:
        reached = f", objective {self.trace.objective[-1]:.9g}" if len(self.trace) else ""
        return f"Run({self.status} after {self.steps} steps in {self.seconds:.3g} s{reached})"


def run_of(loop: Loop, step_size: Any, resume: Any) -> Run:
    """Run a loop, from its start or from a state. The step size is None if the run finds it."""
    if resume is not None:
        require_mapping(resume, "resume")
        loop.resume(*loop.read(resume))
    run_loops([loop])
    run = Run(loop, loop.step_size(loop.step) if step_size is None else step_size)
    ended(run, [loop])
    return run


def ended(result: Any, loops: Sequence[Loop]) -> None:
    """Warn of loops that diverged, and raise `SolverInterrupted` with the result if Ctrl-C ended one."""
    for loop in loops:
        if loop.status == "diverged":
            place = f"chain {loop.chain} " if len(loops) > 1 else ""
            warnings.warn(place + loop.message, DivergenceWarning, stacklevel=4)
    if result.status == "interrupted":
        raise SolverInterrupted(result.message, result)


class Chain:
    """The result of `sgld` and `sghmc`: draws of one or several chains.

    With decreasing steps a draw represents the time of its step, so averages over draws must be weighted by the
    step sizes. The methods of this class do so.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=1.0)
    >>> chain = avare.sgld(problem, avare.Uniform(2, 2, seed=0), 0.03, steps=20_000, thin=10, chains=2, seed=0)
    >>> chain.draws.shape, chain.mean().shape, chain.status, chain.warnings
    ((2, 2000, 1), (1,), 'finished', [])
    """

    def __init__(self, loops: Sequence[Loop], step_size: Any) -> None:
        sound = [loop for loop in loops if loop.status != "diverged"] or loops
        draws, record = [loop.draws(loop.step) for loop in sound], loops[0].method.record
        kept = min(map(len, draws))
        unfinished = next((loop for loop in loops if loop.status != "finished"), loops[0])
        self.solver: str = loops[0].method.name
        """"sgld" or "sghmc"."""
        self.draws: Vector = np.stack([each[:kept] for each in draws])
        """The draws, chains x draws x dim; without the chains that diverged, if there are others."""
        self.sound: list[int] = [loop.chain for loop in sound]
        """The numbers of these chains."""
        self.step_sizes: Vector = loops[0].sizes(record.burn_in + 1, kept * record.thin)[record.thin - 1 :: record.thin]
        """The step size at each draw."""
        self.traces: list[Trace] = [loop.trace for loop in loops]
        """One table of evaluations per chain."""
        self.steps: int = min(loop.step for loop in sound)
        """Number of steps of each of them."""
        self.seconds: float = max(loop.seconds for loop in loops)
        """Time of the steps of the slowest chain, without evaluations."""
        self.status: str = unfinished.status
        """"finished", "stopped" (by the callback), "interrupted" (by Ctrl-C) or "diverged"."""
        self.message: str = unfinished.message
        """Why it ended, if it did not finish."""
        self.step_size: Any = step_size
        """The step sizes; if they were "auto", the number that was found."""
        self.names: list[str] = loops[0].method.problem.names
        """The names of the coordinates: those of the columns if X was a data frame, otherwise x[0], x[1], ..."""
        self._checkpoints = [loop.checkpoint() for loop in loops]
        self.warnings: list[str] = [loop.message for loop in loops if loop.status == "diverged"]
        """What is wrong with the draws, and what to do; empty if nothing was found."""
        self.noise: ConvergenceReport | None = None
        """What was checked at the end of the call: R-hat, effective draws, and how wrong means and standard deviations
        are; None if there are no draws, or after Ctrl-C. ``print(chain.noise)`` says it in words."""

    @property
    def trace(self) -> Trace:
        """The evaluations of the first chain."""
        return self.traces[0]

    def mean(self) -> Vector:
        """Return the mean of all draws, weighted by their step sizes."""
        draws, weights = self.weighted()
        return weights @ draws

    def covariance(self) -> Vector:
        """Return the covariance of all draws, weighted by their step sizes."""
        draws, weights = self.weighted()
        return np.cov(draws.T, aweights=weights, ddof=0).reshape(draws.shape[1], -1)

    def std(self) -> Vector:
        """Return the standard deviations of all draws, weighted by their step sizes."""
        draws, weights = self.weighted()
        return np.sqrt(weights @ (draws - weights @ draws) ** 2)

    def quantile(self, q: float) -> Vector:
        """Return a quantile of each coordinate over all draws, weighted by their step sizes."""
        q = validation.number("q", q, at_least=0.0, at_most=1.0)
        draws, weights = self.weighted()
        order = np.argsort(draws, axis=0)
        reached = np.cumsum(weights[order], axis=0) >= q * (1.0 - 1e-12)
        first = np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0)
        return np.take_along_axis(draws, first, axis=0)[0]

    def summary(self, names: Sequence[str] | None = None) -> Any:
        """Return a table of the draws, one row per coordinate, as a pandas ``DataFrame``.

        Mean, standard deviation ("sd") and quantiles are weighted by the step sizes. "r_hat", "ess", "widening" and
        "shift" are those of `noise`. If something is wrong, a `ConvergenceWarning` says so again, and
        ``table.attrs["warnings"]`` has it.

        Parameters
        ----------
        names : sequence of str, optional
            Names of the coordinates; by default `names`.
        """
        pandas = require("pandas", "summary")
        if self.warnings:
            warnings.warn("; ".join(self.warnings), ConvergenceWarning, stacklevel=2)
        columns = {"mean": self.mean(), "sd": self.std()}
        columns |= {f"{100 * q:g}%": self.quantile(q) for q in _QUANTILES}
        for name in ("r_hat", "ess", "widening", "shift"):
            columns[name] = getattr(self.noise, name, np.full(self.draws.shape[2], np.nan))
        table = pandas.DataFrame(columns, index=self._names(names))
        table.attrs["warnings"] = list(self.warnings)
        return table

    def to_frame(self, names: Sequence[str] | None = None) -> Any:
        """Return the draws as a pandas ``DataFrame``: one row per chain and draw, one column per coordinate.

        Parameters
        ----------
        names : sequence of str, optional
            Names of the coordinates; by default `names`.
        """
        pandas = require("pandas", "to_frame")
        chains, draws, dim = self.draws.shape
        index = pandas.MultiIndex.from_product([self.sound, range(draws)], names=["chain", "draw"])
        frame = pandas.DataFrame(self.draws.reshape(-1, dim), index=index, columns=self._names(names))
        frame.insert(0, "step_size", np.tile(self.step_sizes, chains))
        return frame

    def weighted(self) -> tuple[Vector, Vector]:
        """Return all draws as one list, and weights that sum to 1, in proportion to the step sizes."""
        if not len(self.step_sizes):
            raise ValueError(f"no draws were kept in {self.steps} steps")
        weights = np.tile(self.step_sizes, len(self.draws))
        return self.draws.reshape(len(weights), -1), weights / weights.sum()

    def plot(self, names: Sequence[str] | None = None) -> Any:
        """Draw the law of each coordinate and the paths of the chains; return a Matplotlib figure.

        Histograms are weighted by the step sizes. Of more than six coordinates the first six are shown.

        Parameters
        ----------
        names : sequence of str, optional
            Names of the coordinates; by default `names`.
        """
        self.weighted()  # raises an error if there are no draws
        return require("avare.plotting", "drawing").chain_figure(self.draws, self.step_sizes, self._names(names))

    def to_arviz(self, *, name: str = "x", names: Sequence[str] | None = None, resample: bool = False) -> Any:
        """Return the draws as an ArviZ object, with the step sizes as a sample statistic.

        Its dimensions are "chain" (the numbers of the chains), "draw" and "coefficient".

        Parameters
        ----------
        name : str, default="x"
            Name of the variable.
        names : sequence of str, optional
            Names of the coefficients, such as ``dataset.columns``; by default their numbers.
        resample : bool, default=False
            ArviZ does not use weights. If True, each chain is resampled in proportion to the step sizes
            (systematically, in order), so that plain averages are correct for
            decreasing steps. Draws then repeat, and ArviZ counts them as correlated.
        """
        arviz = require("arviz", "to_arviz", "arviz")
        self.weighted()  # raises an error if there are no draws
        draws, sizes = self.draws, self.step_sizes
        if resample:
            reached = np.cumsum(sizes) / sizes.sum()
            chosen = np.searchsorted(reached, (np.arange(len(sizes)) + 0.5) / len(sizes))
            draws, sizes = draws[:, chosen], sizes[chosen]
        statistics = {"step_size": np.tile(sizes, (len(draws), 1))}
        coefficients = np.arange(draws.shape[2]) if names is None else self._names(names)
        labels = {"coords": {"chain": self.sound, "coefficient": coefficients}, "dims": {name: ["coefficient"]}}
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.from_dict(posterior={name: draws}, sample_stats=statistics, **labels)
        return arviz.from_dict({"posterior": {name: draws}, "sample_stats": statistics}, **labels)

    def _names(self, names: Sequence[str] | None) -> list[str]:
        """Return the names, one per coordinate."""
        if names is None:
            return self.names
        validation.same_length("names", len(names), "the draws", self.draws.shape[2])
        return [str(each) for each in names]

    def state_dict(self) -> State:
        """Return everything needed for ``resume=state``, including the samplers' states.

        It can be pickled, or saved with ``numpy.savez(file, **state)``. Call this before the sampler draws again.
        """
        state: State = {"chains": len(self._checkpoints)}
        if isinstance(self.step_size, float):
            state["step_size"] = self.step_size
        for k, each in enumerate(self._checkpoints):
            state.update({f"{k}/{key}": value for key, value in each.state_dict().items()})
        return state

    def __repr__(self) -> str:
        chains, draws, dim = self.draws.shape
        return (
            f"Chain({self.status} after {self.steps} steps in {self.seconds:.3g} s: {chains} x {draws} draws of {dim})"
        )
