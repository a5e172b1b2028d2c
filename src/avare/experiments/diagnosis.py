"""Should I use this? What a sampler saves on given data, from short runs on some of the rows."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from avare import _validation as validation
from avare import diagnostics, problems
from avare._optional import require
from avare.experiments import sgd_runs
from avare.experiments.data import Data, choose_rows
from avare.experiments.sgd_runs import AUTO, BASELINE, DEFAULT, problem_of, sampler_of
from avare.experiments.store import Spec, number
from avare.experiments.verdict import ComparisonVerdict, compare_runs, sentence, words_of_limits
from avare.problems import Linear
from avare.solvers import Run, sgd

_MOST_NUMBERS = 20_000_000  # in X; of larger data some rows are drawn, so that it takes seconds
_MUCH = 1.5  # the least factor of a "yes", at the lower end of its interval
_RUNS, _MANY_RUNS = 5, 20  # by default, of each sampler: many of small data, where they take a second
_SMALL = 200_000  # numbers in X
_LOOKS = 8  # evaluations of a run
_FEW_NUMBERS = 2_000_000  # in X, up to which a fit is timed
_STEPS = 100  # towards the optimum, at most
_REST = 4  # runs of SGD that take as long as what follows them: measured, roughly


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What to expect on a dataset.

    >>> faster = ComparisonVerdict("faster", 2.5, 2.1, 2.9, 5)
    >>> slower = ComparisonVerdict("slower", 0.7, 0.6, 0.8, 5)
    >>> about = ("mine", "logistic", 1000, 1000, 5, 20, 4.5, 0.1, 0.01)
    >>> Diagnosis(*about, faster, faster, 0.1).verdict, Diagnosis(*about, faster, slower, 0.1).verdict
    ('yes', 'no')
    """

    dataset: str
    loss: str
    n: int
    rows: int  # examples used
    dim: int  # coefficients
    epochs: int  # of the runs
    gain: float  # what the best distribution divides the second moment of the gradient by, where Uniform ends
    noise: float  # that noise adds to Uniform's objective at its end
    distance: float  # that the distance to the optimum adds
    in_epochs: ComparisonVerdict  # of Calibrated against Uniform
    in_seconds: ComparisonVerdict
    fit_seconds: float | None  # of a fit with `avare.sklearn`; None if the data are too large to try it here

    @property
    def verdict(self) -> str:
        """The answer, by the worse of epochs and seconds: "yes", "a little", "no" or "inconclusive"."""
        kinds = {self.in_epochs.kind, self.in_seconds.kind}
        if kinds & {"slower", "no difference"}:
            return "no"
        if "inconclusive" in kinds:
            return "inconclusive"
        return "a little" if min(self.in_epochs.low, self.in_seconds.low) < _MUCH else "yes"

    @property
    def words(self) -> str:
        """The answer in a few sentences."""
        return " ".join(self.parts()[1:])

    def parts(self) -> list[str]:
        """Return what the command prints."""
        part = "" if self.rows == self.n else f", of which {self.rows:,} were used"
        about = f"{self.dataset}: {self.n:,} examples{part}; {self.loss}, {self.dim:,} coefficients; "
        about += f"{self.in_epochs.runs} runs of {self.epochs} epochs with each sampler"
        answer = sentence(DEFAULT, {"epochs": self.in_epochs, "seconds": self.in_seconds})
        if self.verdict == "no" and self.in_epochs.kind == "faster":
            answer += " Fewer epochs do not pay for its slower steps here; they may if a gradient costs more."
        limits = words_of_limits({"noise": self.noise, "distance": self.distance}, self.in_epochs.kind == "faster")
        gain = f"Where {BASELINE} ends, the best distribution divides the second moment of the gradient by "
        gain += f"{self.gain:.1f}. This lowers the noise, and helps only if noise limits the runs."
        return [about, f"{self.verdict.capitalize()}: {answer}", gain, limits, what_to_do(self.loss, self.fit_seconds)]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, the verdict and the words; None for what is not known."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields |= {name: number(fields[name]) for name in ("gain", "noise", "distance")}
        fields |= {name: fields[name].as_dict() for name in ("in_epochs", "in_seconds")}
        return {**fields, "verdict": self.verdict, "words": self.words}


def diagnose(
    data: Data,
    loss: str,
    *,
    l2: float = 1.0,
    batch_size: int | None = None,
    epochs: int = 20,
    runs: int | None = None,
    seed: int = 0,
    count: Callable[[float, str], None] = lambda share, text: None,
) -> Diagnosis:
    """Find what to expect of a comparison on a dataset.

    A few runs of Uniform and of Calibrated, the default sampler, are compared as `compare` does it. Noise and distance
    are separated at the ends of Uniform's runs; for this, some steps of L-BFGS come close to the optimum, so that the
    distance is a lower bound. Up to two million numbers, a fit with the estimator of `avare.sklearn` is timed.

    Parameters
    ----------
    data : Data
        As `obtain` and then `prepared` return it. Of more than 20 million numbers some rows are drawn, with at least
        two of each class, or all it has; the l2 term is scaled with them.
    loss : str
        The name of a loss, as `obtain` returns it.
    l2 : float, default=1.0
        The factor of the one l2 term of the whole sum.
    batch_size : int, optional
        Draws per step, at most the number of examples; by default 128.
    epochs : int, default=20
        Epochs per run.
    runs : int, optional
        Runs of each sampler, at least 2; by default 5, of up to 200,000 numbers 20.
    seed : int, default=0
        The seed of all draws.
    count : callable, optional
        Called with the share of the work that is done, and a few words about what is next.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> found = diagnose(*obtain("synthetic"), batch_size=4)
    >>> round(found.gain, 1), found.verdict in ("yes", "a little", "no", "inconclusive")
    (1.6, True)
    """
    l2 = validation.number("l2", l2, at_least=0.0)
    epochs = validation.integer("epochs", epochs, at_least=1)
    size = sgd_runs.batch_size_of(batch_size, len(data))
    n = len(data)
    X, y = data.X, data.y
    stored = X.nnz if hasattr(X, "nnz") else X.size
    default = _MANY_RUNS if stored <= _SMALL else _RUNS
    runs = default if runs is None else validation.integer("runs", runs, at_least=2)
    if stored > _MOST_NUMBERS:
        chosen = choose_rows(y, loss, max(1000, int(n * (_MOST_NUMBERS / stored))), np.random.default_rng(seed))
        X, y = X[chosen], y[chosen]
    setting, used = sgd_runs.Setting(loss, epochs, size, l2 * len(y) / n), replace(data, X=X, y=y)
    specs = [sgd_runs.descent_spec("compare", used, setting, name, AUTO, seed) for name in (BASELINE, DEFAULT)]
    problem = problem_of(specs[0], X, y)
    fit_seconds = None
    with require("threadpoolctl", "a diagnosis").threadpool_limits(1), warnings.catch_warnings():  # as runs have it
        warnings.simplefilter("ignore")  # what diverges or does not converge is in the result
        found = _runs(problem, specs, range(seed + 1, seed + 1 + runs), count)
        if stored <= _FEW_NUMBERS:
            fit_seconds = [_fit(estimator_of(loss), X, y, l2) for _ in range(2)][1]  # the first may compile
        ends = [run.x for run in found[BASELINE]]
        gain = float(diagnostics.gain(problem.norms(ends[0])))
        best = _near_optimum(problem, np.mean(ends, axis=0))
        noise, distance = sgd_runs.separate(problem, ends, best)
    count(1.0, "done")
    curves = {
        along: [[(run.trace[along], run.trace.objective - best) for run in each] for each in found.values()]
        for along in ("epoch", "seconds")
    }
    about = (data.name, loss, n, problem.n, problem.dim, epochs, gain, noise, distance)
    return Diagnosis(*about, compare_runs(*curves["epoch"]), compare_runs(*curves["seconds"]), fit_seconds)


def estimator_of(loss: str) -> str:
    """Return the class of `avare.sklearn` that fits a linear model with this kind of targets.

    >>> estimator_of("softmax"), estimator_of("huber")
    ('AvareClassifier', 'AvareRegressor')
    """
    return "AvareRegressor" if problems.get(loss).target == "numbers" else "AvareClassifier"


def what_to_do(loss: str, seconds: float | None = None) -> str:
    """Return the advice for linear data, with the seconds of a fit if they are known.

    >>> what_to_do("logistic", 0.12)[-32:]
    'which needs no step size: 0.1 s.'
    """
    known = "" if seconds is None else f": {f'{seconds:.1f}' if seconds >= 0.1 else 'less than 0.1'} s"
    fit = f"fit this linear model with {estimator_of(loss)} of avare.sklearn"
    return f"What to do: {fit}, which needs no step size{known}."


def _runs(
    problem: Linear,
    specs: Sequence[Spec],
    seeds: Sequence[int],
    count: Callable[[float, str], None],
) -> dict[str, list[Run]]:
    """Return the runs of each sampler.

    They take turns, so that other work on the machine slows all equally.
    """
    steps = specs[0]["epochs"] * max(1, problem.n // specs[0]["batch_size"])
    looks = np.unique(np.linspace(0, steps, _LOOKS + 1).astype(np.int64)).tolist()
    found: dict[str, list[Run]] = {spec["sampler"]: [] for spec in specs}
    whole = 2 * len(seeds) + _REST
    for k, seed in enumerate(seeds):
        for spec in specs:
            name = spec["sampler"]
            count((2 * k + (name == DEFAULT)) / whole, f"run {k + 1} of {len(seeds)}, {name}")
            if not k:
                sgd(problem, sampler_of(spec, problem), AUTO, steps=1, evaluate="never")  # no compilation is timed
            sampler = sampler_of({**spec, "seed": seed}, problem)
            found[name].append(sgd(problem, sampler, AUTO, steps=steps, evaluate=looks))
    count(2 * len(seeds) / whole, "the optimum")
    return found


def _fit(estimator: str, X: Any, y: Any, l2: float) -> float:
    """Return the seconds of a fit with scikit-learn's interface."""
    fitted = getattr(require("avare.sklearn", "a fit"), estimator)(C=1.0 / l2 if l2 > 0.0 else math.inf, random_state=0)
    began = time.monotonic()
    fitted.fit(X, y)
    return time.monotonic() - began


def _near_optimum(problem: Linear, start: Any) -> float:
    """Return an objective near the least one, by some steps of L-BFGS."""
    from scipy.optimize import minimize

    how: dict[str, Any] = {"method": "L-BFGS-B", "options": {"maxiter": _STEPS, "maxfun": 2 * _STEPS}}
    return float(minimize(lambda x: (problem.objective(x), problem.gradient(x)), start, jac=True, **how).fun)
