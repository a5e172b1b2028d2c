"""How the regret grows: runs that measure it at every step. ``python benchmarks reproduce theory``.

``python benchmarks/regret.py`` does the same with averages in place of the last norm: see docs/theory.md. The exponents
must not grow with the share of the past; the regret itself may.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import Avare, schedules
from avare.experiments import (
    Experiment,
    Figure,
    Panel,
    Request,
    Result,
    Section,
    Stage,
    Summary,
    Table,
    Task,
    obtain,
    register,
)
from avare.experiments.aggregate import apart, but_for_seed
from avare.experiments.base import RUNS, Stages
from avare.experiments.sgd_runs import common_spec, problem_of
from avare.experiments.store import Record, Spec, number, numbers
from avare.plotting import Chart, Curve, Style
from avare.plotting.charts import BLUE, VERMILION
from avare.solvers import sgd, sgld
from harness import curve_numbers, save, table, where

BOUNDS = {"sgd": Fraction(2, 3), "sgld": Fraction(5, 6)}
"""The theorems bound the regret of each method by this power of the steps."""
_STYLES = {"sgd": Style(BLUE, "solid", "o"), "sgld": Style(VERMILION, "solid", "s")}
STEPS = {"full": 100_000, "quick": 5_000}
"""Steps of a run."""
MEMORIES = (0.0, 0.3, 0.5)
"""Shares of the past in what `Avare` remembers."""
_AVERAGED = 3  # runs of a method with a memory
_POINTS = 400  # of a thinned trace, at most
_NOTE = "Excess of the gradient's second moment over the least possible, summed over all steps. A line that is no "
_NOTE += "steeper than its dashed one grows no faster than proved."


class Theory(Experiment):
    """How the regret of SGD and SGLD grows with the steps, next to what the theorems allow."""

    name = "theory"
    kinds = ("theory",)

    def stages(self, request: Request) -> Stages:
        """Yield runs of both methods on the synthetic dataset."""
        data, loss = obtain("synthetic", folder=request.folder)
        steps = STEPS["quick" if request.quick else "full"]
        runs = request.runs or (2 if request.quick else RUNS)
        common = {**common_spec("theory", data, loss, 1.0), "length": steps}
        specs = [{**common, "method": method, "seed": seed} for seed in range(runs) for method in BOUNDS]
        yield Stage("theory", [Task(spec, data) for spec in specs])

    def passes(self, spec: Spec) -> float:
        """Return how often a run looks at each example: once per step."""
        return float(spec["length"])

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do a run."""
        return measure_regret(spec, X, y)

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return the slopes of the regret as a table, a figure and a tab."""
        growths = growths_of(results)
        if not growths:
            return None
        return Summary(
            lead=f"{len(results)} runs that measure the regret",
            tables={"theory": theory_table(growths)},
            figures={"theory": theory_figure(growths)},
            panels=(theory_panel(growths),),
            numbers={"theory": [growth.as_dict() for growth in growths]},
        )


register(Theory())


def measure_regret(spec: Spec, X: Any, y: NDArray[Any]) -> Record:
    """Do a run: sum the regret of every step, with batches of 1 and step sizes that fall as 1/t."""
    problem = problem_of(spec, X, y)
    largest, mu, steps = float(problem.smoothness.max()), problem.strong_convexity, spec["length"]
    delta = {"sgd": 1.0, "sgld": 0.5}[spec["method"]]
    memory = spec.get("memory", 0.0)
    sampler = Avare(problem.n, 1, replacement=True, memory=memory, seed=spec["seed"], delta=delta)
    sizes = schedules.inverse_time(problem.n, largest, mu)
    started = time.perf_counter()
    if spec["method"] == "sgd":
        run = sgd(problem, sampler, sizes, steps=steps, evaluate=1)
        regret, seconds, status = run.trace.regret, run.seconds, run.status
    else:
        chain = sgld(
            problem, sampler, sizes, steps=steps, burn_in=steps, seed=spec["seed"], evaluate=1, chains=1
        )  # keeps no draw
        regret, seconds, status = chain.traces[0].regret, chain.seconds, chain.status
    total = time.perf_counter() - started
    # A row is taken before the step that follows it: the regret of the first t steps is the sum of rows 0 to t - 1.
    chosen = np.unique(np.geomspace(1, steps, _POINTS).round().astype(np.int64))
    return {
        "seconds": {"steps": seconds, "evaluation": total - seconds},
        "trace": {"step": chosen.tolist(), "regret": numbers(regret[chosen - 1])},
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


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """How the regret of a method grows with the steps, and the exponents of its runs."""

    method: str
    label: str
    curve: Curve
    exponents: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The mean of the exponents."""
        return float(np.mean(self.exponents))

    def as_dict(self) -> dict[str, Any]:
        """Return everything with all digits, for ``numbers.json``."""
        regret = {"step": numbers(self.curve.x), "regret": curve_numbers(self.curve)}
        return {"label": self.label, "runs": len(self.exponents), "slope": number(self.slope), **regret}


def growths_of(results: Sequence[Result]) -> list[Growth]:
    """Take runs of a method together."""
    found = []
    shown = [each for each in results if each.shown]
    for method, mark, _, members in apart(shown, but_for_seed, lambda spec: spec["method"]):
        label = method.upper() + (f" ({mark})" if mark else "")
        slopes = tuple(exponent(each.trace) for each in members)
        words = f"{label}, slope {np.mean(slopes):.2f}"
        runs = [each.trace["regret"] for each in members]
        curve = Curve.of_runs(words, members[0].trace["step"], runs, _STYLES[method])
        found.append(Growth(method, label, curve, slopes))
    return sorted(found, key=lambda growth: growth.method)


def theory_table(growths: Sequence[Growth]) -> Table:
    """Return the slopes of the regret in log-log."""
    rows = [
        {"method": each.label, "runs": len(each.exponents), "steps": float(each.curve.x[-1])}
        | {"slope": each.slope, "deviation": float(np.std(each.exponents)), "bound": str(BOUNDS[each.method])}
        for each in growths
    ]
    caption = "The fitted slope of the regret, and the exponent of the bound"
    return Table.of(caption, "method; runs||integer; steps||integer; slope||number; deviation||number; bound", rows)


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
    shown = [each for each in growths if np.all(each.curve.mean > 0.0)]  # which a log axis can show
    curves = [curve for each in shown for curve in (each.curve, guide(each))]
    return Chart("Cumulative dynamic regret", "Steps T", tuple(curves), log_x=True, log_y=True, note=_NOTE)


def guide(growth: Growth) -> Curve:
    """Return a line with the slope of the bound, over the last two decades, a little above the values at its start."""
    late = growth.curve.x >= growth.curve.x[-1] / 100.0
    x, start, power = growth.curve.x[late], growth.curve.mean[late][0], BOUNDS[growth.method]
    style = _STYLES[growth.method]._replace(dash="dash")
    return Curve(f"T^({power})", x, 1.5 * start * (x / x[0]) ** float(power), style=style, guide=True)


def with_averages(steps: int, runs: int) -> list[dict[str, Any]]:
    """Measure the regret of both methods with each memory."""
    data, loss = obtain("synthetic")
    common = {**common_spec("theory", data, loss, 1.0), "length": steps}
    rows = []
    for method in BOUNDS:
        for memory in MEMORIES:
            specs = [{**common, "method": method, "memory": memory, "seed": seed} for seed in range(runs)]
            traces = [measure_regret(spec, data.X, data.y)["trace"] for spec in specs]
            slopes, regrets = [exponent(trace) for trace in traces], [trace["regret"][-1] for trace in traces]
            rows.append({"method": method, "memory": memory, "slopes": slopes, "regrets": regrets})
    return rows


def report(result: Mapping[str, Any]) -> str:
    """Write the table."""
    rows = []
    for row in result["rows"]:
        last = next(each for each in result["rows"] if (each["method"], each["memory"]) == (row["method"], 0.0))
        ratio = np.mean(row["regrets"]) / np.mean(last["regrets"])
        slopes = f"{np.mean(row['slopes']):.3f} ± {np.std(row['slopes'], ddof=1) / len(row['slopes']) ** 0.5:.3f}"
        rows.append([row["method"].upper(), str(row["memory"]), slopes, str(BOUNDS[row["method"]]), f"{ratio:.2f}"])
    heads = ["", "memory", "exponent of the regret", "proved", "regret, over that of the last norm"]
    words = f"Means of {len(result['rows'][0]['slopes'])} runs of {result['steps']:,} steps with batches of 1."
    return f"# Regret with a memory that averages\n\n{words}\n\n{table(heads, rows)}"


def main() -> None:
    """Measure, store and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works; nothing is stored")
    quick = parser.parse_args().quick
    steps, runs = (STEPS["quick"], 2) if quick else (STEPS["full"], _AVERAGED)
    result = {"where": where(), "steps": steps, "rows": with_averages(steps, runs)}
    if not quick:
        save("regret", result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
