"""How the regret grows: runs that measure it at every step."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import Avare, schedules
from avare.experiments.base import Task
from avare.experiments.content import Figure, Panel, Section, Table
from avare.experiments.convergence import curve_numbers
from avare.experiments.data import Data
from avare.experiments.descent import common_spec, problem_of
from avare.experiments.records import Fields, Result, apart, but_for_seed, number, numbers
from avare.experiments.store import Record, Spec
from avare.plotting import BLUE, GREEN, VERMILION, Chart, Curve, Style
from avare.solvers import sgd, sgld
from avare.solvers.trace import Trace

BOUNDS = {"sgd": Fraction(2, 3), "sgld": Fraction(5, 6)}
"""The theorems bound the regret of each method by this power of the steps."""
FIELDS = Fields(texts=("method",), integers=("seed",), columns=("step", "regret"))
_STYLES = {"sgd": Style(BLUE, "solid", "o"), "sgld": Style(VERMILION, "solid", "s")}
_OTHER = Style(GREEN, "solid", "v")
_POINTS = 400  # of a thinned trace, at most
_GUIDE_DECADES = 2.0
_NOTE = "Excess of the gradient's second moment over the least possible, summed over all steps. A line that is no "
_NOTE += "steeper than its dashed one grows no faster than proved."


def theory_task(method: str, data: Data, loss: str, l2: float, *, seed: int, steps: int) -> Task:
    """Return a run whose regret is measured at every step; the method is "sgd" or "sgld"."""
    return Task({**common_spec("theory", data, loss, l2), "method": method, "seed": seed, "length": steps}, data)


def measure_regret(spec: Spec, X: Any, y: NDArray[Any]) -> Record:
    """Do a run: sum the regret of every step, with batches of 1 and step sizes that fall as 1/t."""
    problem = problem_of(spec, X, y)
    largest, mu, steps = float(problem.smoothness.max()), problem.strong_convexity, spec["length"]
    delta = {"sgd": 1.0, "sgld": 0.5}[spec["method"]]
    sampler = Avare(problem.n, 1, replacement=True, seed=spec["seed"], delta=delta)
    started = time.perf_counter()
    trace: Trace
    if spec["method"] == "sgd":
        run = sgd(problem, sampler, schedules.inverse_time(problem.n, largest, mu), steps=steps, evaluate=1)
        trace, seconds, status = run.trace, run.seconds, run.status
    else:
        sizes = schedules.polynomial(1.0 / mu, 2.0 * problem.n * largest / mu + 1.0, 1.0)  # the same
        keep_no_draw = {"steps": steps, "burn_in": steps}
        chain = sgld(problem, sampler, sizes, **keep_no_draw, seed=spec["seed"], evaluate=1)
        trace, seconds, status = chain.traces[0], chain.seconds, chain.status
    total = time.perf_counter() - started
    # A row is taken before the step that follows it: the regret of the first t steps is the sum of rows 0 to t - 1.
    chosen = np.unique(np.geomspace(1, steps, _POINTS).round().astype(np.int64))
    return {
        "seconds": {"steps": seconds, "evaluation": total - seconds},
        "trace": {"step": chosen.tolist(), "regret": numbers(trace.regret[chosen - 1])},
        "status": status,
    }


def exponent(trace: Mapping[str, Any]) -> float:
    """Fit how the regret grows over the last decade of steps: the slope of its logarithm.

    NaN if there are fewer than two points.

    >>> steps = [1, 10, 20, 50, 100]
    >>> round(exponent({"step": steps, "regret": [3.0 * t**0.5 for t in steps]}), 6)
    0.5
    """
    steps, regret = (np.array(trace[name], dtype=np.float64) for name in ("step", "regret"))
    last = (steps >= steps[-1] / 10.0) & (regret > 0.0)
    if np.count_nonzero(last) < 2:
        return math.nan
    return float(np.polyfit(np.log(steps[last]), np.log(regret[last]), 1)[0])


def exponents(records: Sequence[Record]) -> dict[str, tuple[float, float, float]]:
    """Return by method: mean and deviation of the runs' exponents, and the theorem's exponent."""
    found = {}
    for method, bound in BOUNDS.items():
        values = [exponent(record["trace"]) for record in records if record["spec"].get("method") == method]
        if values:
            found[method] = (float(np.mean(values)), float(np.std(values)), float(bound))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """How the regret of a method grows with the steps, and the mean of its runs' exponents."""

    method: str
    label: str
    runs: int
    curve: Curve
    slope: float

    def as_dict(self) -> dict[str, Any]:
        """Return everything with all digits, for ``numbers.json``."""
        return {
            "label": self.label,
            "runs": self.runs,
            "slope": number(self.slope),
            "step": numbers(self.curve.x),
            "regret": curve_numbers(self.curve),
        }


def growths_of(results: Sequence[Result]) -> list[Growth]:
    """Take runs of a method together."""
    shown = [each for each in results if each.shown]
    found = []
    for method, mark, _, members in apart(shown, but_for_seed("step"), lambda spec: spec["method"]):
        label = method.upper() + (f" ({mark})" if mark else "")
        slope = float(np.mean([exponent(each.trace) for each in members]))
        words = f"{label}, slope {slope:.2f}" if math.isfinite(slope) else label
        runs = [each.trace["regret"] for each in members]
        curve = Curve.of_runs(words, members[0].trace["step"], runs, _STYLES.get(method, _OTHER))
        found.append(Growth(method, label, len(members), curve, slope))
    return sorted(found, key=lambda growth: growth.method)


def theory_table(growths: Sequence[Growth]) -> Table:
    """Return the slopes of the regret in log-log."""
    rows = [
        {
            "method": each.label,
            "runs": each.runs,
            "steps": float(each.curve.x[-1]),
            "slope": each.slope,
            "bound": str(BOUNDS.get(each.method, "")),
        }
        for each in growths
    ]
    caption = "The fitted slope of the regret, and the exponent of the bound"
    return Table.of(caption, "method; runs||integer; steps||integer; slope||number; bound", rows)


def theory_figure(growths: Sequence[Growth]) -> Figure:
    """Return the regret against steps in log-log, with the growth that is proved."""
    return Figure("Regret, and the growth that is proved (dashed)", ((_chart(growths),),), size=(5.6, 3.4))


def theory_panel(growths: Sequence[Growth]) -> Panel:
    """Return the tab of the theory."""
    proved = ", ".join(f"T^({power}) for {method.upper()}" for method, power in BOUNDS.items())
    words = (
        f"Dashed: the growth that is proved, {proved}; only its slope has a meaning. Fitted slopes are those of the "
        "last decade of steps, mean of the runs."
    )
    return Panel("Theory", (Section("How the regret grows", (_chart(growths), words, theory_table(growths))),))


def _chart(growths: Sequence[Growth]) -> Chart:
    shown = [each for each in growths if np.any(each.curve.mean > 0)]  # which a log axis can show
    curves = [curve for each in shown for curve in (each.curve, *guides(each))]
    return Chart("Cumulative dynamic regret", "Steps T", tuple(curves), log_x=True, log_y=True, note=_NOTE)


def guides(growth: Growth) -> list[Curve]:
    """Return a line with the slope of the bound, over the last decades, a little above the values where it starts."""
    curve = growth.curve
    keep = (curve.x > 0) & (curve.mean > 0)
    if growth.method not in BOUNDS or not np.any(keep):
        return []
    steps, values = curve.x[keep], curve.mean[keep]
    late = steps >= steps[-1] * 10.0**-_GUIDE_DECADES
    x, start, power = steps[late], values[late][0], BOUNDS[growth.method]
    style = _STYLES[growth.method]._replace(dash="dash")
    return [Curve(f"T^({power})", x, 1.5 * start * (x / x[0]) ** float(power), style=style, guide=True)]
