"""Should I use this? What a sampler is expected to save on given data, found in seconds."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare import diagnostics, problems
from avare.experiments.content import Table
from avare.experiments.convergence import BASELINE
from avare.experiments.data import Data
from avare.experiments.descent import AUTO, descent_spec, problem_of, sampler_of
from avare.experiments.facts import doubt_of_optimum, facts_of
from avare.experiments.limits import separate, share_of_noise, words_of_limits
from avare.experiments.preparation import with_all_classes
from avare.experiments.records import number
from avare.experiments.runs import interrupts_at_once
from avare.experiments.store import Spec
from avare.experiments.sweep import duration
from avare.experiments.verdict import ALIKE, PLATEAU
from avare.problems import Linear, ToleranceWarning
from avare.solvers import Progress, sgd

_MOST_NUMBERS = 20_000_000  # in X; of larger data some rows are drawn, so that it takes seconds
_TOLERANCE = 1e-5  # of the optimum, relative to the gradient at 0
_MUCH = 2.0
_SAMPLER = "Avare"  # compared with the baseline
_SHORT = 4  # a pilot run has a quarter of the epochs
_FEWEST, _MOST, _NUMBERS = 4, 8, 64  # pilot runs: more if there are few coefficients, whose noise varies more
_LEAST = 3  # of them, to see how much they differ
_TIMED = 0.5  # seconds for which steps are timed, at least: other work stops a short run for longer than it takes
_DOUBT = 2.0  # a factor that is not known better than this is not reported
_STEEPEST = 8.0  # power of t by which distance falls


@dataclass(frozen=True, slots=True)
class DataDiagnosis:
    """What to expect on a dataset.

    >>> found = DataDiagnosis(
    ...     "mine", "logistic", 1000, 1000, 5, [1], [4.0], [3.0], gain_at_optimum=4.5, smoothness_ratio=2.0,
    ...     budget=20, noise=0.1, distance=0.01, factor=2.5,
    ... )
    >>> found.verdict
    'yes'
    """

    dataset: str
    loss: str
    n: int
    rows: int  # examples looked at
    dim: int  # coefficients
    epochs: list[int]  # of a pilot run with Avare
    gains: list[float]  # of the best distribution over uniform draws, as a factor on the gradient's second moment
    realised: list[float]  # the same of Avare's distribution
    gain_at_optimum: float
    smoothness_ratio: float  # largest over mean smoothness: what fixed importance sampling can gain, at most
    budget: int  # epochs of the runs that the next three are about
    noise: float  # that noise adds to Uniform's objective at its end
    distance: float  # that the distance to the optimum adds
    factor: float  # how much sooner Avare is expected where Uniform ends; NaN if unknown
    doubt: str = ""  # if the optimum was not found
    runs: int = _FEWEST  # pilot runs of each sampler
    noise_share: tuple[float, float] | None = None  # the interval of the share of noise in the suboptimality
    power: float = 1.0  # of 1/t, by which Uniform's suboptimality falls at its end
    step_ratio: float = field(default=math.nan, compare=False)  # seconds of Avare's step over Uniform's; NaN if unknown

    @property
    def verdict(self) -> str:
        """The answer: "yes", "a little", "no" or "cannot tell"."""
        if math.isnan(self.factor):
            return "cannot tell"
        return "no" if self.factor < ALIKE else "a little" if self.factor < _MUCH else "yes"

    @property
    def factor_in_seconds(self) -> float:
        """How much sooner Avare is expected in seconds; 1 on a plateau, where time changes little, NaN if unknown."""
        on_plateau = self.power * abs(math.log(self.step_ratio)) < math.log(PLATEAU)
        return 1.0 if on_plateau and _alike(self.factor) else self.factor / self.step_ratio

    @property
    def words(self) -> str:
        """The answer in a few sentences."""
        return " ".join(self._sentences())

    def _sentences(self) -> list[str]:
        limits = words_of_limits({"noise": self.noise, "distance": self.distance}, between=self.noise_share)
        possible = (
            f"Near the optimum the best distribution divides the second moment of the gradient by "
            f"{self.gain_at_optimum:.2f}."
        )
        return [self._answer(), self._seconds(), limits, possible, *([self.doubt] if self.doubt else [])]

    def _answer(self) -> str:
        """Say what to expect in epochs, or what to do to find out."""
        if self.verdict == "cannot tell" and self.doubt:
            return "Cannot tell: the optimum is not known well enough. Use a larger --l2, or avare compare."
        if self.verdict == "cannot tell":
            return f"Cannot tell: {self.runs} pilot runs of each sampler differ too much. Try --runs {4 * self.runs}."
        if _alike(self.factor):
            return f"No: after {self.budget} epochs expect no difference."
        only = " in epochs, but not in seconds" if self.factor > 1.0 and self.factor_in_seconds < ALIKE else ""
        return (
            f"{self.verdict.capitalize()}{only}: expect {_SAMPLER} to reach the objective that {BASELINE} has after "
            f"{self.budget} epochs about {_pace(self.factor)}."
        )

    def _seconds(self) -> str:
        """Say what to expect in seconds."""
        if math.isnan(self.step_ratio):
            return "In seconds it cannot tell: the times of the pilot runs differ too much. Use more --runs."
        cost = f"a step takes about {self.step_ratio:.1f} times as long"
        if math.isnan(self.factor):
            return f"With {_SAMPLER} {cost}."
        found = self.factor_in_seconds
        expected = "no difference" if _alike(found) else f"{_SAMPLER} about {_pace(found)}"
        link = "although" if _alike(found) and _alike(self.factor) else "since"
        return f"In seconds expect {expected}, {link} {cost}."

    def parts(self) -> list[str | Table]:
        """Return what the command prints."""
        part = "" if self.rows == self.n else f", of which {self.rows:,} were looked at"
        along = zip(self.epochs, self.gains, self.realised, strict=True)
        rows: list[dict[str, Any]] = [{"at": f"epoch {epoch}", "gain": gain, "own": own} for epoch, gain, own in along]
        rows.append({"at": "optimum", "gain": self.gain_at_optimum, "own": ""})
        return [
            f"{self.dataset}: {self.n:,} examples{part}, {self.loss}, {self.dim:,} coefficients",
            Table.of("", f"at; gain|possible gain|number; own|realised by {_SAMPLER}|number", rows),
            f"Smoothness, largest over mean: {self.smoothness_ratio:.2f}",
            *self._sentences(),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, the verdict and the words; None for an unknown factor."""
        factors = {name: number(getattr(self, name)) for name in ("factor", "factor_in_seconds", "step_ratio")}
        return {**asdict(self), **factors, "verdict": self.verdict, "words": self.words}


def diagnose_data(
    data: Data,
    loss: str,
    *,
    l2: float = 1.0,
    batch_size: int = 128,
    epochs: int = 20,
    runs: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> DataDiagnosis:
    """Find what to expect of a comparison on a dataset.

    A few pilot runs of Uniform and of Avare, of a quarter of the epochs, are taken apart into noise and distance. Noise
    falls as 1/t from there on, distance by the power of t by which it fell in the second half of the pilots. How much
    they differ says what is known. Their steps are timed.

    Parameters
    ----------
    data, loss
        As `obtain` and then `prepared` return them. Of large data some rows are drawn, with at least two of each class,
        or all it has; the l2 term is scaled with them.
    l2, batch_size, epochs, seed
        Of the one l2 term of the whole sum; draws per step; epochs of the runs to predict; and the seed of all draws.
    runs
        Pilot runs of each sampler, at least 3; by default 4, and up to 8 if there are few coefficients.
    say
        Called with a few words about each part of the work.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> found = diagnose_data(*obtain("synthetic"), batch_size=4)
    >>> round(found.gain_at_optimum, 1), found.verdict in ("yes", "a little", "no", "cannot tell")
    (1.7, True)
    """
    l2 = validation.number("l2", l2, at_least=0.0)
    epochs = validation.integer("epochs", epochs, at_least=1)
    size = validation.integer("batch_size", batch_size, at_least=1)
    runs = None if runs is None else validation.integer("runs", runs, at_least=_LEAST)
    generator = np.random.default_rng(seed)
    n = len(data)
    X, y = data.X[:n], data.y[:n]
    stored = X.nnz if hasattr(X, "nnz") else X.size
    rows = n if stored <= _MOST_NUMBERS else min(n, max(1000, int(n * (_MOST_NUMBERS / stored))))
    if rows < n:
        say(f"drawing {rows:,} of {n:,} rows")
        chosen = np.sort(generator.choice(n, size=rows, replace=False))
        if problems.get(loss).target != "numbers":
            chosen = with_all_classes(chosen, y, generator)
        X, y, rows = X[chosen], y[chosen], len(chosen)
    short = math.ceil(epochs / _SHORT)
    settings: dict[str, Any] = {"epochs": short, "batch_size": size, "l2": l2 * rows / n, "steps": AUTO, "seed": seed}
    whole = replace(data, X=X, y=y, held_out=0)
    specs = {name: descent_spec("compare", whole, loss, name, **settings) for name in (BASELINE, _SAMPLER)}
    problem = problem_of(specs[BASELINE], X, y)
    say("searching for the optimum")
    with interrupts_at_once(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        facts = facts_of(problem, _TOLERANCE)
    gains: list[float] = []
    realised: list[float] = []

    def look(progress: Progress) -> None:
        norms = problem.norms(progress.x)
        gains.append(float(diagnostics.gain(norms)))
        error = float(diagnostics.relative_error(norms, progress.sampler.probabilities()))
        realised.append(gains[-1] / (1.0 + error))
        say(f"epoch {len(gains) - 1} of a pilot run: possible gain {gains[-1]:.2f}")

    runs = min(_MOST, _FEWEST + _NUMBERS // problem.dim) if runs is None else runs
    with interrupts_at_once():
        sgd(problem, sampler_of(specs[_SAMPLER], problem), AUTO, epochs=short, callback=look)
        pilots, seconds = _pilots(problem, list(specs.values()), range(seed + 1, seed + 1 + runs), say)
        say("taking noise and distance apart")
        apart = list(zip(*(_apart(problem, each, facts["optimum"]) for each in pilots), strict=True))
    at_pilots, expected = ([_expected(each, times) for each in apart] for times in (1.0, epochs / short))
    noise, distance, factor, power = expected[0]
    if 2.0 * _deviation(np.log([each[2] for each in expected[1:]])) > math.log(_DOUBT):
        factor = math.nan
    ends = (facts["gain_at_optimum"], facts["smoothness_ratio"], epochs, noise, distance, factor)
    doubt = doubt_of_optimum(specs[BASELINE], facts)
    known = (runs, _share(at_pilots, expected), power, _ratio(*seconds))
    epochs_seen = list(range(len(gains)))
    return DataDiagnosis(data.name, loss, n, rows, facts["dim"], epochs_seen, gains, realised, *ends, doubt, *known)


def _pilots(
    problem: Linear, specs: Sequence[Spec], seeds: Sequence[int], say: Callable[[str], None]
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return where runs of each spec are at half of their steps and at the end, runs x 2 x dim; and their seconds.

    Runs of the specs take turns, so that other work on the machine slows them equally. If they are short, more of them
    are timed.
    """
    ends: list[list[list[NDArray[np.float64]]]] = [[] for _ in specs]
    seconds: list[list[float]] = [[] for _ in specs]
    steps = specs[0]["epochs"] * max(1, problem.n // specs[0]["batch_size"])
    for spec in specs:  # so that no compilation is timed
        sgd(problem, sampler_of(spec, problem), AUTO, steps=1, evaluate="never")
    began, total = time.monotonic(), len(specs) * len(seeds)
    for done, (seed, (place, spec)) in enumerate(product(seeds, enumerate(specs))):
        left = duration((time.monotonic() - began) / done * (total - done)) if done else ""
        say(f"pilot run {done + 1} of {total}, with {spec['sampler']}{f'; about {left} left' if left else ''}")
        places: list[NDArray[np.float64]] = []

        def look(progress: Progress, places: list[NDArray[np.float64]] = places) -> None:
            places.append(progress.average.copy())

        sampler, looks = sampler_of({**spec, "seed": seed}, problem), [steps // 2, steps]
        run = sgd(problem, sampler, AUTO, steps=steps, evaluate=looks, callback=look)
        ends[place].append(places[-2:])
        seconds[place].append(run.seconds)
    while time.monotonic() < began + _TIMED:
        for spec, times in zip(specs, seconds, strict=True):
            times.append(sgd(problem, sampler_of(spec, problem), AUTO, steps=steps, evaluate="never").seconds)
    return [np.array(each) for each in ends], np.array(seconds)


def _deviation(others: ArrayLike) -> float:
    """Return the standard deviation of an estimate by the jackknife, from the estimates without one run each."""
    values = np.asarray(others, dtype=np.float64)
    return math.sqrt((len(values) - 1.0) * float(np.var(values)))


def _share(*ends: Sequence[tuple[float, ...]]) -> tuple[float, float]:
    """Return the interval of the share of noise, at the ends of the pilots and of longer runs together.

    The latter is extrapolated, and the pilots do not show how well that goes.
    """
    shares = [[share_of_noise({"noise": each[0], "distance": each[1]}) for each in same] for same in ends]
    places = [(whole, 2.0 * _deviation(others)) for whole, *others in shares]
    return max(0.0, min(at - margin for at, margin in places)), min(1.0, max(at + margin for at, margin in places))


def _ratio(theirs: NDArray[np.float64], ours: NDArray[np.float64]) -> float:
    """Return how much longer our runs take, by the least times; NaN if no second run of each took about as long.

    >>> _ratio(np.array([1.0, 2.0, 1.01]), np.array([1.5, 1.51, 7.0]))
    1.5
    """
    first, second = np.sort([theirs, ours], axis=1)[:, :2].T
    is_known = first.min() > 0.0 and bool((second < ALIKE * first).all())  # a coarse clock may show 0
    return float(first[1] / first[0]) if is_known else math.nan


def _alike(factor: float) -> bool:
    return 1.0 / ALIKE < factor < ALIKE


def _pace(factor: float) -> str:
    """Write a factor in words.

    >>> _pace(2.04), _pace(0.5)
    ('2.0 times sooner', '2.0 times later')
    """
    return f"{factor:.1f} times sooner" if factor > 1.0 else f"{1.0 / factor:.1f} times later"


Apart = list[tuple[float, float]]
"""Noise and distance of a sampler's pilots, at half of their steps and at the end."""


def _apart(problem: Linear, ends: NDArray[np.float64], optimum: float) -> list[Apart]:
    """Take the pilots of a sampler apart: all of them, then all but the first, all but the second, ..."""
    objectives = np.array([[problem.objective(x) for x in places] for places in ends])
    samples = [np.arange(len(ends)), *(np.delete(np.arange(len(ends)), k) for k in range(len(ends)))]
    return [
        [separate(problem, list(ends[rows, k]), optimum, objectives[rows, k].tolist()) for k in range(2)]
        for rows in samples
    ]


def _expected(found: Sequence[Apart], times: float) -> tuple[float, float, float, float]:
    """Return the baseline's noise and distance after a multiple of the pilots' steps, and the factor to expect.

    Noise falls as 1/t, distance by the power by which it fell in the second half of the pilots; the power of both
    together is returned too.
    """
    noises = [noise for _, (noise, _) in found]
    before, after = (math.sqrt(found[0][k][1] * found[1][k][1]) for k in range(2))  # distance: no sampler changes it
    power = min(math.log2(before / after), _STEEPEST) if before > after > 0.0 else 0.0

    def parts(place: int, t: float) -> tuple[float, float]:  # t in units of the pilots' steps
        return noises[place] / t, after / t**power

    noise, distance = parts(0, times)
    if not noise + distance > 0.0:
        return 0.0, 0.0, 1.0, 0.0  # both are at the optimum
    low, high = times / 1e4, times * 1e4
    for _ in range(60):  # the time at which the sampler has the same suboptimality, by bisection
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sum(parts(1, middle)) > noise + distance else (low, middle)
    return noise, distance, times / high, (noise + power * distance) / (noise + distance)
