"""Runs that differ by their seed alone, taken together: the one place where runs are grouped.

A `Group` has all runs on a dataset with the same settings, a `Series` all runs in it of one sampler with one step size
rule. Tables, charts, verdicts and the comparison with the paper are made from groups.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from avare.experiments.data import display_name, listing_order
from avare.experiments.document import Figure, Panel, Section, Table
from avare.experiments.sgd_runs import MEASURES, RULES
from avare.experiments.store import Result, canonical, number, together
from avare.plotting.charts import Chart, Curve, order, ranked

_EXCESS = "Excess of the gradient's second moment over the least possible"
_AXES = {
    "suboptimality": ("Suboptimality  f(x) − f*", True, "Objective above its least value. Lower is better."),
    "regret": ("Dynamic regret", False, f"{_EXCESS}, summed up. A flatter line is better."),
    "relative_error": ("Relative error", True, f"{_EXCESS}, as a share of it. Lower is better."),
}  # the title of each measure, whether its axis is logarithmic, and what it means
_TIMED = "suboptimality"  # the measure that is also shown over seconds
_SETTING = ("dataset", "data_digest", "loss", "epochs", "batch_size", "l2", "caution", "bias", "held_out")
"""Runs that differ in one of these are in different groups."""
_HINT = "Charts: mean of the runs, and one standard deviation; on log axes a band does not go below the lowest run."


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One sampler with one step size rule."""

    label: str  # the sampler, and how it differs from others of this name
    runs: tuple[Result, ...]  # by seed, also those that diverged

    @property
    def spec(self) -> Mapping[str, Any]:
        """What determines the first run; the others differ by their seed."""
        return self.runs[0].spec

    @property
    def rule(self) -> str:
        """The step size rule."""
        return str(self.spec["steps"])

    @property
    def finished(self) -> list[Result]:
        """The runs that curves and means are made of."""
        return [run for run in self.runs if run.shown]

    def curve(self, measure: str) -> Curve:
        """Return a measure over epochs: mean, deviation and lowest of the finished runs."""
        return Curve.of_runs(self.label, self.finished[0].trace["epoch"], [run.trace[measure] for run in self.finished])

    def seconds(self, part: str) -> float:
        """Return the seconds of a run, in the mean."""
        return float(np.mean([run.seconds.get(part, math.nan) for run in self.runs]))


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All runs on a dataset with the same settings: a tab of the page, a row of a figure."""

    title: str
    setting: Mapping[str, Any]
    series: tuple[Series, ...]  # in the order in which rules and samplers are listed everywhere

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return str(self.setting["dataset"])

    @property
    def rules(self) -> list[str]:
        """The step size rules of finished runs."""
        return list(dict.fromkeys(each.rule for each in self.series if each.finished))

    def of(self, rule: str) -> list[Series]:
        """Return the series of a rule with finished runs."""
        return [each for each in self.series if each.rule == rule and each.finished]

    def fits(self, result: Result) -> bool:
        """Return whether another result, such as an optimum, is about the same data and settings."""
        shared = [key for key in _SETTING if key in result.spec]
        return all(result.spec[key] == self.setting[key] for key in shared)


def groups_of(results: Iterable[Result]) -> list[Group]:
    """Take runs together by dataset and settings, then by sampler and rule.

    >>> groups_of([])
    []
    """
    found = apart(results, lambda each: {key: each.spec.get(key) for key in _SETTING}, lambda spec: spec["dataset"])
    groups = [
        Group(", ".join(filter(None, (display_name(dataset), mark))), setting, _series(members))
        for dataset, mark, setting, members in found
    ]
    return sorted(groups, key=lambda group: (listing_order(group.dataset), group.title))


def _series(members: Sequence[Result]) -> tuple[Series, ...]:
    found = [
        Series(f"{sampler} ({mark})" if mark else sampler, tuple(sorted(runs, key=lambda run: run.spec["seed"])))
        for (_, sampler), mark, _, runs in apart(members, but_for_seed, lambda spec: (spec["steps"], spec["sampler"]))
    ]
    rules, labels = ranked({each.rule for each in found}, RULES), order(each.label for each in found)
    return tuple(sorted(found, key=lambda each: (rules.index(each.rule), labels.index(each.label))))


def apart(
    results: Iterable[Result], key: Callable[[Result], dict[str, Any]], name: Callable[[dict[str, Any]], Any]
) -> list[tuple[Any, str, dict[str, Any], list[Result]]]:
    """Group results by a key; return the name of each group, how it differs from others of this name, key and members.

    >>> results = [Result({"sampler": "A", "c": c}, {}, {}, {}, "finished", True, {}) for c in (1, 2)]
    >>> [group[:2] for group in apart(results, but_for_seed, lambda spec: spec["sampler"])]
    [('A', 'c = 1'), ('A', 'c = 2')]
    """
    by_name: dict[Any, list[tuple[dict[str, Any], list[Result]]]] = {}
    for spec, members in together(results, key):
        by_name.setdefault(name(spec), []).append((spec, members))
    return [
        (each, mark, *group)
        for each, groups in by_name.items()
        for mark, group in zip(_differences([spec for spec, _ in groups]), groups, strict=True)
    ]


def but_for_seed(result: Result) -> dict[str, Any]:
    """Return all that determines a run but its seed; options of the sampler by their names."""
    spec = {**result.spec, **(result.spec.get("options") or {})}
    return {key: value for key, value in spec.items() if key not in ("seed", "options")}


def _differences(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in a few words how each spec differs from the others; "" for a single one."""
    keys = sorted({key for spec in specs for key in spec})
    varied = [key for key in keys if len({canonical(spec.get(key)) for spec in specs}) > 1]
    return [", ".join(f"{key} = {_short(spec.get(key))}" for key in varied) for spec in specs]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:12]


# --- what commands and pages show -----------------------------------------------------------


def figures_of(name: str, groups: Sequence[Group]) -> dict[str, Figure]:
    """Return a figure for each rule: one row per dataset, one column per measure."""
    found = {}
    for rule in dict.fromkeys(rule for group in groups for rule in group.rules):
        rows = tuple(_charts(group, rule) for group in groups if rule in group.rules)
        found[f"{name}-{rule}"] = Figure(f"Step sizes: {rule}; mean and one standard deviation", rows)
    return found


def panel_of(group: Group, table: Table, verdict: Sequence[str] = (), words: Sequence[str] = ()) -> Panel:
    """Return the tab of a group: verdict and settings, charts for each rule, and the table of the last epoch."""
    charts = {rule: (*_charts(group, rule), timed(group, rule)) for rule in group.rules}
    sections = [Section(f"{rule.capitalize()} step sizes", shown) for rule, shown in charts.items()]
    sections.append(Section("At the last epoch", (_HINT, table.without("dataset"))))
    return Panel(group.title, tuple(sections), lead=(*words, settings_of(group)), verdict=tuple(verdict))


def settings_of(group: Group) -> dict[str, Any]:
    """Return the settings of a group, its seeds, and the options of its samplers."""
    seeds = sorted({run.spec["seed"] for each in group.series for run in each.finished})
    known = {key.replace("_", " "): value for key, value in group.setting.items() if value is not None}
    options = {each.label: canonical(each.spec["options"]) for each in group.series if each.spec.get("options")}
    return {**known, "dataset": group.title, "seeds": ", ".join(map(str, seeds)), **options}


def _charts(group: Group, rule: str) -> tuple[Chart, ...]:
    curves = {measure: tuple(each.curve(measure) for each in group.of(rule)) for measure in _AXES}
    return tuple(
        Chart(title, "Epochs (data passes)", curves[measure], y_title=group.title, log_y=log, note=note)
        for measure, (title, log, note) in _AXES.items()
    )


def timed(group: Group, rule: str) -> Chart:
    """Return the chart over seconds of steps, of the runs that have them."""
    title, log, note = _AXES[_TIMED]
    curves = tuple(
        replace(each.curve(_TIMED), x=np.mean([run.trace["seconds"] for run in each.finished], axis=0))
        for each in group.of(rule)
        if all("seconds" in run.trace for run in each.finished)
    )
    words = f"{note} Seconds of steps, without evaluations."
    return Chart(f"{title}, over seconds", "Seconds", curves, y_title=group.title, log_y=log, note=words)


def last_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the measures at the last epoch by dataset, rule and sampler: means over the finished runs."""
    rows = []
    for group in groups:
        for series in group.series:
            row: dict[str, Any] = {"dataset": group.title, "steps": series.rule, "sampler": series.label}
            row |= {"loss": group.setting["loss"], "epochs": series.spec["epochs"], "runs": len(series.runs)}
            row["diverged"] = len(series.runs) - len(series.finished)
            for measure in MEASURES if series.finished else ():
                curve = series.curve(measure)
                row[measure] = number(float(curve.mean[-1]))
                row[f"{measure}_deviation"] = None if curve.deviation is None else number(float(curve.deviation[-1]))
            tested: list[Any] = [run.stored.get("test_error") for run in series.finished]
            row["test_error"] = float(np.mean(tested)) if tested and None not in tested else None
            rows.append({**row, "seconds": number(series.seconds("steps"))})
    return rows


def last_epoch(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return `last_rows` as a table."""
    columns = (
        "dataset; steps; sampler; runs||integer; diverged||integer; epochs||integer; relative_error||digits; "
        "relative_error_deviation||detail; suboptimality||digits; suboptimality_deviation||detail; "
        "regret||power; regret_deviation||detail; test_error||digits; seconds|seconds a run|seconds"
    )
    table = Table.of("At the last epoch, mean of the runs", columns, rows)
    if all(row["test_error"] is None for row in rows):
        table = table.without("test_error")
    return table if any(row["diverged"] for row in rows) else table.without("diverged")
