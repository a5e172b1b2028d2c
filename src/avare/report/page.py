"""The web page: one file with its data, its script and Plotly in it; it needs no network."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import groupby
from string import Template
from typing import Any

from avare._optional import require
from avare.experiments.content import Panel, Part, Section, Table
from avare.plotting import SMALLEST, Chart, Style
from avare.report.charts import as_json, controls, frame
from avare.report.tables import as_html

_TITLE = "Adaptive importance sampling: results"


def render(panels: Sequence[Panel], styles: Mapping[str, Style], *, lead: str, notices: Sequence[str]) -> str:
    """Return the page: tabs below a lead and notices, of which lines after the first become a list."""
    plotly = require("plotly.offline", "making the page")
    charts: dict[str, Any] = {}
    bodies = [_body(place, panel, styles, charts) for place, panel in enumerate(panels)]
    data = json.dumps({"smallest": SMALLEST, "charts": charts}, ensure_ascii=False, allow_nan=False)
    return Template(_file("page.html")).substitute(
        title=html.escape(_TITLE),
        lead=html.escape(lead),
        notices="\n".join(f'<div class="notice" role="note">{_notice(text)}</div>' for text in notices),
        style=_file("page.css"),
        tabs="\n".join(_tab(place, panel.title) for place, panel in enumerate(panels)),
        panels="\n".join(
            f'<section role="tabpanel" id="panel-{place}" aria-labelledby="tab-{place}" tabindex="0">\n{body}</section>'
            for place, body in enumerate(bodies)
        ),
        footer="Made by avare from stored results; this file needs no network.",
        plotly=plotly.get_plotlyjs(),
        data=data.replace("<", "\\u003c"),  # so that text in it cannot end the script
        script=_file("page.js"),
    )


def _notice(text: str) -> str:
    first, *rest = (html.escape(line) for line in text.split("\n"))
    return first + (f"<ul>{''.join(f'<li>{line}</li>' for line in rest)}</ul>" if rest else "")


def _tab(place: int, name: str) -> str:
    address = "".join(sign.lower() if sign.isalnum() else "-" for sign in name)
    return (
        f'<button type="button" role="tab" id="tab-{place}" aria-controls="panel-{place}" aria-selected="false" '
        f'data-name="{html.escape(address)}">{html.escape(name)}</button>'
    )


def _body(place: int, panel: Panel, styles: Mapping[str, Style], charts: dict[str, Any]) -> str:
    """Return the contents of a tab; its charts are added to ``charts``."""
    curves = [curve for chart in panel.charts for curve in chart.curves]
    own = {curve.label: curve.style or styles[curve.label] for curve in curves if curve.label}
    parts = [f'<p class="verdict">{html.escape(line)}</p>\n' for line in panel.verdict]
    parts += [_lead(part) for part in panel.lead]
    parts += [controls(f"panel-{place}", list(own), own)] if own else []
    for number, section in enumerate(panel.sections):
        parts.append(f"<h2>{html.escape(section.heading)}</h2>\n")
        parts += _parts(f"chart-{place}-{number}", panel, section, styles, charts)
    return "".join(parts)


def _parts(
    name: str, panel: Panel, section: Section, styles: Mapping[str, Style], charts: dict[str, Any]
) -> Iterator[str]:
    for is_chart, members in groupby(enumerate(section.parts), key=lambda pair: isinstance(pair[1], Chart)):
        if not is_chart:
            yield from (_part(part) for _, part in members)
            continue
        frames = []
        for number, chart in members:
            if isinstance(chart, Chart) and chart.curves:
                charts[f"{name}-{number}"] = as_json(chart, styles)
                description = f"{chart.title} against {chart.x_title}: {panel.title}, {section.heading}"
                frames.append(frame(f"{name}-{number}", chart.title, description, chart.note))
        if frames:
            yield f'<div class="charts{" single" if len(frames) == 1 else ""}">\n{"".join(frames)}</div>\n'


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return as_html(part)
    if isinstance(part, Mapping):
        return f"<dl>{_pairs(part)}</dl>\n"
    return f'<p class="hint">{html.escape(str(part))}</p>\n'


def _lead(part: str | Mapping[str, Any]) -> str:
    if isinstance(part, str):
        return f"<p>{html.escape(part)}</p>\n"
    return f'<dl class="setting">{"".join(f"<div>{_pairs({key: part[key]})}</div>" for key in part)}</dl>\n'


def _pairs(part: Mapping[str, Any]) -> str:
    return "".join(f"<dt>{html.escape(key.replace('_', ' '))}</dt><dd>{_value(part[key])}</dd>" for key in part)


def _value(value: Any) -> str:
    words = [f"{key} {each}" for key, each in value.items()] if isinstance(value, Mapping) else [str(value)]
    return html.escape(", ".join(words))


def _file(name: str) -> str:
    return resources.files("avare.report").joinpath("web", name).read_text(encoding="utf-8")
