"""Compare our numbers with the paper's."""

import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import pairwise
from typing import Any

from avare.experiments import convergence
from avare.experiments.base import RUNS
from avare.experiments.content import Table
from avare.experiments.convergence import LOGARITHMS, log10
from avare.experiments.data import display_name
from avare.experiments.descent import RULES
from avare.experiments.paper.plan import L2, SETTINGS
from avare.experiments.records import differences, number
from avare.experiments.store import canonical

Stored = Mapping[str, Any]
"""A record as a store has it."""

MEASURE_NAMES = {
    **convergence.MEASURE_NAMES,
    "gain_at_optimum": "gain at the optimum",
    "smoothness_ratio": "smoothness ratio",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One number or order of the paper, and ours; relative errors and suboptimalities as log10."""

    dataset: str
    steps: str  # "" for a fact about the dataset, as is the sampler
    sampler: str
    measure: str
    theirs: float | str  # an order is in words
    ours: float | str | None  # None: there is none
    tolerance: str  # in words; "": nothing is required
    verdict: str  # "agrees", "differs", "reported" (nothing is required), or "missing" (runs of these settings)
    note: str = ""  # what is missing, why nothing is required, or why it might differ

    def as_dict(self) -> dict[str, Any]:
        """Return all fields; None for what is not finite."""
        return {**asdict(self), "ours": number(self.ours) if isinstance(self.ours, float) else self.ours}


def published() -> dict[str, Any]:
    """Return what the paper prints and shows, the tolerances, and the source.

    Under "table" its Table 1 by dataset; under "last_epoch" what its figures show at the last epoch, by step size rule,
    dataset, measure and sampler (relative error and suboptimality as log10); under "tolerance" how much may differ.

    >>> published()["table"]["mnist"]["gain_at_optimum"]
    5.08
    """
    return tomllib.loads(
        resources.files("avare.experiments.paper").joinpath("published.toml").read_text(encoding="utf-8")
    )


def check(records: Iterable[Stored], datasets: Sequence[str] = tuple(SETTINGS), runs: int = RUNS) -> list[Row]:
    """Compare stored records with everything that the paper says about some datasets.

    Only runs with the paper's settings are judged, by the mean over the first `runs` of them. Of others the mean is
    given, with what is missing.

    Parameters
    ----------
    records
        The records of a store.
    datasets
        Names of the paper's datasets.
    runs
        How many runs of each setting are needed.

    Examples
    --------
    >>> rows = check([], ["mnist"])  # nothing is stored yet
    >>> {row.verdict for row in rows}
    {'missing'}
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
    """Return 1 if something differs, otherwise 2 if something is missing, otherwise 0."""
    verdicts = {row.verdict for row in rows}
    return 1 if "differs" in verdicts else 2 if "missing" in verdicts else 0


def tally(rows: Iterable[Row]) -> dict[str, int]:
    """Count the rows that agree, differ and are missing.

    >>> tally(check([], ["synthetic"]))
    {'agrees': 0, 'differs': 0, 'missing': 10}
    """
    verdicts = [row.verdict for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in ("agrees", "differs", "missing")}


def facts(records: Iterable[Stored]) -> dict[str, Mapping[str, float]]:
    """Return the facts about each dataset from its latest record; the paper's datasets need its loss and l2 term.

    Of other data, those of the same name are kept apart by what differs: their contents, the loss, the l2 term.
    """
    tables = sorted((record for record in records if record["spec"]["experiment"] == "table"), key=_date)
    found, others = {}, defaultdict(list)
    for each in tables:
        name = each["spec"]["dataset"]
        if name not in SETTINGS:
            others[name].append(each)
        elif (each["spec"].get("loss"), each["spec"].get("l2")) == (SETTINGS[name].loss, L2):
            found[name] = each["facts"]
    for name, members in others.items():
        latest = {canonical(_setting(each["spec"])): each for each in members}
        marks = differences([_setting(each["spec"]) for each in latest.values()])
        for mark, each in zip(marks, latest.values(), strict=True):
            found[f"{name}, {mark}" if mark else name] = each["facts"]
    return found


def _setting(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: spec.get(key) for key in ("data_digest", "loss", "l2")}


def other_settings(spec: Mapping[str, Any], paper: Mapping[str, Any]) -> list[str]:
    """Say how the settings of a run differ from the paper's; if they do, its numbers cannot be compared."""
    differences = []
    epochs, batch_size = spec.get("epochs"), spec.get("batch_size")
    if epochs != paper["epochs"]:
        differences.append(f"run for {epochs} epochs, the paper for {paper['epochs']}")
    if batch_size != paper["batch_size"].get(spec["dataset"]):
        differences.append(f"batches of {batch_size}, the paper's of {paper['batch_size'].get(spec['dataset'])}")
    return differences


@dataclass(frozen=True, slots=True)
class _Cell:
    """The runs of a sampler on a dataset, and what is missing; "" if they can be judged."""

    records: Sequence[Stored] = ()
    lack: str = "not run"

    def value(self, measure: str) -> float | None:
        """Return the mean at the last epoch; None if there is none."""
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
    """Return a row that differs with the reason, if one is known."""
    about = " ".join(part for part in (row.dataset, row.steps, row.sampler or row.measure) if part)
    return replace(row, note=doubts.get(about, row.note))


def _limit(paper: Mapping[str, Any], measure: str, dataset: str, sampler: str) -> float | None:
    allowed = paper["tolerance"].get(measure, {})
    limit: float | None = allowed.get(sampler, allowed.get(dataset, allowed.get("default")))
    return limit


def _judge(
    measure: str, theirs: float, ours: float | None, limit: float | None, lack: str, reason: str
) -> tuple[float | None, str, str, str]:
    """Return ours, the tolerance, the verdict and the note: what is missing, or why nothing is required."""
    slack = 1e-9  # a number on the limit may be rounded to either side
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
    """Compare the order of the samplers; of two that the paper shows as equal, either may come first."""
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
    """Return the runs that count, by dataset, steps and sampler."""
    found: dict[tuple[str, str, str], dict[str, list[Stored]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        spec = record["spec"]
        if spec["experiment"] == "reproduce":
            version = canonical({name: value for name, value in spec.items() if name != "seed"})
            found[spec["dataset"], spec["steps"], spec["sampler"]][version].append(record)
    return {cell: _cell(list(versions.values()), paper, runs) for cell, versions in found.items()}


def _cell(versions: Sequence[Sequence[Stored]], paper: Mapping[str, Any], runs: int) -> _Cell:
    # Runs with the paper's settings come before others, then finished ones before diverged ones. If the data or the
    # settings have changed, the latest count.
    def rank(each: Sequence[Stored]) -> tuple[bool, bool, str]:
        return not other_settings(each[0]["spec"], paper), any(map(_finished, each)), max(map(_date, each))

    members = max(versions, key=rank)
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


def check_table(rows: Sequence[Row]) -> Table:
    """Return theirs, ours, and whether they agree."""
    words = {"missing": "too few runs"}
    named = (
        replace(
            row,
            dataset=display_name(row.dataset),
            measure=MEASURE_NAMES[row.measure],
            verdict=words.get(row.verdict, row.verdict),
        )
        for row in rows
    )
    return Table.of(
        "Against the paper: relative error and suboptimality as log₁₀ at the last epoch",
        "dataset; steps; sampler; measure; theirs|paper|number; ours||number; tolerance; verdict; note",
        map(asdict, named),
    )


def table_one(known: Mapping[str, Mapping[str, float]], paper: Mapping[str, Any]) -> Table:
    """Return the paper's Table 1, with our facts about datasets beside it."""
    rows = [
        {
            **known.get(name, {}),
            "dataset": display_name(name),
            **{f"{measure}_paper": value for measure, value in paper["table"].get(name, {}).items()},
        }
        for name in dict.fromkeys([*known, *paper["table"]])
    ]
    return Table.of(
        "Table 1: the smoothness ratio N·max L / ΣL, and the gain N·Σn² / (Σn)² at the optimum",
        "dataset; n|N|integer; dim|parameters|integer; smoothness_ratio_paper|smoothness ratio, paper|number; "
        "smoothness_ratio|ours|ratio; gain_at_optimum_paper|gain at x*, paper|number; gain_at_optimum|ours|ratio",
        rows,
    )


def tally_words(rows: Sequence[Row]) -> str:
    """Say how many rows agree."""
    counts = tally(rows)
    judged = counts["agrees"] + counts["differs"]
    if not judged:
        return "Nothing here can be judged; the notes say why."
    missing = f" {counts['missing']} cannot be judged yet; the notes say why." if counts["missing"] else ""
    return f"{counts['agrees']} of the {judged} statements that are judged agree.{missing}"
