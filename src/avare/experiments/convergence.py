"""What stored runs of SGD show: runs that differ by their seed alone, taken together, as tables, charts and numbers."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.content import Column, Figure, Panel, Section, Table
from avare.experiments.data import display_name, listing_order
from avare.experiments.descent import MEASURES, RULES
from avare.experiments.records import Result, differences, number, numbers, short, spent, together
from avare.experiments.store import Record
from avare.experiments.sweep import duration
from avare.plotting import Chart, Curve, order, ranked

BASELINE = "Uniform"
"""The sampler that the others are compared with."""
MEASURE_NAMES = {"relative_error": "relative error", "suboptimality": "suboptimality", "regret": "regret"}
LOGARITHMS = ("relative_error", "suboptimality")
"""The measures that are compared as log10."""
_AXES = {
    "suboptimality": ("Suboptimality  f(x) − f*", True),
    "regret": ("Dynamic regret", False),
    "relative_error": ("Relative error", True),
}  # the title of each measure, and whether its axis is logarithmic
_HINT = "Lines: mean of the runs. Bands: one standard deviation; on log axes a band does not go below the lowest run."
# Runs that differ in one of these are shown apart, each with its own title.
_SETTING = ("experiment", "dataset", "data_digest", "loss", "epochs", "batch_size", "l2", "caution")
_HARDLY = 0.9  # of all epochs: a sampler that needs more to reach the baseline's end is hardly faster


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One sampler with one step size rule.

    Parameters
    ----------
    sampler, label
        Its name; and its name with the settings in which it differs from others of this name.
    rule
        The step size rule.
    spec
        What its runs have in common.
    seeds
        One per run.
    curves
        By measure, over epochs.
    seconds
        The mean over the runs, by part.
    """

    sampler: str
    label: str
    rule: str
    spec: Mapping[str, Any]
    seeds: tuple[int, ...]
    curves: Mapping[str, Curve]
    seconds: Mapping[str, float]

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
    by_name: dict[str, list[tuple[Mapping[str, Any], list[Result]]]] = {}
    for setting, members in together((each for each in results if each.shown), setting_of):
        by_name.setdefault(setting["dataset"], []).append((setting, members))
    groups = []
    for dataset, parts in by_name.items():
        for (setting, members), mark in zip(parts, differences([setting for setting, _ in parts]), strict=True):
            title = ", ".join([display_name(dataset), *([mark] if mark else [])])
            groups.append(Group(dataset, title, setting, tuple(_series(members))))
    return sorted(groups, key=lambda group: (listing_order(group.dataset), group.title))


def setting_of(result: Result) -> dict[str, Any]:
    """Return what the runs of a group have in common."""
    return {key: result.spec.get(key) for key in _SETTING}


def _series(members: Sequence[Result]) -> list[Series]:
    by_name: dict[tuple[str, str], list[tuple[Mapping[str, Any], list[Result]]]] = {}
    for spec, runs in seeds_together(members, "epoch", _SETTING):
        by_name.setdefault((spec["steps"], spec["sampler"]), []).append((spec, runs))
    found = []
    for (rule, sampler), parts in by_name.items():
        for (spec, runs), mark in zip(parts, differences([spec for spec, _ in parts]), strict=True):
            label = f"{sampler} ({mark})" if mark else sampler
            found.append(
                Series(
                    sampler=sampler,
                    label=label,
                    rule=rule,
                    spec={key: value for key, value in spec.items() if key != "evaluations"},
                    seeds=tuple(sorted(run.spec["seed"] for run in runs)),
                    curves={
                        measure: Curve.of_runs(label, runs[0].trace["epoch"], [run.trace[measure] for run in runs])
                        for measure in MEASURES
                    },
                    seconds={
                        part: float(np.mean([run.seconds.get(part, math.nan) for run in runs]))
                        for part in ("steps", "evaluation")
                    },
                )
            )
    return found


def seeds_together(
    results: Iterable[Result], along: str, without: Iterable[str] = ()
) -> list[tuple[dict[str, Any], list[Result]]]:
    """Take together results that differ by their seed alone and were evaluated at the same places."""
    left_out = {"seed", *without}
    return together(
        results,
        lambda result: {
            **{key: value for key, value in result.spec.items() if key not in left_out},
            "evaluations": result.trace[along].tolist(),
        },
    )


# --- what a report shows --------------------------------------------------------------------


def lead_of(groups: Sequence[Group]) -> str:
    """Count runs, samplers and datasets; "" if there are none."""
    series = [each for group in groups for each in group.series]
    counts = {
        "run": sum(len(each.seeds) for each in series),
        "sampler": len({each.sampler for each in series}),
        "dataset": len({group.dataset for group in groups}),
    }
    words = [f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()]
    return f"{words[0]} of {words[1]} on {words[2]}" if groups else ""


def figures_of(name: str, groups: Sequence[Group]) -> dict[str, Figure]:
    """Return a figure for each rule: one row per dataset, one column per measure."""
    found = {}
    for rule in dict.fromkeys(rule for group in groups for rule in group.rules):
        rows = tuple(_charts(group, rule) for group in groups if rule in group.rules)
        address = "".join(sign if sign.isalnum() else "-" for sign in rule)
        found[f"{name}-{address}"] = Figure(f"Step sizes: {rule}; mean and one standard deviation", rows)
    return found


def panel_of(group: Group, *more: Section, table: Table) -> Panel:
    """Return the tab of a group: charts for each rule, the table of the last epoch, and more sections."""
    sections = [Section(f"{rule.capitalize()} step sizes", (*_charts(group, rule), _HINT)) for rule in group.rules]
    return Panel(group.title, (*sections, Section("At the last epoch", (table.without("dataset"),)), *more))


def _charts(group: Group, rule: str) -> tuple[Chart, ...]:
    return tuple(
        Chart(
            title,
            "Epochs (data passes)",
            tuple(each.curves[measure] for each in group.of(rule)),
            y_title=group.title,
            log_y=log,
        )
        for measure, (title, log) in _AXES.items()
    )


def last_epoch(
    groups: Sequence[Group], published: Callable[[Group, Series], Mapping[str, float]] | None = None
) -> Table:
    """Return the measures at the last epoch; beside them published numbers, by measure, if there are any."""
    columns = [
        Column("dataset", "dataset"),
        Column("steps", "steps"),
        Column("sampler", "sampler"),
        Column("runs", "runs", "integer"),
        Column("epoch", "epoch", "integer"),
    ]
    for measure, name in MEASURE_NAMES.items():
        if measure in LOGARITHMS:
            shown = Column(f"{measure}_log10", f"{name}, log₁₀", "number")
            columns += [shown, Column(measure, "", "detail")]
        else:
            shown = Column(measure, name, "power")
            columns.append(shown)
        columns.append(Column(f"{measure}_deviation", "", "detail"))
        if published:
            columns.append(Column(f"{shown.name}_paper", "paper", "number"))
    rows = []
    for group, series in _listed(groups):
        row: list[Any] = [group.title, series.rule, series.label, len(series.seeds), float(series.epochs[-1])]
        for measure in MEASURE_NAMES:
            curve = series.curves[measure]
            mean = float(curve.mean[-1])
            row += [log10(mean), mean] if measure in LOGARITHMS else [mean]
            row.append(None if curve.deviation is None else float(curve.deviation[-1]))
            if published:
                row.append(published(group, series).get(measure))
        rows.append(tuple(row))
    return Table("At the last epoch, mean of the runs", tuple(columns), tuple(rows))


def details_of(groups: Sequence[Group]) -> tuple[Section, ...]:
    """Return how each group was run: settings, seeds, and seconds per run."""
    found = []
    for group in groups:
        setting = {key: value for key, value in group.setting.items() if value is not None}
        seeds = sorted({seed for series in group.series for seed in series.seeds})
        took = (sum(len(each.seeds) * each.seconds[part] for each in group.series) for part in ("steps", "evaluation"))
        pairs = {**setting, "seeds": ", ".join(map(str, seeds)), "seconds in all": spent(*took)}
        found.append(Section(group.title, (pairs, times(group))))
    return tuple(found)


def times(group: Group) -> Table:
    """Return the seconds per run, and the options of each sampler."""
    rows = []
    for _, series in _listed([group]):
        options = series.spec.get("options") or {}
        words = ", ".join(f"{key} = {short(value, 40)}" for key, value in options.items())
        seconds = (series.seconds["steps"], series.seconds["evaluation"])
        rows.append((series.rule, series.label, len(series.seeds), *seconds, series.spec.get("replacement"), words))
    return Table(
        f"{group.title}: seconds per run, and the options of each sampler",
        (
            Column("steps", "steps"),
            Column("sampler", "sampler"),
            Column("runs", "runs", "integer"),
            Column("seconds_steps", "steps, s", "seconds"),
            Column("seconds_evaluation", "evaluation, s", "seconds"),
            Column("replacement", "replacement", "answer"),
            Column("options", "options"),
        ),
        tuple(rows),
    )


def numbers_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return everything with all digits, for ``numbers.json``."""
    return [
        {
            "title": group.title,
            "setting": group.setting,
            "series": [
                {
                    "label": series.label,
                    "spec": series.spec,
                    "seeds": series.seeds,
                    "seconds": {part: number(value) for part, value in series.seconds.items()},
                    "epoch": numbers(series.epochs),
                    **{measure: curve_numbers(series.curves[measure]) for measure in MEASURES},
                }
                for _, series in _listed([group])
            ],
        }
        for group in groups
    ]


def curve_numbers(curve: Curve) -> dict[str, Any]:
    """Return mean, deviation and lowest run of a curve."""
    columns = {"mean": curve.mean, "deviation": curve.deviation, "lowest": curve.lowest}
    return {name: numbers(values) for name, values in columns.items() if values is not None}


def log10(value: float) -> float:
    """Return the logarithm; minus infinity if rounding has made the value zero or less.

    >>> log10(100.0), log10(-1e-16), log10(math.nan)
    (2.0, -inf, nan)
    """
    return math.log10(value) if value > 0.0 else -math.inf if value <= 0.0 else math.nan


def _listed(groups: Iterable[Group]) -> list[tuple[Group, Series]]:
    return [(group, series) for group in groups for rule in group.rules for series in group.of(rule)]


# --- what the command prints ----------------------------------------------------------------


def final_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the measures at the last epoch by dataset, rule and sampler: means over the runs.

    ``"epochs_to_uniform"`` is the first epoch at which the mean suboptimality is not above Uniform's at the last
    epoch; None if there is no such epoch, or no Uniform.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        spec = record["spec"]
        if "sampler" in spec:
            groups.setdefault((spec["dataset"], spec["steps"], spec["sampler"]), []).append(record)
    rows = []
    for (dataset, steps, sampler), members in groups.items():
        finished = _finished(members)
        row = {
            "dataset": dataset,
            "steps": steps,
            "sampler": sampler,
            "epochs": members[0]["spec"]["epochs"],
            "runs": len(members),
            "diverged": len(members) - len(finished),
        }
        for measure in ("suboptimality", "relative_error", "regret"):
            row[measure] = float(_means(finished, measure)[-1]) if finished else None
        baseline = _finished(groups.get((dataset, steps, BASELINE), ()))
        row["epochs_to_uniform"] = None
        if baseline and finished:
            reached = np.flatnonzero(_means(finished, "suboptimality") <= _means(baseline, "suboptimality")[-1])
            row["epochs_to_uniform"] = int(reached[0]) if len(reached) else None
        row["seconds"] = sum(sum(record["seconds"].values()) for record in members) / len(members)
        rows.append(row)
    return rows


def final_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return `final_rows` as the command prints them."""
    headings = ("dataset", "steps", "sampler", "runs", "epochs", "suboptimality", "relative error", "regret", "a run")
    return Table(
        "",
        tuple(Column(heading, heading) for heading in headings),
        tuple(
            (
                row["dataset"],
                row["steps"],
                row["sampler"],
                f"{row['runs']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else ""),
                f"{row['epochs']}",
                *(
                    "-" if row[measure] is None else f"{row[measure]:.3g}"
                    for measure in ("suboptimality", "relative_error", "regret")
                ),
                duration(row["seconds"]) if row["seconds"] >= 10.0 else f"{row['seconds']:.1f} s",
            )
            for row in rows
        ),
    )


def sooner(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Say when samplers reach the baseline's final suboptimality."""
    found = []
    for row in rows:
        reached = row["epochs_to_uniform"]
        if reached is not None:
            found.append(
                f"{row['sampler']} on {row['dataset']}, {row['steps']} steps: reaches {BASELINE}'s final suboptimality "
                f"after {reached} of {row['epochs']} epochs."
            )
            if reached > _HARDLY * row["epochs"]:
                found.append(
                    "  Hardly sooner: a sampler reduces noise, and with small steps the distance to the optimum may "
                    "matter more. Try more --epochs."
                )
    return found


def _finished(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [record for record in records if record["status"] == "finished"]


def _means(records: Sequence[Mapping[str, Any]], measure: str) -> Any:
    return np.array([record["trace"][measure] for record in records], dtype=np.float64).mean(axis=0)
