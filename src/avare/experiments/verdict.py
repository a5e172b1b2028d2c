"""Is one sampler faster than another? An answer with an interval, from a few runs of each.

For each run we note when it reaches some levels of suboptimality: from the lowest that all runs have reached after half
of their time, to the lowest that all have reached at the end. The factor between two samplers is the ratio of these
times, as a geometric mean over levels and runs. Its interval is Welch's for the logarithms of the times, at 95 %.

Suppose that the runs of Uniform reach a level after 16 to 20 epochs, and those of another sampler after 7 to 9. The
factor is then about 2.2, and the interval says how sure that is.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.experiments.aggregate import Group, Series
from avare.experiments.sgd_runs import BASELINE
from avare.experiments.store import count, number

CONFIDENCE = 0.95
ALIKE = 1.25
"""Two samplers do not differ if the interval of their factor is within 1/1.25 to 1.25."""
PLATEAU = 1.05
"""Ratio of the suboptimalities at the same time, below which two samplers are on the same plateau."""
MOSTLY = 0.8
"""Noise or distance limits the runs if it is at least this share of the suboptimality."""
_ENDS = {0: "less than 5 %", 10: "more than 95 %"}  # of the suboptimality, in tenths
_LEVELS = 5
_SMALLEST = 1.1  # smaller factors are not called faster or slower

Trajectory = tuple[ArrayLike, ArrayLike]
"""Times and suboptimalities of a run."""


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """How much faster a sampler is than the baseline.

    >>> ComparisonVerdict("inconclusive", 1.2, 0.7, 2.0, 3).words
    'inconclusive (3 runs); try --runs 12'
    """

    kind: str  # "faster", "slower", "no difference" or "inconclusive"
    factor: float  # the baseline's time over the sampler's; NaN if it is not known
    low: float  # the interval of the factor
    high: float
    runs: int  # of the sampler with fewer; 0 if one of them diverged
    epochs: int = 2  # evaluations of the shortest run, after its start; times cannot be compared with fewer than 2

    @property
    def range(self) -> str:
        """The interval of the factor, or of its inverse if the sampler is slower."""
        low, high = (self.low, self.high) if self.factor > 1.0 else (1.0 / self.high, 1.0 / self.low)
        return f"{_digits(low)}–{_digits(high)}×"

    @property
    def words(self) -> str:
        """The verdict in a few words; if it is inconclusive, also what to do."""
        if self.kind in ("faster", "slower"):
            return f"{self.range} {self.kind}"
        if self.kind == "no difference":
            return f"no significant difference over {count(self.runs, 'run')}"
        if not self.runs:
            return "inconclusive (a run diverged)"
        advice = "--epochs 20" if self.epochs < 2 else f"--runs {max(5, 4 * self.runs)}"
        return f"inconclusive ({count(self.runs, 'run')}{' of 1 epoch' * (self.epochs < 2)}); try {advice}"

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the words; None for what is not known."""
        known = {name: number(getattr(self, name)) for name in ("factor", "low", "high")}
        return {"kind": self.kind, "words": self.words, **known, "runs": self.runs}


def compare_runs(baseline: Sequence[Trajectory], sampler: Sequence[Trajectory]) -> ComparisonVerdict:
    """Compare the runs of a sampler with those of the baseline.

    Examples
    --------
    >>> epochs = np.arange(1.0, 21.0)
    >>> slow = [(epochs, scale / epochs) for scale in (0.9, 1.0, 1.1)]
    >>> fast = [(epochs, scale / epochs) for scale in (0.45, 0.5, 0.55)]
    >>> compare_runs(slow, fast).kind
    'faster'
    >>> compare_runs(slow, slow).words
    'inconclusive (3 runs); try --runs 12'
    """
    runs = min(len(baseline), len(sampler))
    times, own = [_logarithm(*curve) for curve in baseline], [_logarithm(*curve) for curve in sampler]
    epochs = min((len(along) for along, _ in (*times, *own)), default=0)
    if runs == 0 or epochs < 2:
        return ComparisonVerdict("inconclusive", math.nan, math.nan, math.nan, runs, epochs)
    levels = np.linspace(*_range([*times, *own]), _LEVELS)
    theirs, ours = (np.array([_reached(curve, levels) for curve in each]) for each in (times, own))
    difference = float(theirs.mean() - ours.mean())
    margin = math.inf if runs == 1 else _margin(theirs, ours)
    with np.errstate(over="ignore"):
        low, factor, high = np.exp([difference - margin, difference, difference + margin]).tolist()
    last = min(along[-1] for along, _ in (*times, *own))  # in seconds, some runs end sooner
    ends = [np.array([np.interp(last, *curve) for curve in each]) for each in (times, own)]
    lead = float(ends[0].mean() - ends[1].mean())
    level = runs > 1 and abs(lead) + _margin(*ends) < math.log(PLATEAU)  # on the same plateau
    sure = (low > 1.0 or high < 1.0) and abs(difference) >= math.log(_SMALLEST)
    alike = level or (not sure and low >= 1.0 / ALIKE and high <= ALIKE)
    kind = "no difference" if alike else "inconclusive" if not sure else "faster" if low > 1.0 else "slower"
    return ComparisonVerdict(kind, factor, low, high, runs)


def _logarithm(times: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms of times and of the least suboptimality so far, without time 0."""
    along, found = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    found = np.where(np.isfinite(found), found, np.inf)
    lowest = np.minimum.accumulate(found)
    lowest = np.clip(lowest, max(1e-15 * abs(float(found[0])), 1e-300), 1e300)  # rounding: not below zero
    keep = along > 0.0
    return np.log(along[keep]), np.log(lowest[keep])


def _range(curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> tuple[float, float]:
    """Return the logarithms of the lowest levels that all runs reach: in half of their time, and at the end."""
    halves = [float(np.interp(along[-1] - math.log(2.0), along, lowest)) for along, lowest in curves]
    last = max(float(lowest[-1]) for _, lowest in curves)
    return max(last, *halves), last


def _reached(curve: tuple[NDArray[np.float64], NDArray[np.float64]], levels: NDArray[np.float64]) -> float:
    """Return the mean over levels of the logarithm of the time at which a run reaches each."""
    along, lowest = curve
    return float(np.mean(np.interp(levels, lowest[::-1], along[::-1])))


def _margin(theirs: NDArray[np.float64], ours: NDArray[np.float64]) -> float:
    """Return half of Welch's interval for the difference of two means."""
    if not (np.ptp(theirs) or np.ptp(ours)):
        return 0.0
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runs that are nearly the same: the interval is 0
        low, high = stats.ttest_ind(theirs, ours, equal_var=False).confidence_interval(CONFIDENCE)
    return float(high - low) / 2.0


def _digits(value: float) -> str:
    return f"{value:.2g}" if value < 100.0 else f"{value:.0f}"


# --- of stored runs -------------------------------------------------------------------------

Verdicts = Mapping[tuple[str, str, str], Mapping[str, ComparisonVerdict]]
"""By group, step sizes and sampler: the verdicts in "epochs" and in "seconds" (of steps, without evaluations)."""


def verdicts_of(groups: Sequence[Group]) -> Verdicts:
    """Compare each sampler with the baseline in the same group, with the same step sizes."""
    return {
        (group.title, series.rule, series.label): {
            along: compare_runs(_curves(baseline, column), _curves(series, column))
            for along, column in (("epochs", "epoch"), ("seconds", "seconds"))
        }
        for group in groups
        for baseline in group.series
        if baseline.spec["sampler"] == BASELINE
        for series in group.series
        if series.rule == baseline.rule and series.spec["sampler"] != BASELINE
    }


def sentences(found: Verdicts) -> list[str]:
    """Write the verdicts of a group, one line each.

    >>> same = ComparisonVerdict("no difference", 1.0, 0.9, 1.1, 3)
    >>> faster = ComparisonVerdict("faster", 2.4, 2.1, 2.8, 3)
    >>> (line,) = sentences({("mine", "auto", "Avare"): {"epochs": faster, "seconds": same}})
    >>> line[-100:]
    'fewer epochs than Uniform for the same loss. Wall-clock time: no significant difference over 3 runs.'
    """
    several = len({rule for _, rule, _ in found}) > 1
    about = {key: f"{key[2]} ({key[1]} steps)" if several else key[2] for key in found}
    return [f"Verdict: {sentence(about[key], judged)}" for key, judged in found.items()]


def sentence(name: str, judged: Mapping[str, ComparisonVerdict]) -> str:
    """Write the verdicts on a sampler, in epochs and in seconds."""
    epochs = judged["epochs"]
    words = f"{name} and {BASELINE}, in epochs: {epochs.words}"
    if epochs.kind in ("faster", "slower"):
        fewer = "fewer" if epochs.kind == "faster" else "more"
        words = f"{name} needs {epochs.range} {fewer} epochs than {BASELINE} for the same loss"
    return f"{words}. Wall-clock time: {judged['seconds'].words}."


def share_of_noise(limits: Mapping[str, float]) -> float:
    """Return the share of the noise in the suboptimality; 0 if there is none at all."""
    total = limits["noise"] + limits["distance"]
    return limits["noise"] / total if total > 0.0 else 0.0


def words_of_limits(limits: Mapping[str, float], faster: bool = False) -> str:
    """Say what limits the baseline, and whether a sampler is faster.

    >>> words_of_limits({"noise": 1.0, "distance": 9.0})[:75]
    'Conditioning, not noise, limits Uniform: at its end, noise is roughly 10 % '
    """
    share = share_of_noise(limits)
    tenths = round(10.0 * share)  # a few runs allow no more
    part = f"at its end, noise is {_ENDS.get(tenths, f'roughly {10 * tenths} %')} of its suboptimality"
    if share >= MOSTLY:
        return f"Noise limits {BASELINE}: {part}."
    rest = f"{part}. The rest is distance still to go"
    if faster:
        return f"Noise limits {BASELINE}, also by the short steps that it forces: {rest}."
    if share <= 1.0 - MOSTLY:
        advice = "Use more --epochs, a larger --l2 or, if you passed --raw, scaled columns."
        return f"Conditioning, not noise, limits {BASELINE}: {rest}, which no sampler shortens. {advice}"
    return f"Noise and distance limit {BASELINE}: {rest}."


def _curves(series: Series, along: str) -> list[Trajectory]:
    """Return times and suboptimalities of runs; none if one of them diverged, so that nothing is said."""
    if len(series.finished) < len(series.runs):
        return []
    return [(run.trace.get(along, run.trace["epoch"]), run.trace["suboptimality"]) for run in series.runs]
