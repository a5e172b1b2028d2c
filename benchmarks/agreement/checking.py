"""Compare our numbers with the paper's."""

import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from avare.experiments.aggregate import Series, groups_of
from avare.experiments.base import RUNS
from avare.experiments.data import display_name
from avare.experiments.document import Table
from avare.experiments.paper import L2, SETTINGS
from avare.experiments.sgd_runs import RULES
from avare.experiments.store import Result, number

LOGARITHMS = ("relative_error", "suboptimality")
"""The measures that are compared as log10."""
Paper = Mapping[str, Any]
"""What `published` returns."""
_NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """One number or order of the paper, and ours; relative errors and suboptimalities as log10."""

    dataset: str
    steps: str  # "" for a fact about the dataset, as is the sampler
    sampler: str
    measure: str
    theirs: float | str  # an order is in words
    ours: float | str | None  # None: there is none
    tolerance: str = ""  # in words; "": nothing is required
    verdict: str = "missing"  # or "agrees", "differs", "reported" (nothing is required)
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
    return tomllib.loads((Path(__file__).parent / "published.toml").read_text(encoding="utf-8"))


def check(results: Sequence[Result], datasets: Sequence[str] = tuple(SETTINGS), runs: int = RUNS) -> list[Row]:
    """Compare results with everything that the paper says about some datasets.

    Only runs with the paper's settings are judged, by the mean over the first `runs` of them. Of others the mean is
    given, with what is missing.

    Examples
    --------
    >>> rows = check([], ["mnist"])  # nothing is stored yet
    >>> {row.verdict for row in rows}
    {'missing'}
    """
    paper, known = published(), facts(results)
    cells = _cells(results, paper, runs)
    rows: list[Row] = []
    for dataset in datasets:
        for steps in RULES:
            rows += _of_figures(dataset, steps, cells, paper)
        for measure, theirs in paper["table"][dataset].items():
            reason = paper["notes"]["undefined" if measure == "smoothness_ratio" else "another_draw"]
            row = Row(dataset, "", "", measure, theirs, known.get(dataset, {}).get(measure))
            rows.append(_judged(row, "" if dataset in known else _NOT_RUN, reason, paper))
    return rows


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


def facts(results: Iterable[Result]) -> dict[str, Mapping[str, float]]:
    """Return the facts about each of the paper's datasets, with its loss and l2 term, from the latest result."""
    tables = sorted((each for each in results if each.kind == "table" and each.shown), key=_date)
    return {
        each.spec["dataset"]: each.stored["facts"]
        for each in tables
        if each.spec["dataset"] in SETTINGS
        and (each.spec.get("loss"), each.spec.get("l2")) == (SETTINGS[each.spec["dataset"]].loss, L2)
    }


def other_settings(spec: Mapping[str, Any], paper: Paper) -> list[str]:
    """Say how the settings of a run differ from the paper's; if they do, its numbers cannot be compared."""
    differences = []
    epochs, batch_size = spec.get("epochs"), spec.get("batch_size")
    if epochs != paper["epochs"]:
        differences.append(f"run for {epochs} epochs, the paper for {paper['epochs']}")
    if batch_size != paper["batch_size"].get(spec["dataset"]):
        differences.append(f"batches of {batch_size}, the paper's of {paper['batch_size'].get(spec['dataset'])}")
    return differences


_Cells = Mapping[tuple[str, str, str], tuple[Sequence[Result], str]]
"""By dataset, steps and sampler: the runs that count, and what they lack; "" if they can be judged."""


def _of_figures(dataset: str, steps: str, cells: _Cells, paper: Paper) -> list[Row]:
    figures = paper["last_epoch"].get(steps, {}).get(dataset)
    if figures is None:
        return []
    rows: list[Row] = []
    other_draw = paper["notes"]["another_draw"] if dataset in paper["another_draw"] else ""
    for measure, by_sampler in figures.items():
        for sampler, theirs in by_sampler.items():
            counted, lack = cells.get((dataset, steps, sampler), ((), _NOT_RUN))
            row = Row(dataset, steps, sampler, measure, theirs, _last(counted, measure))
            rows.append(_judged(row, lack, other_draw, paper))
    ordered = ["relative_error" if "relative_error" in figures else "regret"]
    ordered += ["suboptimality"] if dataset in paper["suboptimality"]["required"] else []
    return rows + [_order([row for row in rows if row.measure == measure]) for measure in ordered]


def _last(runs: Sequence[Result], measure: str) -> float | None:
    """Return the mean at the last epoch; None if there is none."""
    if not runs:
        return None
    mean = math.fsum(float(run.trace[measure][-1]) for run in runs) / len(runs)
    return None if math.isnan(mean) else log10(mean) if measure in LOGARITHMS else mean


def _judged(row: Row, lack: str, reason: str, paper: Paper) -> Row:
    """Return a row with its tolerance and verdict; what is missing, why nothing is required, or why it differs."""
    allowed = paper["tolerance"].get(row.measure, {})
    is_judged = row.dataset not in paper["another_draw"] or row.measure in paper["table"][row.dataset]
    limit = allowed.get(row.sampler, allowed.get(row.dataset, allowed.get("default"))) if is_judged else None
    theirs, ours = float(row.theirs), float(row.theirs if row.ours is None else row.ours)
    if limit is None:
        words, off = "", 0.0
    elif row.measure == "relative_error":
        words, off = f"±{limit}", abs(ours - theirs)
    elif row.measure == "regret":
        words, off = f"factor {limit}", max(ours / theirs, theirs / ours if ours > 0.0 else math.inf)
    else:
        words, off = f"{100.0 * limit:g} %", abs(ours / theirs - 1.0)
    if lack or row.ours is None:
        return replace(row, tolerance=words, note=lack or "no number")
    if limit is None:
        return replace(row, verdict="reported", note=reason)
    if off <= limit + 1e-9:  # one on the limit may be rounded
        return replace(row, tolerance=words, verdict="agrees")
    about = " ".join(filter(None, (row.dataset, row.steps, row.sampler or row.measure)))
    return replace(row, tolerance=words, verdict="differs", note=paper["doubts"].get(about, ""))


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
    parts = [lack if len(of) == len(rows) else f"{lack}: {', '.join(of)}" for lack, of in lacks.items()]
    holds = not lacks and all(ours[a] > ours[b] for a in names for b in names if theirs[a] > theirs[b])
    verdict = "missing" if lacks else "agrees" if holds else "differs"
    note = "; ".join(parts)
    return Row(rows[0].dataset, rows[0].steps, "all", rows[0].measure, wanted, found, "the order", verdict, note)


def _cells(results: Sequence[Result], paper: Paper, runs: int) -> _Cells:
    """Return the runs that count, by dataset, steps and sampler."""
    found: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for group in groups_of(each for each in results if each.kind == "reproduce"):
        for series in group.series:
            found[group.dataset, series.rule, series.spec["sampler"]].append(series)
    return {cell: _counted(versions, paper, runs) for cell, versions in found.items()}


def _counted(versions: Sequence[Series], paper: Paper, runs: int) -> tuple[Sequence[Result], str]:
    # Runs with the paper's settings come before others, then finished ones before diverged ones. If the data or the
    # settings have changed, the latest count.
    def rank(each: Series) -> tuple[bool, bool, str]:
        return not other_settings(each.spec, paper), bool(each.finished), max(map(_date, each.runs))

    chosen = max(versions, key=rank)
    finished, lacks = chosen.finished[:runs], other_settings(chosen.spec, paper)
    if len(finished) < runs and not lacks:
        lacks.append(f"{len(finished)} of {runs} runs")
    if len(finished) < min(runs, len(chosen.runs)):
        lacks.append(f"{len(chosen.runs) - len(finished)} diverged")
    return finished, "; ".join(lacks)


def _date(result: Result) -> str:
    return str(result.where.get("date", ""))


def check_table(rows: Sequence[Row]) -> Table:
    """Return theirs, ours, and whether they agree."""
    words = {"missing": "too few runs", "differs": "DIFFERS"}
    shown = [
        asdict(row)
        | {"dataset": display_name(row.dataset), "verdict": words.get(row.verdict, row.verdict)}
        | {"measure": row.measure.replace("_", " ")}
        for row in rows
    ]
    caption = "Against the paper: relative error and suboptimality as log₁₀ at the last epoch"
    columns = "dataset; steps; sampler; measure; theirs|paper|number; ours||number; tolerance; verdict; note"
    return Table.of(caption, columns, shown)


def table_one(known: Mapping[str, Mapping[str, float]], paper: Paper) -> Table:
    """Return the paper's Table 1, next to our facts about datasets."""
    rows = [
        {f"{measure}_paper": value for measure, value in theirs.items()}
        | {**known.get(name, {}), "dataset": display_name(name)}
        for name, theirs in paper["table"].items()
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
    return f"{counts['agrees']} agree, {counts['differs']} differ, {counts['missing']} have too few runs"


def log10(value: float) -> float:
    """Return the logarithm; minus infinity if rounding has made the value zero or less, NaN of NaN."""
    return math.log10(value) if value > 0.0 else -math.inf if value <= 0.0 else math.nan
