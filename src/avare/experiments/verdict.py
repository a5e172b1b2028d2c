"""Is one sampler sooner than another? An answer with an interval, from a few runs of each.

For each run we note when it reaches some levels of suboptimality: from the lowest that all runs have reached after half
of their time, to the lowest that all have reached at the end. The factor between two samplers is the ratio of these
times, as a geometric mean over levels and runs. Its interval is Welch's for the logarithms of the times, at 95 %.

Suppose that the runs of Uniform reach a level after 16 to 20 epochs, and those of another sampler after 7 to 9. The
factor is then about 2.2, and the interval says how sure that is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._optional import require
from avare.experiments.convergence import BASELINE
from avare.experiments.records import count, number

CONFIDENCE = 0.95
ALIKE = 1.25
"""Samplers whose factor is surely between 1/1.25 and 1.25 do not differ."""
PLATEAU = 1.05
"""Ratio of the suboptimalities at the same time, below which two samplers are on the same plateau."""
_LEVELS = 5
_SMALLEST = 1.1  # factor that is worth a word

Curve = tuple[ArrayLike, ArrayLike]
"""Times and suboptimalities of a run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much sooner a sampler is than the baseline."""

    kind: str  # "sooner", "later", "no difference" or "cannot tell"
    factor: float  # the baseline's time over the sampler's; NaN if it is not known
    low: float  # the interval of the factor
    high: float
    runs: int  # of the sampler with fewer; 0 if one of them diverged
    epochs: int = 2  # evaluations of the shortest run, after its start; times cannot be compared with fewer than 2

    @property
    def words(self) -> str:
        """The verdict in a few words.

        >>> Verdict("sooner", 2.4, 2.1, 2.8, 3).words, Verdict("cannot tell", 1.2, 0.7, 2.0, 3).words
        ('sooner by 2.1 to 2.8 times', 'cannot tell with 3 runs')
        >>> Verdict("cannot tell", 1.2, 0.7, 2.0, 3).advice
        'Use more --runs.'
        """
        if self.kind == "sooner":
            return f"sooner by {_digits(self.low)} to {_digits(self.high)} times"
        if self.kind == "later":
            return f"later by {_digits(1.0 / self.high)} to {_digits(1.0 / self.low)} times"
        if self.kind == "no difference":
            return self.kind
        if not self.runs:
            return f"{self.kind} (a run diverged)"
        return f"{self.kind} with {count(self.runs, 'run')}{' of 1 epoch' * self.is_short}"

    @property
    def is_short(self) -> bool:
        """Whether the runs have too few evaluations."""
        return self.epochs < 2

    @property
    def advice(self) -> str:
        """What to do to get a verdict; "" if there is one."""
        if self.kind != "cannot tell":
            return ""
        if not self.runs:
            return "Use --steps auto."
        options = {"--epochs": self.is_short, "--runs": self.runs == 1 or not self.is_short}
        return f"Use more {' and '.join(option for option, helps in options.items() if helps)}."

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the words; None for what is not known."""
        numbers = {name: number(getattr(self, name)) for name in ("factor", "low", "high")}
        return {"kind": self.kind, "words": self.words, "advice": self.advice, **numbers, "runs": self.runs}


def judge(baseline: Sequence[Curve], sampler: Sequence[Curve]) -> Verdict:
    """Compare the runs of a sampler with those of the baseline.

    Examples
    --------
    >>> epochs = np.arange(1.0, 21.0)
    >>> slow = [(epochs, scale / epochs) for scale in (0.9, 1.0, 1.1)]
    >>> fast = [(epochs, scale / epochs) for scale in (0.45, 0.5, 0.55)]
    >>> judge(slow, fast).words
    'sooner by 1.6 to 2.5 times'
    >>> judge(slow, slow).words
    'cannot tell with 3 runs'
    """
    runs = min(len(baseline), len(sampler))
    if runs == 0:
        return Verdict("cannot tell", math.nan, math.nan, math.nan, runs)
    times, own = [_logarithm(*curve) for curve in baseline], [_logarithm(*curve) for curve in sampler]
    epochs = min(len(along) for along, _ in (*times, *own))
    if epochs < 2:
        return Verdict("cannot tell", math.nan, math.nan, math.nan, runs, epochs)
    levels = np.linspace(*_range([*times, *own]), _LEVELS)
    theirs, ours = (np.array([_reached(curve, levels) for curve in each]) for each in (times, own))
    difference = float(theirs.mean() - ours.mean())
    margin = math.inf if runs == 1 else _margin(theirs, ours)
    low, factor, high = (_exp(value) for value in (difference - margin, difference, difference + margin))
    last = min(along[-1] for along, _ in (*times, *own))  # in seconds, some runs end sooner
    ends = [np.array([np.interp(last, *curve) for curve in each]) for each in (times, own)]
    lead = float(ends[0].mean() - ends[1].mean())
    level = runs > 1 and abs(lead) + _margin(*ends) < math.log(PLATEAU)  # on the same plateau
    sure = (low > 1.0 or high < 1.0) and abs(difference) >= math.log(_SMALLEST)
    kind = "cannot tell"
    if level:
        kind = "no difference"
    elif sure:
        kind = "sooner" if low > 1.0 else "later"
    elif low >= 1.0 / ALIKE and high <= ALIKE:
        kind = "no difference"
    return Verdict(kind, factor, low, high, runs)


def _logarithm(times: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms of times and of the least suboptimality so far, without time 0."""
    along, heights = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    heights = np.where(np.isfinite(heights), heights, np.inf)
    lowest = np.minimum.accumulate(heights)
    lowest = np.clip(lowest, max(1e-15 * abs(float(heights[0])), 1e-300), 1e300)  # rounding: not below zero
    keep = along > 0.0
    return np.log(along[keep]), np.log(lowest[keep])


def _range(curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> tuple[float, float]:
    """Return the logarithms of the lowest levels that all runs reach: in half of their time, and at the end."""
    halves = [float(np.interp(along[-1] - math.log(2.0), along, heights)) for along, heights in curves]
    last = max(float(heights[-1]) for _, heights in curves)
    return max(last, *halves), last


def _reached(curve: tuple[NDArray[np.float64], NDArray[np.float64]], levels: NDArray[np.float64]) -> float:
    """Return the mean over levels of the logarithm of the time at which a run reaches each."""
    along, heights = curve
    found = []
    for level in levels:
        place = int(np.argmax(heights <= level + 1e-12))
        if place == 0:
            found.append(along[0])
            continue
        part = (heights[place - 1] - level) / max(heights[place - 1] - heights[place], 1e-300)
        found.append(along[place - 1] + min(part, 1.0) * (along[place] - along[place - 1]))
    return float(np.mean(found))


def _margin(theirs: NDArray[np.float64], ours: NDArray[np.float64]) -> float:
    """Return half of Welch's interval for the difference of two means."""
    t = require("scipy.stats", "a verdict").t
    shares = [float(each.var(ddof=1)) / len(each) for each in (theirs, ours)]
    total = sum(shares)
    if total == 0.0:
        return 0.0
    freedom = total**2 / sum(share**2 / (len(each) - 1) for share, each in zip(shares, (theirs, ours), strict=True))
    return float(t.ppf(0.5 + CONFIDENCE / 2.0, freedom)) * math.sqrt(total)


def _exp(value: float) -> float:
    return math.inf if value > 700.0 else math.exp(value)


def _digits(value: float) -> str:
    return f"{value:.2g}" if value < 100.0 else f"{value:.0f}"


# --- of stored runs -------------------------------------------------------------------------

Verdicts = Mapping[tuple[str, str, str], Mapping[str, Verdict]]
"""By dataset, step sizes and sampler: the verdicts in "epochs" and in "seconds"."""


def verdicts_of(records: Sequence[Mapping[str, Any]]) -> Verdicts:
    """Compare each sampler with the baseline on the same dataset, with the same step sizes.

    Seconds are those of the steps, without evaluations.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        spec = record["spec"]
        groups.setdefault((spec["dataset"], spec["steps"], spec["sampler"]), []).append(record)
    found = {}
    for (dataset, steps, sampler), members in groups.items():
        baseline = groups.get((dataset, steps, BASELINE))
        if baseline is not None and sampler != BASELINE:
            curves = {along: (_curves(baseline, along), _curves(members, along)) for along in ("epoch", "seconds")}
            found[dataset, steps, sampler] = {
                "epochs" if along == "epoch" else along: judge(*each) for along, each in curves.items()
            }
    return found


def sentences(found: Verdicts) -> list[str]:
    """Write the verdicts, one line each.

    >>> same, sooner = Verdict("no difference", 1.0, 0.9, 1.1, 3), Verdict("sooner", 2.4, 2.1, 2.8, 3)
    >>> sentences({("mine", "auto", "Avare"): {"epochs": sooner, "seconds": same}})
    ["Verdict: Avare reaches Uniform's suboptimality sooner by 2.1 to 2.8 times in epochs; in seconds: no difference."]
    """
    lines, several = [], [len({key[place] for key in found}) > 1 for place in range(2)]
    for key, judged in found.items():
        about = [word for word, shown in zip((key[0], f"{key[1]} steps"), several, strict=True) if shown]
        name = f"{key[2]} ({', '.join(about)})" if about else key[2]
        epochs, seconds = judged["epochs"].words, judged["seconds"].words
        advice = "".join(f" {each}" for each in dict.fromkeys(one.advice for one in judged.values()) if each)
        if judged["epochs"].kind in ("sooner", "later"):
            lines.append(
                f"Verdict: {name} reaches {BASELINE}'s suboptimality {epochs} in epochs; in seconds: {seconds}.{advice}"
            )
        else:
            lines.append(f"Verdict: {name} and {BASELINE}: {epochs} in epochs; in seconds: {seconds}.{advice}")
    return lines


def any_sooner(found: Verdicts) -> bool:
    """Return whether some sampler is sooner than the baseline, in epochs."""
    return any(judged["epochs"].kind == "sooner" for judged in found.values())


def _curves(records: Sequence[Mapping[str, Any]], along: str) -> list[Curve]:
    """Return times and suboptimalities of runs; none if one of them diverged, so that nothing is said."""
    if any(record.get("status", "finished") != "finished" for record in records):
        return []
    traces = [record["trace"] for record in records]
    return [
        (np.array(each.get(along, each["epoch"]), float), np.array(each["suboptimality"], float)) for each in traces
    ]
