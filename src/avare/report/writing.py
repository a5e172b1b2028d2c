"""The whole report, from a folder of records."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from avare.report import figures, net_tables, page, tables
from avare.report.checking import check
from avare.report.net_aims import check_aims
from avare.report.nets import MEASURES as NET_MEASURES
from avare.report.nets import Nets
from avare.report.published import paper
from avare.report.results import MEASURES, Curve, Results, gather


def write(store: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Make figures, tables, numbers and a web page from stored results; nothing is run.

    In ``out`` come ``figures/`` (PNG and SVG), ``tables/`` (CSV and Markdown), ``numbers.json`` and
    ``index.html``, one file that needs no network. Files of these names are written over; others stay.

    Parameters
    ----------
    store
        A folder of records, one JSON file each. What is damaged is passed over, and named on the page.
    out
        Where to write; made if it is not there.

    Returns
    -------
    Path
        The page.
    """
    results = gather(store)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    figures.draw(results, folder / "figures")
    (folder / "tables").mkdir(exist_ok=True)
    for name, table in _tables(results).items():
        (folder / "tables" / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
        (folder / "tables" / f"{name}.md").write_text(table.markdown(), encoding="utf-8")
    text = json.dumps(_numbers(results), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "numbers.json").write_text(text + "\n", encoding="utf-8")
    index = folder / "index.html"
    index.write_text(page.render(results, paper()), encoding="utf-8")
    return index


def _tables(results: Results) -> dict[str, tables.Table]:
    found = {}
    if results.of("reproduce") or results.facts:
        found["table1"] = tables.table_one(results, paper())
        found["check"] = tables.checks(check(results, paper()))
    if results.of("reproduce"):
        found["reproduce"] = tables.last_epoch(results.of("reproduce"), paper())
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
                        "seconds": {part: _number(value) for part, value in series.seconds.items()},
                        "epoch": _list(series.epochs),
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
                "slope": _number(growth.slope),
                "step": _list(growth.steps),
                "regret": _curve(growth.curve),
            }
            for growth in results.growths
        ],
        "nets": None if results.nets is None else _net_numbers(results.nets),
        "facts": [
            {"dataset": name, **{key: _number(value) for key, value in facts.items()}} for name, facts in results.facts
        ],
        "check": [
            {
                "dataset": each.dataset,
                "steps": each.rule,
                "sampler": each.sampler,
                "measure": each.measure,
                "theirs": each.theirs,
                "ours": _number(each.ours) if isinstance(each.ours, float) else each.ours,
                "tolerance": each.tolerance,
                "agrees": each.agrees,
                "note": each.note,
            }
            for each in check(results, paper())
        ],
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
                "epoch": _list(line.epochs),
                **{
                    measure: {"mean": _list(line.mean(measure)), "deviation": _list(line.deviation(measure))}
                    for measure in NET_MEASURES
                },
            }
            for line in nets.lines
        ],
        "aims": [
            {
                key: _number(value) if isinstance(value, float) else value
                for key, value in dataclasses.asdict(aim).items()
            }
            for aim in check_aims(nets)
        ],
        "left_out": nets.left_out,
    }


def _curve(curve: Curve) -> dict[str, list[float | None]]:
    return {"mean": _list(curve.mean), "deviation": _list(curve.deviation), "lowest": _list(curve.lowest)}


def _list(values: NDArray[Any]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
