"""Our numbers beside the paper's, and whether they agree."""

import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import pairwise
from typing import Any

from avare.experiments.paper.plan import L2, RULES, RUNS, SETTINGS
from avare.experiments.runs import number
from avare.experiments.store import canonical

Stored = Mapping[str, Any]
"""A record as a store has it."""

MEASURE_NAMES = {
    "relative_error": "relative error",
    "suboptimality": "suboptimality",
    "regret": "regret",
    "gain_at_optimum": "gain at the optimum",
    "smoothness_ratio": "smoothness ratio",
}
LOGARITHMS = ("relative_error", "suboptimality")
"""Those that are compared as log10."""


@dataclass(frozen=True, slots=True)
class Row:
    """One statement of the paper, and ours.

    Parameters
    ----------
    dataset, steps, sampler, measure
        Of what; steps and sampler are empty for a fact about the dataset.
    theirs, ours
        Numbers (relative errors and suboptimalities as log10), or an order in words; ours is None where there is
        nothing.
    tolerance
        What may differ, in words; empty where nothing is asked.
    verdict
        "agrees", "differs", "reported" where nothing is asked, or "missing" where runs are: too few of them, or
        of other settings than the paper's, which ours is then of.
    note
        What is missing, why nothing is asked, or why it might differ.
    """

    dataset: str
    steps: str
    sampler: str
    measure: str
    theirs: float | str
    ours: float | str | None
    tolerance: str
    verdict: str
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The same for a machine: None for what is not finite."""
        return {**asdict(self), "ours": number(self.ours) if isinstance(self.ours, float) else self.ours}


def published() -> dict[str, Any]:
    """What the paper prints and shows, what may differ, and where it was taken from.

    Under "table" its Table 1 by dataset; under "last_epoch" what its figures show at the last epoch, by step rule,
    dataset, measure and sampler (relative error and suboptimality as log10); under "tolerance" what may differ.

    >>> published()["table"]["mnist"]["gain_at_optimum"]
    5.08
    """
    return tomllib.loads(
        resources.files("avare.experiments.paper").joinpath("published.toml").read_text(encoding="utf-8")
    )


def check(records: Iterable[Stored], datasets: Sequence[str] = tuple(SETTINGS), runs: int = RUNS) -> list[Row]:
    """Everything that the paper says of some datasets, beside what was stored.

    Only runs of the paper's settings are judged, and each mean is over the first `runs` of them; of others the
    mean is given, with what they lack.

    Parameters
    ----------
    records
        Of a store.
    datasets
        Of which.
    runs
        How many there must be of each.
    """
    paper, kept = published(), list(records)
    cells, known = _cells(kept, paper, runs), facts(kept)
    rows: list[Row] = []
    for dataset in datasets:
        for steps in RULES:
            figures = paper["last_epoch"].get(steps, {}).get(dataset)
            if figures is not None:
                rows += _of_figures(dataset, steps, figures, cells, paper)
        rows += _of_table(dataset, known.get(dataset), paper)
    return [_doubted(row, paper["doubts"]) if row.verdict == "differs" else row for row in rows]


def exit_code(rows: Iterable[Row]) -> int:
    """0 if all agrees, 1 if something differs, else 2 if something is missing."""
    verdicts = {row.verdict for row in rows}
    return 1 if "differs" in verdicts else 2 if "missing" in verdicts else 0


def tally(rows: Iterable[Row]) -> dict[str, int]:
    """How many agree, differ and are missing.

    >>> tally(check([], ["synthetic"]))
    {'agrees': 0, 'differs': 0, 'missing': 10}
    """
    verdicts = [row.verdict for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in ("agrees", "differs", "missing")}


def facts(records: Iterable[Stored]) -> dict[str, Mapping[str, float]]:
    """What is known of each dataset, of the latest record; of the paper's datasets, with its loss and l2 term."""
    tables = [record for record in records if record["spec"]["experiment"] == "table"]
    return {
        each["spec"]["dataset"]: each["facts"]
        for each in sorted(tables, key=_date)
        if each["spec"]["dataset"] not in SETTINGS
        or (each["spec"].get("loss"), each["spec"].get("l2")) == (SETTINGS[each["spec"]["dataset"]].loss, L2)
    }


def other_settings(spec: Mapping[str, Any], paper: Mapping[str, Any]) -> list[str]:
    """How a run differs from the paper's, so that its numbers cannot be compared."""
    differences = []
    epochs, batch_size = spec.get("epochs"), spec.get("batch_size")
    if epochs != paper["epochs"]:
        differences.append(f"run for {epochs} epochs, the paper for {paper['epochs']}")
    if batch_size != paper["batch_size"].get(spec["dataset"]):
        differences.append(f"batches of {batch_size}, the paper's of {paper['batch_size'].get(spec['dataset'])}")
    return differences


def log10(value: float) -> float:
    """The logarithm; of what rounding has made zero or less, minus infinity.

    >>> log10(100.0), log10(-1e-16), log10(math.nan)
    (2.0, -inf, nan)
    """
    return math.log10(value) if value > 0.0 else -math.inf if value <= 0.0 else math.nan


@dataclass(frozen=True, slots=True)
class _Cell:
    """The runs of a sampler on a dataset, and what they lack; empty where they can be judged."""

    records: Sequence[Stored] = ()
    lack: str = "not run"

    def value(self, measure: str) -> float | None:
        """The mean at the last epoch; None where there is none."""
        values = [record["trace"][measure][-1] for record in self.records]
        if not values or None in values:
            return None
        mean = math.fsum(values) / len(values)
        return log10(mean) if measure in LOGARITHMS else mean


_Cells = Mapping[tuple[str, str, str], _Cell]


def _of_figures(
    dataset: str, steps: str, figures: Mapping[str, Mapping[str, float]], cells: _Cells, paper: Mapping[str, Any]
) -> list[Row]:
    rows: list[Row] = []
    other_draw = paper["notes"]["another_draw"] if dataset in paper["another_draw"] else ""
    for measure, by_sampler in figures.items():
        for sampler, theirs in by_sampler.items():
            cell = cells.get((dataset, steps, sampler), _Cell())
            limit = None if other_draw else _limit(paper, measure, dataset, sampler)
            judged = _judge(measure, theirs, cell.value(measure), limit, cell.lack, other_draw)
            rows.append(Row(dataset, steps, sampler, measure, theirs, *judged))
    ordered = ["relative_error" if "relative_error" in figures else "regret"]
    if dataset in paper["suboptimality"]["required"]:
        ordered.append("suboptimality")
    return rows + [_order([row for row in rows if row.measure == measure]) for measure in ordered]


def _of_table(dataset: str, known: Mapping[str, float] | None, paper: Mapping[str, Any]) -> list[Row]:
    rows = []
    for measure, theirs in paper["table"][dataset].items():
        value, lack = (None, "not run") if known is None else (known.get(measure), "")
        limit = _limit(paper, measure, dataset, "")
        reason = "undefined" if measure == "smoothness_ratio" else "another_draw"
        judged = _judge(measure, theirs, value, limit, lack, paper["notes"][reason])
        rows.append(Row(dataset, "", "", measure, theirs, *judged))
    return rows


def _doubted(row: Row, doubts: Mapping[str, str]) -> Row:
    """A row that differs, with why it might, where that is known."""
    about = " ".join(part for part in (row.dataset, row.steps, row.sampler or row.measure) if part)
    return replace(row, note=doubts.get(about, row.note))


def _limit(paper: Mapping[str, Any], measure: str, dataset: str, sampler: str) -> float | None:
    allowed = paper["tolerance"].get(measure, {})
    limit: float | None = allowed.get(sampler, allowed.get(dataset, allowed.get("default")))
    return limit


def _judge(
    measure: str, theirs: float, ours: float | None, limit: float | None, lack: str, reason: str
) -> tuple[float | None, str, str, str]:
    """Ours, what may differ, the verdict, and the note: what is lacking, or the reason why nothing is asked."""
    slack = 1e-9  # a number that lies on the limit may be rounded to either side
    if limit is None:
        words, agrees = "", True
    elif measure == "relative_error":
        words, agrees = f"±{limit:g}", ours is not None and abs(ours - theirs) <= limit + slack
    elif measure == "regret":
        words = f"factor {limit:g}"
        agrees = ours is not None and theirs / limit <= ours * (1.0 + slack) and ours <= theirs * limit * (1.0 + slack)
    else:
        words, agrees = f"{100.0 * limit:g} %", ours is not None and abs(ours / theirs - 1.0) <= limit + slack
    if lack or ours is None:
        return ours, words, "missing", lack or "no number"
    if limit is None:
        return ours, words, "reported", reason
    return ours, words, "agrees" if agrees else "differs", ""


def _order(rows: Sequence[Row]) -> Row:
    """Whether the samplers come in the paper's order; of those that it shows as equal, either may come first."""
    theirs = {row.sampler: float(row.theirs) for row in rows}
    ours = {row.sampler: float(row.ours) for row in rows if row.ours is not None}
    names = sorted(theirs, key=lambda name: -theirs[name])
    wanted = names[0] + "".join(f"{' = ' if theirs[a] == theirs[b] else ' > '}{b}" for a, b in pairwise(names))
    found = " > ".join(sorted(ours, key=lambda name: (-ours[name], names.index(name)))) or None
    lacks: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.verdict == "missing":
            lacks[row.note].append(row.sampler)
    if lacks:
        parts = [lack if len(of) == len(rows) else f"{lack}: {', '.join(of)}" for lack, of in lacks.items()]
        verdict, note = "missing", "; ".join(parts)
    else:
        holds = all(ours[a] > ours[b] for a in names for b in names if theirs[a] > theirs[b])
        verdict, note = "agrees" if holds else "differs", ""
    return Row(rows[0].dataset, rows[0].steps, "all", rows[0].measure, wanted, found, "the order", verdict, note)


def _cells(records: Sequence[Stored], paper: Mapping[str, Any], runs: int) -> _Cells:
    """The runs that count, by dataset, steps and sampler."""
    found: dict[tuple[str, str, str], dict[str, list[Stored]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        spec = record["spec"]
        if spec["experiment"] == "reproduce":
            version = canonical({name: value for name, value in spec.items() if name != "seed"})
            found[spec["dataset"], spec["steps"], spec["sampler"]][version].append(record)
    return {cell: _cell(list(versions.values()), paper, runs) for cell, versions in found.items()}


def _cell(versions: Sequence[Sequence[Stored]], paper: Mapping[str, Any], runs: int) -> _Cell:
    # Runs of the paper's settings before others, then those that have finished before those that went astray; and
    # where the data or the settings have changed since some runs, those of the latest count.
    members = max(
        versions,
        key=lambda each: (
            not other_settings(each[0]["spec"], paper),
            any(map(_finished, each)),
            max(map(_date, each)),
        ),
    )
    finished = sorted(filter(_finished, members), key=lambda record: int(record["spec"]["seed"]))[:runs]
    lacks = other_settings(members[0]["spec"], paper)
    if len(finished) < runs and not lacks:
        lacks.append(f"{len(finished)} of {runs} runs")
    if len(finished) < min(runs, len(members)):
        lacks.append(f"{len(members) - len(finished)} diverged")
    return _Cell(finished, "; ".join(lacks))


def _finished(record: Stored) -> bool:
    return bool(record.get("status", "finished") == "finished")


def _date(record: Stored) -> str:
    where = record.get("where")
    return str(where.get("date", "")) if isinstance(where, dict) else ""
