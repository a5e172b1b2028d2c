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
from avare.experiments.data import Data, choose_rows
from avare.experiments.noise_or_distance import separate, share_of_noise, words_of_limits
from avare.experiments.optimum import doubt_of_optimum, facts_of
from avare.experiments.records import number
from avare.experiments.runner import duration
from avare.experiments.sgd_runs import AUTO, BASELINE, DEFAULT, Setting, descent_spec, problem_of, sampler_of
from avare.experiments.store import Spec
from avare.experiments.verdict import ALIKE, PLATEAU
from avare.problems import Linear, ToleranceWarning
from avare.solvers import Progress, sgd

_MOST_NUMBERS = 20_000_000  # in X; of larger data some rows are drawn, so that it takes seconds
_TOLERANCE = 1e-5  # of the optimum, relative to the gradient at 0
_MUCH = 2.0
_SHORT = 4  # a pilot run has a quarter of the epochs
_FEWEST, _MOST, _NUMBERS = 4, 8, 64  # pilot runs: more if there are few coefficients, whose noise varies more
_LEAST = 3  # of them, to see how much they differ
_TIMED = 0.5  # seconds for which steps are timed, at least: other work stops a short run for longer than it takes
_DOUBT = 2.0  # a factor that is not known better than this is not reported
_STEEPEST = 8.0  # power of t by which distance falls


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What to expect on a dataset.

    >>> found = Diagnosis(
    ...     "mine", "logistic", 1000, 1000, 5, gain_at_optimum=4.5, smoothness_ratio=2.0,
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
    gain_at_optimum: float
    smoothness_ratio: float  # largest over mean smoothness: what fixed importance sampling can gain, at most
    budget: int  # epochs of the runs that the next three are about
    noise: float  # that noise adds to Uniform's objective at its end
    distance: float  # that the distance to the optimum adds
    factor: float  # how many times fewer epochs are expected for Uniform's final loss; NaN if unknown
    doubt: str = ""  # if the optimum was not found
    runs: int = _FEWEST  # pilot runs of each sampler
    noise_share: tuple[float, float] | None = None  # the interval of the share of noise in the suboptimality
    power: float = 1.0  # of 1/t, by which Uniform's suboptimality falls at its end
    step_ratio: float = field(default=math.nan, compare=False)  # seconds of a step over Uniform's; NaN if unknown

    @property
    def verdict(self) -> str:
        """The answer: "yes", "a little", "no" or "inconclusive"."""
        if math.isnan(self.factor):
            return "inconclusive"
        return "no" if self.factor < ALIKE else "a little" if self.factor < _MUCH else "yes"

    @property
    def factor_in_seconds(self) -> float:
        """The factor in wall-clock time; 1 on a plateau, where time changes little, NaN if unknown."""
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
        if math.isnan(self.factor) and self.doubt:
            return "Inconclusive: the optimum is not known well enough. Use a larger --l2, or avare compare."
        if math.isnan(self.factor):
            return f"Inconclusive: {self.runs} pilot runs of each sampler differ too much; try --runs {4 * self.runs}."
        if _alike(self.factor):
            return f"No: expect no difference after {self.budget} epochs."
        only = " in epochs, but not in wall-clock time" if self.factor > 1.0 and self.factor_in_seconds < ALIKE else ""
        times = f"{self.factor:.1f}× fewer" if self.factor > 1.0 else f"{1.0 / self.factor:.1f}× more"
        return (
            f"{self.verdict.capitalize()}{only}: expect {DEFAULT} to need roughly {times} epochs than {BASELINE} for "
            f"the loss that {BASELINE} has after {self.budget}."
        )

    def _seconds(self) -> str:
        """Say what to expect in seconds."""
        if math.isnan(self.step_ratio):
            return "Wall-clock time: inconclusive, the times of the pilot runs differ too much; try more --runs."
        cost = f"a step with {DEFAULT} takes roughly {self.step_ratio:.1f} times as long"
        if math.isnan(self.factor):
            return f"Wall-clock time: {cost}."
        found = self.factor_in_seconds
        times = f"{found:.1f}× faster" if found > 1.0 else f"{1.0 / found:.1f}× slower"
        return f"Wall-clock time: {'no difference' if _alike(found) else f'roughly {times}'}; {cost}."

    def parts(self) -> list[str]:
        """Return what the command prints."""
        part = "" if self.rows == self.n else f", of which {self.rows:,} were looked at"
        return [
            f"{self.dataset}: {self.n:,} examples{part}, {self.loss}, {self.dim:,} coefficients",
            f"Smoothness, largest over mean: {self.smoothness_ratio:.2f}",
            *self._sentences(),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, the verdict and the words; None for an unknown factor."""
        factors = {name: number(getattr(self, name)) for name in ("factor", "factor_in_seconds", "step_ratio")}
        return {**asdict(self), **factors, "verdict": self.verdict, "words": self.words}


def diagnose(
    data: Data,
    loss: str,
    *,
    l2: float = 1.0,
    batch_size: int = 128,
    epochs: int = 20,
    runs: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Find what to expect of a comparison on a dataset.

    A few pilot runs of Uniform and of Calibrated, the default sampler, have a quarter of the epochs. Noise and distance
    are separated at their ends. Noise falls as 1/t from there on, distance by the power of t by which it fell in the
    second half of the pilots. The differences between the pilots say how much is known. Their steps are timed.

    Parameters
    ----------
    data : Data
        As `obtain` and then `prepared` return it. Of large data some rows are drawn, with at least two of each class,
        or all it has; the l2 term is scaled with them.
    loss : str
        The name of a loss, as `obtain` returns it.
    l2 : float, default=1.0
        The factor of the one l2 term of the whole sum.
    batch_size : int, default=128
        Draws per step.
    epochs : int, default=20
        Epochs of the runs to predict.
    runs : int or None, default=None
        Pilot runs of each sampler, at least 3. None: 4, and up to 8 if there are few coefficients.
    seed : int, default=0
        The seed of all draws.
    say : callable
        Called with a few words about each part of the work.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> found = diagnose(*obtain("synthetic"), batch_size=4)
    >>> round(found.gain_at_optimum, 1), found.verdict in ("yes", "a little", "no", "inconclusive")
    (1.7, True)
    """
    l2 = validation.number("l2", l2, at_least=0.0)
    epochs = validation.integer("epochs", epochs, at_least=1)
    size = validation.integer("batch_size", batch_size, at_least=1)
    runs = None if runs is None else validation.integer("runs", runs, at_least=_LEAST)
    n = len(data)
    X, y = data.X[:n], data.y[:n]
    stored = X.nnz if hasattr(X, "nnz") else X.size
    if stored > _MOST_NUMBERS:
        chosen = choose_rows(y, loss, max(1000, int(n * (_MOST_NUMBERS / stored))), np.random.default_rng(seed))
        say(f"looking at {len(chosen):,} of {n:,} rows")
        X, y = X[chosen], y[chosen]
    short, rows = math.ceil(epochs / _SHORT), len(y)
    setting, whole = Setting(loss, short, size, l2 * rows / n), replace(data, X=X, y=y, held_out=0)
    specs = [descent_spec("compare", whole, setting, name, AUTO, seed) for name in (BASELINE, DEFAULT)]
    problem = problem_of(specs[0], X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        say("searching for the optimum")
        facts = facts_of(problem, _TOLERANCE)
        runs = min(_MOST, _FEWEST + _NUMBERS // problem.dim) if runs is None else runs
        pilots, seconds = _pilots(problem, specs, range(seed + 1, seed + 1 + runs), say)
        say("separating noise and distance")
        apart = list(zip(*(_apart(problem, each, facts["optimum"]) for each in pilots), strict=True))
    at_pilots, expected = ([_expected(each, times) for each in apart] for times in (1.0, epochs / short))
    noise, distance, factor, power = expected[0]
    if 2.0 * _deviation(np.log([each[2] for each in expected[1:]])) > math.log(_DOUBT):
        factor = math.nan
    about: dict[str, Any] = {"dataset": data.name, "loss": loss, "n": n, "rows": rows, "budget": epochs, "runs": runs}
    about |= {key: facts[key] for key in ("dim", "gain_at_optimum", "smoothness_ratio")}
    about |= {"noise": noise, "distance": distance, "factor": factor, "power": power, "step_ratio": _ratio(*seconds)}
    return Diagnosis(**about, doubt=doubt_of_optimum(specs[0], facts), noise_share=_share(at_pilots, expected))


def _pilots(
    problem: Linear, specs: Sequence[Spec], seeds: Sequence[int], say: Callable[[str], None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where runs are at half of their steps and at the end, specs x runs x 2 x dim; and their seconds.

    Runs of the specs take turns, so that other work on the machine slows them equally. If they are short, more of them
    are timed.
    """
    steps = max(2, specs[0]["epochs"] * max(1, problem.n // specs[0]["batch_size"]))
    for spec in specs:  # so that no compilation is timed
        sgd(problem, sampler_of(spec, problem), AUTO, steps=1, evaluate="never")
    began, total, seen, seconds = time.monotonic(), len(specs) * len(seeds), [], []

    def look(progress: Progress) -> None:
        seen.append(progress.average.copy())

    for done, (seed, spec) in enumerate(product(seeds, specs)):
        left = f"; roughly {duration((time.monotonic() - began) / done * (total - done))} left" if done else ""
        say(f"pilot run {done + 1} of {total}, with {spec['sampler']}{left}")
        sampler = sampler_of({**spec, "seed": seed}, problem)
        run = sgd(problem, sampler, AUTO, steps=steps, evaluate=[0, steps // 2, steps], callback=look)
        seconds.append(run.seconds)
    while time.monotonic() < began + _TIMED:
        for spec in specs:
            run = sgd(problem, sampler_of(spec, problem), AUTO, steps=steps, evaluate="never")
            seconds.append(run.seconds)
    places = np.reshape(seen, (len(seeds), len(specs), 3, -1))[:, :, 1:]  # the first is the start
    return places.swapaxes(0, 1), np.reshape(seconds, (-1, len(specs))).T


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


Apart = list[tuple[float, float]]
"""Noise and distance of a sampler's pilots, at half of their steps and at the end."""


def _apart(problem: Linear, ends: NDArray[np.float64], optimum: float) -> list[Apart]:
    """Separate noise and distance of the pilots of a sampler: of all, then of all but the first, and so on."""
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

    noise, distance = noises[0] / times, after / times**power  # times in units of the pilots' steps
    if not noise + distance > 0.0:
        return 0.0, 0.0, 1.0, 0.0  # both are at the optimum
    grid = times * np.geomspace(1e-4, 1e4, 20_001)  # the sampler has the same suboptimality first at one of these
    reached = grid[np.argmax(noises[1] / grid + after / grid**power <= noise + distance)]
    return noise, distance, times / float(reached), (noise + power * distance) / (noise + distance)
