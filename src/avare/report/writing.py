"""The whole report, from a store."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from avare import _validation as validation
from avare.experiments.nets import tables as net_tables
from avare.experiments.nets.aims import check_aims
from avare.experiments.nets.summary import MEASURES as NET_MEASURES
from avare.experiments.nets.summary import Nets
from avare.experiments.paper.checking import published
from avare.experiments.paper.plan import RUNS
from avare.experiments.runs import number, numbers
from avare.experiments.store import take_away_left_overs, write_whole
from avare.report import figures, page, tables
from avare.report.results import MEASURES, Curve, Results, gather


class ReportError(OSError):
    """A folder that a report cannot be written to; the message names it."""


def write(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    runs: int = RUNS,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Make figures, tables, numbers and a web page from stored results; nothing is run.

    In ``out`` come ``figures/`` (PNG and SVG), ``tables/`` (CSV and Markdown), ``numbers.json`` and
    ``index.html``, one file that needs no network. Files of these names are written over, each whole or not at
    all; others stay.

    Parameters
    ----------
    store
        The folder of a store, of which nothing is changed. Damaged files are passed over, and named on the page and
        in ``numbers.json``.
    out
        Where to write; made if it is not there.
    runs
        How many there must be of each for the check against the paper, as for `avare.experiments.check`.
    say
        Is told of each file that is passed over, and why.

    Returns
    -------
    Path
        The page.
    """
    results = gather(store, validation.integer("runs", runs, at_least=1))
    for each in results.skipped:
        say(f"{each}; passed over")
    folder = Path(out)
    texts = {}
    for name, table in _tables(results).items():
        texts[folder / "tables" / f"{name}.csv"] = table.csv()
        texts[folder / "tables" / f"{name}.md"] = table.markdown()
    numbers_text = json.dumps(_numbers(results), indent=1, ensure_ascii=False, allow_nan=False)
    texts[folder / "numbers.json"] = numbers_text + "\n"
    index = folder / "index.html"
    texts[index] = page.render(results, published())
    with _writing_into(folder):
        for place in (folder, folder / "figures", folder / "tables"):
            place.mkdir(parents=True, exist_ok=True)
            take_away_left_overs(place)
        figures.draw(results, folder / "figures")
        for path, text in texts.items():
            write_whole(path, text.encode())
    return index


@contextmanager
def _writing_into(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"{folder}: cannot write the report: {error.strerror or error}") from error


def _tables(results: Results) -> dict[str, tables.Table]:
    found = {}
    if results.of("reproduce") or results.facts:
        found["table1"] = tables.table_one(results, published())
    if results.checks:
        found["check"] = tables.checks(results.checks)
    if results.of("reproduce"):
        found["reproduce"] = tables.last_epoch(results.of("reproduce"), published())
    if results.of("compare"):
        found["compare"] = tables.last_epoch(results.of("compare"), None)
    if results.growths:
        found["theory"] = tables.growths(results)
    if results.nets is not None:
        found |= net_tables.all_tables(results.nets)
    return found


def _numbers(results: Results) -> dict[str, Any]:
    """All that the figures and tables show, with all digits; null where there is no number."""
    return {
        "groups": [
            {
                "title": group.title,
                "setting": group.setting,
                "series": [
                    {
                        "label": series.label,
                        "spec": {key: value for key, value in series.spec.items() if key != "evaluations"},
                        "seeds": series.seeds,
                        "seconds": {part: number(value) for part, value in series.seconds.items()},
                        "epoch": numbers(series.epochs),
                        **{measure: _curve(series.curves[measure]) for measure in MEASURES},
                    }
                    for rule in group.rules
                    for series in group.of(rule)
                ],
            }
            for group in results.groups
        ],
        "theory": [
            {
                "label": growth.label,
                "runs": growth.runs,
                "slope": number(growth.slope),
                "step": numbers(growth.steps),
                "regret": _curve(growth.curve),
            }
            for growth in results.growths
        ],
        "nets": None if results.nets is None else _net_numbers(results.nets),
        "facts": [{"dataset": name, **facts} for name, facts in results.facts],
        "doubts": list(results.doubts),
        "check": [row.as_dict() for row in results.checks],
        "where": [{**place, "records": count} for place, count in results.places],
        "skipped": [{"file": each.name, "reason": each.reason} for each in results.skipped],
    }


def _net_numbers(nets: Nets) -> dict[str, Any]:
    return {
        "lines": [
            {
                "spec": dict(line.spec),
                "seeds": line.seeds,
                "diverged": line.diverged,
                "epoch": numbers(line.epochs),
                **{
                    measure: {"mean": numbers(line.mean(measure)), "deviation": numbers(line.deviation(measure))}
                    for measure in NET_MEASURES
                },
            }
            for line in nets.lines
        ],
        "aims": [
            {
                key: number(value) if isinstance(value, float) else value
                for key, value in dataclasses.asdict(aim).items()
            }
            for aim in check_aims(nets)
        ],
        "left_out": nets.left_out,
    }


def _curve(curve: Curve) -> dict[str, list[float | None]]:
    return {"mean": numbers(curve.mean), "deviation": numbers(curve.deviation), "lowest": numbers(curve.lowest)}
