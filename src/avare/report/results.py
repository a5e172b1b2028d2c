"""What a store says: runs that differ by their seed alone, taken together."""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.nets.summary import Nets, gather_nets
from avare.experiments.paper.checking import Row, check, facts
from avare.experiments.paper.plan import RULES, RUNS, SETTINGS, exponent
from avare.experiments.runs import doubt_of_optimum
from avare.experiments.store import Skipped, canonical
from avare.report import styles
from avare.report.records import Record, read
from avare.report.styles import Style, rank, ranked

MEASURES = ("suboptimality", "regret", "relative_error")
TITLES = {
    "mnist": "MNIST",
    "ijcnn1": "IJCNN1",
    "cifar10": "CIFAR10",
    "synthetic": "Synthetic",
    "digits": "Digits",
}
EXPERIMENTS = ("reproduce", "compare")
# Runs that differ in one of these are shown apart, each with its own title.
_SETTING = ("experiment", "dataset", "data_digest", "loss", "epochs", "batch_size", "l2", "caution")
_MOST_NAMED = 5  # files in an error message


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The mean of some runs, their standard deviation, and the lowest of them."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    lowest: NDArray[np.float64]

    def band(self, *, log: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bottom and top of one standard deviation around the mean.

        On a log axis the bottom goes no lower than the lowest run, so that it does not fall
        to zero where the runs lie far apart; what is not positive is nan.
        """
        bottom, top = self.mean - self.deviation, self.mean + self.deviation
        if not log:
            return bottom, top
        bottom = np.maximum(bottom, self.lowest)
        drawn = (bottom > 0.0) & (self.mean > 0.0)
        return np.where(drawn, bottom, np.nan), np.where(drawn, top, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One sampler under one step rule.

    Parameters
    ----------
    sampler, label
        Its name; and the same with what tells it from another of this name, if there is one.
    rule
        The step rule.
    spec
        What its runs have in common.
    seeds
        One a run.
    epochs
        Where it was evaluated.
    curves
        By measure.
    seconds
        The mean of a run, by part.
    """

    sampler: str
    label: str
    rule: str
    spec: Mapping[str, Any]
    seeds: tuple[int, ...]
    epochs: NDArray[np.float64]
    curves: Mapping[str, Curve]
    seconds: Mapping[str, float]

    def last(self, measure: str) -> tuple[float, float]:
        """Mean and standard deviation of a measure at the last epoch."""
        curve = self.curves[measure]
        return float(curve.mean[-1]), float(curve.deviation[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All runs on a dataset with the same settings: a tab of the page, a row of a figure."""

    experiment: str
    dataset: str
    title: str
    setting: Mapping[str, Any]
    series: tuple[Series, ...]
    checks: tuple[Row, ...]
    """What the paper's figures show of its step rules, beside it."""

    @property
    def rules(self) -> list[str]:
        """The step rules there are, the paper's first."""
        return ranked({each.rule for each in self.series}, RULES)

    @property
    def labels(self) -> list[str]:
        """The samplers there are, in the order in which they are listed everywhere."""
        return styles.order(each.label for each in self.series)

    def of(self, rule: str) -> list[Series]:
        """The series of a step rule, in the same order."""
        labels = self.labels
        return sorted((each for each in self.series if each.rule == rule), key=lambda each: labels.index(each.label))


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """How the regret of a method grows with the steps, and the mean of its runs' exponents."""

    method: str
    label: str
    runs: int
    steps: NDArray[np.float64]
    curve: Curve
    slope: float


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """All that a store says."""

    groups: tuple[Group, ...]
    growths: tuple[Growth, ...]
    facts: tuple[tuple[str, Mapping[str, float]], ...]
    """Of each dataset, by name."""
    checks: tuple[Row, ...]
    """All that the paper says of the datasets there are, beside it."""
    places: tuple[tuple[Mapping[str, Any], int], ...]
    """Where it was run, and how many records come from there."""
    dates: tuple[str, ...]
    """The first and the last day."""
    skipped: tuple[Skipped, ...]
    styles: Mapping[str, Style]
    nets: Nets | None = None
    doubts: tuple[str, ...] = ()
    """What is to be said of optima that were not found to the tolerance asked for."""

    def of(self, experiment: str) -> list[Group]:
        """The groups of an experiment."""
        return [group for group in self.groups if group.experiment == experiment]


def gather(store: str | os.PathLike[str], runs: int = RUNS) -> Results:
    """What the records of a store say.

    A store without any record of a finished run is a ``ValueError``.

    Parameters
    ----------
    store
        Its folder, of which nothing is changed.
    runs
        As for `avare.experiments.check`.
    """
    everything, skipped = read(store)
    records = [record for record in everything if record.shown]
    skipped += [
        Skipped(f"{record.stored['key']}.json", f"status = {record.status!r}: the run has not finished")
        for record in everything
        if not record.shown
    ]
    if not records:
        named = ", ".join(f"{each.name} ({each.reason})" for each in skipped[:_MOST_NAMED])
        more = f" and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
        damaged = f"; passed over: {named}{more}" if skipped else ""
        raise ValueError(f"store = {str(store)!r}: holds no record of a finished run{damaged}")
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_kind[record.spec["experiment"]].append(record)
    groups = _groups([record for experiment in EXPERIMENTS for record in by_kind[experiment]], everything, runs)
    known = facts(record.stored for record in by_kind["table"])
    present = {*known, *(record.spec["dataset"] for record in everything if record.spec["experiment"] == "reproduce")}
    checked = [name for name in TITLES if name in present and name in SETTINGS]
    places: dict[str, tuple[Mapping[str, Any], int]] = {}
    for record in records:
        place = {key: value for key, value in record.where.items() if key != "date"}
        places[canonical(place)] = (place, places.get(canonical(place), (place, 0))[1] + 1)
    dates = sorted({str(record.where["date"])[:10] for record in records if record.where.get("date")})
    return Results(
        groups=tuple(groups),
        growths=tuple(_growths(by_kind["theory"])),
        facts=tuple((name, known[name]) for name in ranked(known, TITLES)),
        checks=tuple(check([record.stored for record in everything], checked, runs)),
        places=tuple(sorted(places.values(), key=lambda place: -place[1])),
        dates=tuple(dict.fromkeys(dates[:1] + dates[-1:])),
        skipped=tuple(skipped),
        styles=styles.assign(label for group in groups for label in group.labels),
        nets=gather_nets(records),
        doubts=tuple(dict.fromkeys(text for record in by_kind["table"] if (text := _doubt(record)))),
    )


def title(dataset: str) -> str:
    """How a dataset is written.

    >>> title("mnist"), title("mine")
    ('MNIST', 'mine')
    """
    return TITLES.get(dataset, dataset)


def short(value: Any, most: int = 24) -> str:
    """A value of a spec in so many signs at most.

    >>> short(0.123456), short("a long text", 6)
    ('0.1235', 'a lon…')
    """
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _groups(records: Sequence[Record], everything: Sequence[Record], runs: int) -> list[Group]:
    settings = _together(records, _setting)
    by_name: dict[tuple[str, str], list[tuple[Mapping[str, Any], list[Record]]]] = defaultdict(list)
    for setting, members in settings:
        by_name[setting["experiment"], setting["dataset"]].append((setting, members))
    groups = []
    for (experiment, dataset), parts in by_name.items():
        marks = _differences([setting for setting, _ in parts])
        for (setting, members), mark in zip(parts, marks, strict=True):
            again = experiment == "compare" and ("reproduce", dataset) in by_name
            name = ", ".join([title(dataset), *(["compared"] if again else []), *([mark] if mark else [])])
            series = tuple(_series(members))
            checks = _checks(setting, {each.rule for each in series}, everything, runs)
            groups.append(Group(experiment, dataset, name, setting, series, tuple(checks)))
    return sorted(
        groups, key=lambda group: (EXPERIMENTS.index(group.experiment), rank(group.dataset, TITLES), group.title)
    )


def _doubt(record: Record) -> str:
    return doubt_of_optimum(record.spec, record.stored["facts"], title(record.spec["dataset"]))


def _setting(record: Record) -> dict[str, Any]:
    return {key: record.spec.get(key) for key in _SETTING}


def _checks(setting: Mapping[str, Any], rules: Iterable[str], everything: Iterable[Record], runs: int) -> list[Row]:
    """The check of one group's runs alone."""
    if setting["experiment"] != "reproduce" or setting["dataset"] not in SETTINGS:
        return []
    same = [record.stored for record in everything if _setting(record) == setting]
    return [row for row in check(same, [setting["dataset"]], runs) if row.steps in rules]


def _series(records: Sequence[Record]) -> list[Series]:
    """The runs of a group, those that differ by their seed alone taken together."""
    left_out = {"seed", *_SETTING}
    found = _together(
        records,
        lambda record: {
            **{key: value for key, value in record.spec.items() if key not in left_out},
            "evaluations": record.trace["epoch"].tolist(),
        },
    )
    by_name: dict[tuple[str, str], list[tuple[Mapping[str, Any], list[Record]]]] = defaultdict(list)
    for spec, members in found:
        by_name[spec["steps"], spec["sampler"]].append((spec, members))
    result = []
    for (rule, sampler), parts in by_name.items():
        marks = _differences([_flat(spec) for spec, _ in parts])
        for (spec, members), mark in zip(parts, marks, strict=True):
            result.append(
                Series(
                    sampler=sampler,
                    label=f"{sampler} ({mark})" if mark else sampler,
                    rule=rule,
                    spec=spec,
                    seeds=tuple(sorted(record.spec["seed"] for record in members)),
                    epochs=members[0].trace["epoch"],
                    curves={measure: _curve(members, measure) for measure in MEASURES},
                    seconds={
                        part: float(np.mean([record.seconds.get(part, math.nan) for record in members]))
                        for part in ("steps", "evaluation")
                    },
                )
            )
    return result


def _growths(records: Sequence[Record]) -> list[Growth]:
    found = _together(
        records,
        lambda record: {
            **{key: value for key, value in record.spec.items() if key != "seed"},
            "evaluations": record.trace["step"].tolist(),
        },
    )
    by_method: dict[str, list[tuple[Mapping[str, Any], list[Record]]]] = defaultdict(list)
    for spec, members in found:
        by_method[spec["method"]].append((spec, members))
    result = []
    for method in sorted(by_method):
        parts = by_method[method]
        for (_, members), mark in zip(parts, _differences([_flat(spec) for spec, _ in parts]), strict=True):
            steps, curve = members[0].trace["step"], _curve(members, "regret")
            label = method.upper() + (f" ({mark})" if mark else "")
            slope = float(np.mean([exponent(record.stored) for record in members]))
            result.append(Growth(method, label, len(members), steps, curve, slope))
    return result


def _together(records: Iterable[Record], key: Any) -> list[tuple[Mapping[str, Any], list[Record]]]:
    """Records by what `key` makes of them, in the order in which they come."""
    found: dict[str, tuple[Mapping[str, Any], list[Record]]] = {}
    for record in records:
        value = key(record)
        found.setdefault(canonical(value), (value, []))[1].append(record)
    return list(found.values())


def _curve(records: Sequence[Record], measure: str) -> Curve:
    runs = np.array([record.trace[measure] for record in records])
    with np.errstate(over="ignore", invalid="ignore"):  # a run that went astray
        deviation = runs.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(runs.shape[1])
        return Curve(runs.mean(axis=0), deviation, runs.min(axis=0))


def _differences(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells each from the others, in words; nothing where there are no others."""
    keys = sorted({key for spec in specs for key in spec})
    varied = [key for key in keys if len({canonical(spec.get(key)) for spec in specs}) > 1]
    return [", ".join(_words(key, spec.get(key)) for key in varied) for spec in specs]


def _words(key: str, value: Any) -> str:
    if key == "epochs":
        return f"{value} epochs"
    if key == "batch_size":
        return f"batches of {value}"
    if key == "replacement":
        return "with replacement" if value else "without replacement"
    if key == "evaluations":
        return f"{len(value)} evaluations"
    if key == "data_digest":
        return f"data {str(value)[:6]}"
    return f"{key} = {short(value)}"


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with the sampler's options beside the rest."""
    options = spec.get("options")
    rest = {key: value for key, value in spec.items() if key != "options"}
    return {**rest, **(options if isinstance(options, dict) else {})}
