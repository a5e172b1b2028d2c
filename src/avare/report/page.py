"""The web page: one file with its data, its script and Plotly in it, which asks nothing of any host."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from avare._optional import require
from avare.experiments.nets import tables as net_tables
from avare.experiments.nets.panel import nets_panel
from avare.experiments.paper.checking import Row, tally
from avare.experiments.paper.plan import BOUNDS
from avare.report import tables
from avare.report.charts import chart, controls, in_plotly, points, rounded
from avare.report.figures import AXES, SMALLEST, guide
from avare.report.results import MEASURES, Group, Growth, Results, title
from avare.report.styles import Style, of_method

_TITLE = "Adaptive importance sampling: results"


def render(results: Results, paper: Mapping[str, Any]) -> str:
    """The page as text."""
    plotly = require("plotly.offline", "making the page")
    charts: dict[str, Any] = {}
    panels = [
        (group.title, _group_panel(group, f"group-{place}", results.styles, paper, charts))
        for place, group in enumerate(results.groups)
    ]
    if results.nets is not None:
        panels.append(("Nets", nets_panel(results.nets, charts)))
    if results.growths:
        panels.append(("Theory", _theory_panel(results, charts)))
    if results.of("reproduce") or results.facts:
        panels.append(("Against the paper", _paper_panel(results, paper)))
    panels.append(("How it was run", _how_panel(results)))
    data = json.dumps({"smallest": SMALLEST, "charts": charts}, ensure_ascii=False, allow_nan=False)
    return Template(_file("page.html")).substitute(
        title=html.escape(_TITLE),
        lead=html.escape(_lead(results)),
        notices=_notices(results),
        style=_file("page.css"),
        tabs="\n".join(_tab(place, name) for place, (name, _) in enumerate(panels)),
        panels="\n".join(_panel(place, body) for place, (_, body) in enumerate(panels)),
        footer="Made by avare from stored results; this file needs no network.",
        plotly=plotly.get_plotlyjs(),
        data=data.replace("<", "\\u003c"),  # text in it must not end the script
        script=_file("page.js"),
    )


# --- tabs -----------------------------------------------------------------------------------


def _tab(place: int, name: str) -> str:
    address = "".join(sign.lower() if sign.isalnum() else "-" for sign in name)
    return (
        f'<button type="button" role="tab" id="tab-{place}" aria-controls="panel-{place}" aria-selected="false" '
        f'data-name="{html.escape(address)}">{html.escape(name)}</button>'
    )


def _panel(place: int, body: str) -> str:
    return f'<section role="tabpanel" id="panel-{place}" aria-labelledby="tab-{place}" tabindex="0">\n{body}</section>'


def _group_panel(
    group: Group, name: str, styles: Mapping[str, Style], paper: Mapping[str, Any], charts: dict[str, Any]
) -> str:
    """Charts, table and check of a dataset; its charts are entered in ``charts``."""
    parts = [controls(name, group.labels, styles)]
    for number, rule in enumerate(group.rules):
        parts.append(f'<h2>{html.escape(_rule_title(rule))}</h2>\n<div class="charts">\n')
        for measure in MEASURES:
            heading, log = AXES[measure]
            place = f"{name}-{number}-{measure}"
            charts[place] = {
                "log": log,
                "logX": False,
                "along": "epoch",
                "xTitle": "Epochs (data passes)",
                "series": [
                    {
                        "label": series.label,
                        "style": in_plotly(styles[series.label]),
                        **points(series.epochs, series.curves[measure]),
                    }
                    for series in group.of(rule)
                ],
            }
            parts.append(chart(place, heading, f"{heading} against epochs on {group.title}, {_rule_title(rule)}"))
        parts.append("</div>\n")
    parts.append(
        '<p class="hint">Mean of the runs; shaded, one standard deviation. '
        "On log axes the shade ends at the lowest run.</p>\n"
    )
    published = group.experiment == "reproduce"
    table = tables.last_epoch([group], paper if published else None).without("dataset")
    parts.append(f"<h2>At the last epoch</h2>\n{table.html()}")
    if group.checks:
        unsaid = () if any(row.note for row in group.checks) else ("note",)
        table = tables.checks(group.checks).without("dataset", *unsaid)
        parts.append(f"<h2>Against the paper</h2>\n{_tally(group.checks)}{table.html()}")
    return "".join(parts)


def _theory_panel(results: Results, charts: dict[str, Any]) -> str:
    charts["theory"] = {
        "log": True,
        "logX": True,
        "legend": True,
        "along": "step",
        "xTitle": "Steps T",
        "series": [line for growth in results.growths for line in _growth(growth)],
    }
    proved = ", ".join(f"T<sup>{power}</sup> for {method.upper()}" for method, power in BOUNDS.items())
    return (
        '<h2>How the regret grows</h2>\n<div class="charts single">\n'
        + chart("theory", "Cumulative dynamic regret", "Regret against steps in log-log")
        + "</div>\n"
        + f'<p class="hint">Dashed, the growth that is proved: {proved}. Only its slope is meant. '
        "The fitted slope is that of the last decade, the mean of the runs.</p>\n" + tables.growths(results).html()
    )


def _paper_panel(results: Results, paper: Mapping[str, Any]) -> str:
    there = {row.dataset for row in results.checks}
    absent = [title(name) for name in paper["table"] if name not in there]
    return (
        f"<h2>Table 1</h2>\n{tables.table_one(results, paper).html()}"
        f'<p class="hint">{html.escape(paper["smoothness_note"])}</p>\n'
        + (f"<h2>Every number</h2>\n{_tally(results.checks)}{tables.checks(results.checks).html()}" if there else "")
        + (f"<p>Not in this store: {html.escape(', '.join(absent))}.</p>\n" if absent else "")
        + f'<p class="hint">Source: {html.escape(paper["source"])}.</p>\n'
    )


def _how_panel(results: Results) -> str:
    parts = ["<h2>Machine and versions</h2>\n"]
    for place, count in results.places:
        versions = place.get("versions")
        pairs = {key: value for key, value in place.items() if key != "versions"}
        if isinstance(versions, dict):
            pairs["versions"] = ", ".join(f"{package} {number}" for package, number in versions.items())
        parts.append(_pairs({"records": count, **pairs}))
    if len(results.groups) > 1:
        parts.append("<h2>All runs together</h2>\n")
        parts.append(_pairs({"seconds in all": _total(results.groups)}))
    for group in results.groups:
        setting = {key: value for key, value in group.setting.items() if value is not None}
        seeds = sorted({seed for series in group.series for seed in series.seeds})
        parts.append(f"<h2>{html.escape(group.title)}</h2>\n")
        parts.append(
            _pairs({**setting, "seeds": ", ".join(str(seed) for seed in seeds), "seconds in all": _total([group])})
        )
        parts.append(tables.times(group).html())
    if results.nets is not None:
        nets = results.nets
        left_out = {"runs of other setups, left out": nets.left_out} if nets.left_out else {}
        parts.append("<h2>Nets</h2>\n")
        parts.append(_pairs({"runs": nets.records, "seconds in all": f"{nets.seconds:.0f}", **left_out}))
        parts.append(net_tables.net_setups(nets).html())
    return "".join(parts)


# --- parts of a tab -------------------------------------------------------------------------


def _tally(checks: Sequence[Row]) -> str:
    counts = tally(checks)
    judged = counts["agrees"] + counts["differs"]
    if not judged:
        return "<p>Nothing here can be judged; the notes say why.</p>\n"
    missing = f" {counts['missing']} cannot be judged yet; the notes say why." if counts["missing"] else ""
    return f"<p>{counts['agrees']} of the {judged} statements that are judged agree.{missing}</p>\n"


def _pairs(pairs: Mapping[str, Any]) -> str:
    return (
        "<dl>"
        + "".join(
            f"<dt>{html.escape(str(key).replace('_', ' '))}</dt><dd>{html.escape(str(value))}</dd>"
            for key, value in pairs.items()
        )
        + "</dl>\n"
    )


def _total(groups: Sequence[Group]) -> str:
    steps, evaluation = (
        sum(len(series.seeds) * series.seconds[part] for group in groups for series in group.series)
        for part in ("steps", "evaluation")
    )
    if not math.isfinite(steps + evaluation):
        return "not known"
    share = f" ({100.0 * evaluation / (steps + evaluation):.0f} %)" if steps + evaluation > 0.0 else ""
    return f"{steps:.0f} in steps, {evaluation:.0f} in evaluation{share}"


def _notices(results: Results) -> str:
    notices = [html.escape(text) for text in results.doubts]
    count = len(results.skipped)
    if count:
        files = "".join(f"<li>{html.escape(str(each))}</li>" for each in results.skipped)
        left_out = "s of the store are left out" if count > 1 else " of the store is left out"
        notices.append(f"{count} file{left_out}:<ul>{files}</ul>")
    return "\n".join(f'<div class="notice" role="note">{text}</div>' for text in notices)


def _lead(results: Results) -> str:
    runs = sum(len(series.seeds) for group in results.groups for series in group.series)
    samplers = {series.sampler for group in results.groups for series in group.series}
    datasets = {group.dataset for group in results.groups}
    words = f"{_count(runs, 'run')} of {_count(len(samplers), 'sampler')} on {_count(len(datasets), 'dataset')}"
    if results.nets is not None:
        of_nets = f"{_count(results.nets.records, 'run')} on {_count(len(results.nets.models), 'net')}"
        words = f"{words}; {of_nets}" if runs else of_nets
    return words + (f", {' to '.join(results.dates)}." if results.dates else ".")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _rule_title(rule: str) -> str:
    return f"{rule.capitalize()} step sizes"


# --- data -----------------------------------------------------------------------------------


def _growth(growth: Growth) -> list[dict[str, Any]]:
    """The line of a method, and the growth that is proved beside it."""
    style = of_method(growth.method)
    lines: list[dict[str, Any]] = [
        {
            "label": growth.label,
            "style": in_plotly(style),
            **points(growth.steps, growth.curve),
        }
    ]
    keep = (growth.steps > 0) & (growth.curve.mean > 0)
    if growth.method in BOUNDS and np.any(keep):
        x, bound = guide(growth.steps[keep], growth.curve.mean[keep], float(BOUNDS[growth.method]))
        lines.append(
            {
                "label": f"T^({BOUNDS[growth.method]})",
                "guide": True,
                "style": in_plotly(style._replace(dash="dash")),
                "x": rounded(x),
                "mean": rounded(bound),
            }
        )
    return lines


def _file(name: str) -> str:
    return resources.files("avare.report").joinpath("web", name).read_text(encoding="utf-8")
