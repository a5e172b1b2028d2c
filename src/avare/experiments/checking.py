"""Our numbers beside the paper's, and whether they agree."""

import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import pairwise
from typing import Any

from avare.experiments.reproduction import RULES, SETTINGS
from avare.experiments.store import Record

Runs = Mapping[tuple[str, str, str], Sequence[Record]]


@dataclass(frozen=True, slots=True)
class Row:
    """One statement of the paper, and ours.

    Parameters
    ----------
    dataset, steps, sampler, measure
        Of what; steps and sampler are empty for a fact about the dataset.
    theirs, ours
        Numbers (relative errors and suboptimalities as log10), or an order in words; ours is None where runs are
        missing.
    tolerance
        What may differ, in words; empty where nothing is asked.
    verdict
        "agrees", "differs", "missing", or "reported" where nothing is asked.
    """

    dataset: str
    steps: str
    sampler: str
    measure: str
    theirs: float | str
    ours: float | str | None
    tolerance: str
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """The same for a machine."""
        return asdict(self)


def published() -> dict[str, Any]:
    """What the paper prints and shows, what may differ, and where it was taken from.

    >>> published()["table"]["mnist"]["gain_at_optimum"]
    5.08
    """
    return tomllib.loads(resources.files("avare.experiments").joinpath("published.toml").read_text(encoding="utf-8"))


def check(records: Iterable[Record], datasets: Sequence[str] = tuple(SETTINGS), runs: int = 10) -> list[Row]:
    """Everything that the paper says of some datasets, beside what was stored.

    Only runs of the paper's length count, and each mean is over the first `runs` of them.

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
    found, facts = _runs(kept, paper, runs), _facts(kept)
    rows: list[Row] = []
    for dataset in datasets:
        for steps in RULES:
            figures = paper["last_epoch"].get(steps, {}).get(dataset)
            if figures is not None:
                rows += _of_figures(dataset, steps, figures, found, paper)
        rows += _of_table(dataset, facts.get(dataset), paper)
    return rows


def exit_code(rows: Iterable[Row]) -> int:
    """0 if all agrees, 1 if something differs, else 2 if something is missing."""
    verdicts = {row.verdict for row in rows}
    return 1 if "differs" in verdicts else 2 if "missing" in verdicts else 0


def _of_figures(
    dataset: str, steps: str, figures: Mapping[str, Mapping[str, float]], found: Runs, paper: Mapping[str, Any]
) -> list[Row]:
    rows, ours = [], {}
    for measure, by_sampler in figures.items():
        for sampler, theirs in by_sampler.items():
            value = _mean_at_the_end(found.get((dataset, steps, sampler), ()), measure)
            if value is not None and measure != "regret":
                value = math.log10(value) if value > 0.0 else -math.inf
            ours[measure, sampler] = value
            limit = None if dataset in paper["order"] else _limit(paper, measure, dataset, sampler)
            rows.append(Row(dataset, steps, sampler, measure, theirs, value, *_judge(measure, theirs, value, limit)))
    ordered = "relative_error" if "relative_error" in figures else "regret"
    rows.append(_order(dataset, steps, ordered, figures[ordered], ours))
    if dataset in paper["suboptimality"]["required"]:
        rows.append(_order(dataset, steps, "suboptimality", figures["suboptimality"], ours))
    return rows


def _of_table(dataset: str, facts: Mapping[str, float] | None, paper: Mapping[str, Any]) -> list[Row]:
    rows = []
    for measure, theirs in paper["table"][dataset].items():
        value = None if facts is None else facts[measure]
        limit = _limit(paper, measure, dataset, "")
        rows.append(Row(dataset, "", "", measure, theirs, value, *_judge(measure, theirs, value, limit)))
    return rows


def _limit(paper: Mapping[str, Any], measure: str, dataset: str, sampler: str) -> float | None:
    allowed = paper["tolerance"].get(measure, {})
    limit: float | None = allowed.get(sampler, allowed.get(dataset, allowed.get("default")))
    return limit


def _judge(measure: str, theirs: float, ours: float | None, limit: float | None) -> tuple[str, str]:
    """What may differ, in words, and the verdict."""
    if limit is None:
        return "", "missing" if ours is None else "reported"
    slack = 1e-9  # a number that lies on the limit may be rounded to either side
    if measure == "relative_error":
        words, agrees = f"±{limit:g}", ours is not None and abs(ours - theirs) <= limit + slack
    elif measure == "regret":
        words = f"factor {limit:g}"
        agrees = ours is not None and theirs / limit <= ours * (1.0 + slack) and ours <= theirs * limit * (1.0 + slack)
    else:
        words, agrees = f"{100.0 * limit:g} %", ours is not None and abs(ours / theirs - 1.0) <= limit + slack
    return words, "missing" if ours is None else "agrees" if agrees else "differs"


def _order(
    dataset: str,
    steps: str,
    measure: str,
    theirs: Mapping[str, float],
    ours: Mapping[tuple[str, str], float | None],
) -> Row:
    """Whether the samplers come in the paper's order; of those that it shows as equal, either may come first."""
    names = sorted(theirs, key=lambda name: -theirs[name])
    values = {name: value for name in names if (value := ours[measure, name]) is not None}
    wanted = "".join(f"{' = ' if theirs[a] == theirs[b] else ' > '}{b}" for a, b in pairwise(names))
    common = (dataset, steps, "all", measure, names[0] + wanted)
    if len(values) < len(names):
        return Row(*common, None, "the order", "missing")
    agrees = all(values[a] > values[b] for a in names for b in names if theirs[a] > theirs[b])
    found = " > ".join(sorted(names, key=lambda name: -values[name]))
    return Row(*common, found, "the order", "agrees" if agrees else "differs")


def _runs(records: Sequence[Record], paper: Mapping[str, Any], runs: int) -> Runs:
    """The runs of the paper's setting, by dataset, steps and sampler, where there are enough."""
    found: dict[tuple[str, str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        spec = record["spec"]
        if (
            spec["experiment"] == "reproduce"
            and spec["epochs"] == paper["epochs"]
            and spec["batch_size"] == paper["batch_size"].get(spec["dataset"])
            and record["status"] == "finished"
        ):
            found[spec["dataset"], spec["steps"], spec["sampler"]][_version(spec)].append(record)
    enough = {}
    for cell, versions in found.items():
        # Where the data or the settings have changed since some runs, those of the latest count.
        latest = max(versions.values(), key=lambda group: max(record["where"]["date"] for record in group))
        if len(latest) >= runs:
            enough[cell] = sorted(latest, key=lambda record: int(record["spec"]["seed"]))[:runs]
    return enough


def _version(spec: Mapping[str, Any]) -> str:
    return repr(sorted((name, repr(value)) for name, value in spec.items() if name != "seed"))


def _facts(records: Sequence[Record]) -> dict[str, Mapping[str, float]]:
    tables = [record for record in records if record["spec"]["experiment"] == "table"]
    return {each["spec"]["dataset"]: each["facts"] for each in sorted(tables, key=lambda each: each["where"]["date"])}


def _mean_at_the_end(records: Sequence[Record], measure: str) -> float | None:
    values = [record["trace"][measure][-1] for record in records]
    return None if not values or None in values else math.fsum(values) / len(values)
