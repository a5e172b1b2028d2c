"""What stored runs of SGD show: runs that differ by their seed alone, taken together, as tables, charts and numbers."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.content import ANSWERS, Figure, Panel, Section, Table
from avare.experiments.data import display_name, listing_order
from avare.experiments.descent import MEASURES, RULES
from avare.experiments.records import (
    PARTS,
    Result,
    apart,
    but_for_seed,
    count,
    mapping_in,
    number,
    number_in,
    numbers,
    short,
    spent,
)
from avare.experiments.store import Record
from avare.experiments.sweep import duration
from avare.plotting import Chart, Curve, order, ranked

BASELINE = "Uniform"
"""The sampler that the others are compared with."""
MEASURE_NAMES = {"relative_error": "relative error", "suboptimality": "suboptimality", "regret": "regret"}
LOGARITHMS = ("relative_error", "suboptimality")
"""The measures that are compared as log10."""
_AXES = {
    "suboptimality": (
        "Suboptimality  f(x) − f*",
        True,
        "How far the objective is above its least value. Lower is better.",
    ),
    "regret": (
        "Dynamic regret",
        False,
        "Excess of the gradient's second moment over the least possible, summed up. A flatter line is better.",
    ),
    "relative_error": (
        "Relative error",
        True,
        "Excess of the gradient's second moment over the least possible, as a share of it. Lower is better.",
    ),
}  # the title of each measure, whether its axis is logarithmic, and what it means
_TIMED = "suboptimality"  # the measure that is also shown over seconds
_HINT = "Charts: mean of the runs, and one standard deviation; on log axes a band does not go below the lowest run."
_TITLES = {"bias": "intercept", "held_out": "rows held out"}  # of settings whose names do not say it
# Runs that differ in one of these are shown apart, each with its own title.
_SETTING = ("experiment", "dataset", "data_digest", "loss", "epochs", "batch_size", "l2", "caution", "bias", "held_out")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One sampler with one step size rule."""

    sampler: str
    label: str  # the sampler, and how it differs from others of this name
    rule: str
    spec: Mapping[str, Any]  # what the runs have in common
    seeds: tuple[int, ...]
    curves: Mapping[str, Curve]  # by measure, over epochs
    seconds: Mapping[str, float]  # mean of the runs, by part
    clock: NDArray[np.float64] | None = None  # seconds of steps until each evaluation, mean of the runs, if stored
    test: float | None = None  # the error on the rows held out, at the end, mean of the runs, if there are any

    @property
    def epochs(self) -> NDArray[np.float64]:
        """Where the runs were evaluated."""
        return self.curves[MEASURES[0]].x


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All runs on a dataset with the same settings: a tab of the page, a row of a figure."""

    dataset: str
    title: str
    setting: Mapping[str, Any]
    series: tuple[Series, ...]

    @property
    def rules(self) -> list[str]:
        """The step size rules of the runs."""
        return ranked({each.rule for each in self.series}, RULES)

    def of(self, rule: str) -> list[Series]:
        """Return the series of a rule, in the order in which samplers are listed everywhere."""
        labels = order(each.label for each in self.series)
        return sorted((each for each in self.series if each.rule == rule), key=lambda each: labels.index(each.label))


def groups_of(results: Iterable[Result]) -> list[Group]:
    """Take finished runs together by dataset and settings, then by sampler and rule."""
    found = apart((each for each in results if each.shown), setting_of, lambda setting: setting["dataset"])
    groups = [
        Group(dataset, f"{display_name(dataset)}, {mark}" if mark else display_name(dataset), setting, _series(members))
        for dataset, mark, setting, members in found
    ]
    return sorted(groups, key=lambda group: (listing_order(group.dataset), group.title))


def setting_of(result: Result) -> dict[str, Any]:
    """Return what the runs of a group have in common."""
    return {key: result.spec.get(key) for key in _SETTING}


def _series(members: Sequence[Result]) -> tuple[Series, ...]:
    found = apart(members, but_for_seed("epoch", _SETTING), lambda spec: (spec["steps"], spec["sampler"]))
    return tuple(
        _of_seeds(f"{spec['sampler']} ({mark})" if mark else spec["sampler"], spec, runs)
        for _, mark, spec, runs in found
    )


def _of_seeds(label: str, spec: dict[str, Any], runs: Sequence[Result]) -> Series:
    along = runs[0].trace["epoch"]
    return Series(
        sampler=spec["sampler"],
        label=label,
        rule=spec["steps"],
        spec={key: value for key, value in spec.items() if key != "evaluations"},
        seeds=tuple(sorted(run.spec["seed"] for run in runs)),
        curves={measure: Curve.of_runs(label, along, [run.trace[measure] for run in runs]) for measure in MEASURES},
        seconds={part: float(np.mean([run.seconds.get(part, math.nan) for run in runs])) for part in PARTS},
        clock=_clock(runs),
        test=_test(runs),
    )


def _test(runs: Sequence[Result]) -> float | None:
    columns = [mapping_in(run.stored, "trace").get("test") or [] for run in runs]
    return float(np.mean([number_in("test", each[-1]) for each in columns])) if all(columns) else None


def _clock(runs: Sequence[Result]) -> NDArray[np.float64] | None:
    """Return the mean of the seconds at each evaluation; None if a run does not have them, or they do not increase."""
    columns = [mapping_in(run.stored, "trace").get("seconds") or [] for run in runs]
    if any(len(each) != len(runs[0].trace["epoch"]) for each in columns):
        return None
    mean = np.mean([[number_in("seconds", value) for value in each] for each in columns], axis=0)
    return mean if np.all(np.diff(mean) > 0.0) else None


# --- what a report shows --------------------------------------------------------------------


def lead_of(groups: Sequence[Group]) -> str:
    """Count runs, samplers and datasets; "" if there are none."""
    series = [each for group in groups for each in group.series]
    runs, samplers = sum(len(each.seeds) for each in series), len({each.sampler for each in series})
    datasets = len({group.dataset for group in groups})
    return f"{count(runs, 'run')} of {count(samplers, 'sampler')} on {count(datasets, 'dataset')}" if groups else ""


def figures_of(name: str, groups: Sequence[Group]) -> dict[str, Figure]:
    """Return a figure for each rule: one row per dataset, one column per measure."""
    found = {}
    for rule in dict.fromkeys(rule for group in groups for rule in group.rules):
        rows = tuple(_charts(group, rule) for group in groups if rule in group.rules)
        address = "".join(sign if sign.isalnum() else "-" for sign in rule)
        found[f"{name}-{address}"] = Figure(f"Step sizes: {rule}; mean and one standard deviation", rows)
    return found


def panel_of(
    group: Group,
    *more: Section,
    table: Table,
    verdict: Sequence[str] = (),
    words: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Panel:
    """Return the tab of a group: verdict and settings, charts for each rule, the table of the last epoch, and more."""
    sections = [
        Section(f"{rule.capitalize()} step sizes", (first, *timed(group, rule), *others))
        for rule in group.rules
        for first, *others in [_charts(group, rule)]
    ]
    sections.append(Section("At the last epoch", (_HINT, table.without("dataset"))))
    lead: tuple[str | Mapping[str, Any], ...] = (*words, {**_top(group), **(settings or {})})
    return Panel(group.title, (*sections, *more), lead=lead, verdict=tuple(verdict))


def _top(group: Group) -> dict[str, Any]:
    """Return what a reader must know of the runs before anything else."""
    known = {"loss": "loss", "batch_size": "batch size", "epochs": "epochs", "l2": "l2 term"}
    pairs = {words: group.setting[key] for key, words in known.items() if group.setting.get(key) is not None}
    runs = sorted({len(each.seeds) for each in group.series})
    return {
        "data": group.title,
        **pairs,
        "runs of each sampler": " to ".join(map(str, dict.fromkeys(runs[:1] + runs[-1:]))),
    }


def _charts(group: Group, rule: str) -> tuple[Chart, ...]:
    found = []
    for measure, (title, log, note) in _AXES.items():
        curves = tuple(each.curves[measure] for each in group.of(rule))
        found.append(Chart(title, "Epochs (data passes)", curves, y_title=group.title, log_y=log, note=note))
    return tuple(found)


def timed(group: Group, rule: str) -> tuple[Chart, ...]:
    """Return the chart over seconds, if all runs have them."""
    title, log, note = _AXES[_TIMED]
    curves = [replace(each.curves[_TIMED], x=each.clock) for each in group.of(rule) if each.clock is not None]
    if len(curves) < len(group.of(rule)):
        return ()
    words = f"{note} Seconds of steps, without evaluations."
    return (Chart(f"{title}, over seconds", "Seconds", tuple(curves), y_title=group.title, log_y=log, note=words),)


def last_epoch(
    groups: Sequence[Group], published: Callable[[Group, Series], Mapping[str, float]] | None = None
) -> Table:
    """Return the measures at the last epoch; beside them published numbers, by measure, if there are any."""
    rows = []
    for group, series in _listed(groups):
        row: dict[str, Any] = {"dataset": group.title, "steps": series.rule, "sampler": series.label}
        row |= {"runs": len(series.seeds), "epoch": float(series.epochs[-1])}
        theirs = published(group, series) if published else {}
        for measure, curve in series.curves.items():
            mean = float(curve.mean[-1])
            row |= {measure: mean, f"{measure}_log10": log10(mean), f"{measure}_paper": theirs.get(measure)}
            row[f"{measure}_deviation"] = None if curve.deviation is None else float(curve.deviation[-1])
            row[f"{measure}_log10_paper"] = row[f"{measure}_paper"]
        row |= {"seconds": series.seconds["steps"], "test": series.test}
        rows.append(row)
    table = Table.of(
        "At the last epoch, mean of the runs",
        "dataset; steps; sampler; runs||integer; epoch||integer; relative_error_log10|relative error, log₁₀|number; "
        "relative_error||detail; relative_error_deviation||detail; relative_error_log10_paper|paper|number; "
        "suboptimality_log10|suboptimality, log₁₀|number; suboptimality||detail; suboptimality_deviation||detail; "
        "suboptimality_log10_paper|paper|number; regret||power; regret_deviation||detail; regret_paper|paper|number; "
        "seconds|seconds a run|seconds; test|test error|digits",
        rows,
    )
    if all(row["test"] is None for row in rows):
        table = table.without("test")
    paper = [column.name for column in table.columns if column.name.endswith("_paper")]
    return table if published else table.without(*paper)


def details_of(groups: Sequence[Group]) -> tuple[Section, ...]:
    """Return how each group was run: settings, seeds, and seconds per run."""
    found = []
    for group in groups:
        setting = {
            _TITLES.get(key, key): ANSWERS[value] if isinstance(value, bool) else value
            for key, value in group.setting.items()
            if value is not None
        }
        seeds = sorted({seed for series in group.series for seed in series.seeds})
        took = (sum(len(each.seeds) * each.seconds[part] for each in group.series) for part in PARTS)
        pairs = {**setting, "seeds": ", ".join(map(str, seeds)), "seconds in all": spent(*took)}
        found.append(Section(group.title, (pairs, times(group))))
    return tuple(found)


def times(group: Group) -> Table:
    """Return the seconds per run, and the options of each sampler."""
    rows = []
    for _, series in _listed([group]):
        row = {"steps": series.rule, "sampler": series.label, "runs": len(series.seeds)}
        row |= {f"seconds_{part}": value for part, value in series.seconds.items()}
        options = (series.spec.get("options") or {}).items()
        words = ", ".join(f"{key} = {short(value, 40)}" for key, value in options)
        rows.append({**row, "replacement": series.spec.get("replacement"), "options": words})
    return Table.of(
        f"{group.title}: seconds per run, and the options of each sampler",
        "steps; sampler; runs||integer; seconds_steps|steps, s|seconds; seconds_evaluation|evaluation, s|seconds; "
        "replacement||answer; options",
        rows,
    )


def numbers_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return everything with all digits, for ``numbers.json``."""
    return [
        {
            "title": group.title,
            "setting": group.setting,
            "series": [_numbers(series) for _, series in _listed([group])],
        }
        for group in groups
    ]


def _numbers(series: Series) -> dict[str, Any]:
    return {
        "label": series.label,
        "spec": series.spec,
        "seeds": series.seeds,
        "seconds": {part: number(value) for part, value in series.seconds.items()},
        "epoch": numbers(series.epochs),
        **{measure: curve_numbers(curve) for measure, curve in series.curves.items()},
    }


def curve_numbers(curve: Curve) -> dict[str, Any]:
    """Return mean, deviation and lowest run of a curve."""
    columns = {"mean": curve.mean, "deviation": curve.deviation, "lowest": curve.lowest}
    return {name: numbers(values) for name, values in columns.items() if values is not None}


def log10(value: float) -> float:
    """Return the logarithm; minus infinity if rounding has made the value zero or less, NaN of NaN."""
    return math.log10(value) if value > 0.0 else -math.inf if value <= 0.0 else math.nan


def _listed(groups: Iterable[Group]) -> list[tuple[Group, Series]]:
    return [(group, series) for group in groups for rule in group.rules for series in group.of(rule)]


# --- what the command prints ----------------------------------------------------------------


def final_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the measures at the last epoch by dataset, rule and sampler: means over the runs.

    ``"epochs_to_uniform"`` is the first epoch at which the mean suboptimality is not above Uniform's at the last
    epoch; None if there is no such epoch, or no Uniform. ``"test"`` is the error on the rows held out, if any.

    >>> trace = {"suboptimality": [2.0, 1.0], "relative_error": [0.5, 0.2], "regret": [1.0, 1.5]}
    >>> spec = {"dataset": "mine", "steps": "auto", "sampler": "Uniform", "epochs": 1}
    >>> (row,) = final_rows([{"spec": spec, "trace": trace, "status": "finished", "seconds": {"steps": 0.1}}])
    >>> row["suboptimality"], row["epochs_to_uniform"]
    (1.0, 1)
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        spec = record["spec"]
        if "sampler" in spec:
            groups.setdefault((spec["dataset"], spec["steps"], spec["sampler"]), []).append(record)
    rows = []
    for (dataset, steps, sampler), members in groups.items():
        finished, baseline = _finished(members), _finished(groups.get((dataset, steps, BASELINE), ()))
        row = {"dataset": dataset, "steps": steps, "sampler": sampler, "epochs": members[0]["spec"]["epochs"]}
        row |= {"runs": len(members), "diverged": len(members) - len(finished)}
        for measure in ("suboptimality", "relative_error", "regret"):
            row[measure] = float(_means(finished, measure)[-1]) if finished else None
        tested = bool(finished) and "test" in finished[0]["trace"]
        row["test"] = float(_means(finished, "test")[-1]) if tested else None
        row["epochs_to_uniform"] = None
        if baseline and finished:
            reached = np.flatnonzero(_means(finished, "suboptimality") <= _means(baseline, "suboptimality")[-1])
            row["epochs_to_uniform"] = int(reached[0]) if len(reached) else None
        row["seconds"] = sum(sum(record["seconds"].values()) for record in members) / len(members)
        rows.append(row)
    return rows


def final_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return `final_rows` as the command prints them."""
    columns = (
        "dataset; steps; sampler; runs||integer; epochs||integer; suboptimality||digits; relative_error||digits; "
        "regret||power; took|a run"
    )
    times = [_brief(row["seconds"]) for row in rows]
    shown = [{**row, "took": took} for row, took in zip(rows, times, strict=True)]
    columns += "; test|test error|digits" if any(row["test"] is not None for row in rows) else ""
    columns += "; diverged||integer" if any(row["diverged"] for row in rows) else ""
    return Table.of("", columns, shown)


def _brief(seconds: float) -> str:
    """Write the time of a run.

    >>> _brief(0.0123), _brief(1.23), _brief(123.0)
    ('12 ms', '1.2 s', '2 min')
    """
    if seconds < 0.1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10.0 else duration(seconds)


def _finished(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [record for record in records if record["status"] == "finished"]


def _means(records: Sequence[Mapping[str, Any]], measure: str) -> Any:
    return np.array([record["trace"][measure] for record in records], dtype=np.float64).mean(axis=0)
