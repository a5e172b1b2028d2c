"""The tab of the page that is about nets: a section for each question."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.nets import tables as net_tables
from avare.experiments.nets.aims import check_aims
from avare.experiments.nets.figures import AGES, LEVELS, PARTS, QUESTIONS, SPENDING, STEPS, style_of
from avare.experiments.nets.summary import OPTIMISERS, UNIFORM, Line, Nets, title
from avare.report.charts import chart, controls, in_plotly, points
from avare.report.results import Curve
from avare.report.styles import Style


def nets_panel(nets: Nets, charts: dict[str, Any]) -> str:
    """Charts and tables; the charts are entered in ``charts``."""
    labels = _labels(nets)
    styles = {label: _style(nets, label) for label in labels}
    sections = [
        _curves(nets, charts, styles, "nets-faster", "loss", "Training loss", "epochs"),
        _gains(nets, charts, styles),
        _steps(nets, charts, styles),
        _curves(nets, charts, styles, "nets-test-error", "test_error", "Test error", "epochs"),
        _curves(nets, charts, styles, "nets-seconds", "loss", "Training loss", "seconds"),
        _measures(nets, charts, styles),
        _variants(nets, charts, styles, "nets-parts", (UNIFORM, *PARTS)),
        _variants(nets, charts, styles, "nets-age", AGES),
        _variants(nets, charts, styles, "nets-larger-step", SPENDING),
    ]
    parts = [controls("nets", labels, styles), *sections]
    parts.append(
        '<p class="hint">Mean of the runs; shaded, one standard deviation. Seconds are those of training alone, of one '
        "processor.</p>\n"
    )
    return "".join(parts) + _tables(nets)


def _tables(nets: Nets) -> str:
    parts = []
    if nets.of("best"):
        parts.append(f"<h2>At the best settings</h2>\n{net_tables.net_best(nets).html()}")
    aims = check_aims(nets)
    if aims:
        parts.append(f"<h2>The aims</h2>\n{net_tables.net_tally(nets, aims).html()}")
        failed = [each for each in aims if each.holds is False]
        if failed:
            parts.append(f"<h3>Cells that do not hold</h3>\n{net_tables.net_aims(failed).html()}")
        else:
            parts.append("<p>No cell that can be judged fails.</p>\n")
        parts.append('<p class="hint">All cells are in tables/nets-aims-cells.csv.</p>\n')
    return "".join(parts)


def _curves(
    nets: Nets, charts: dict[str, Any], styles: Mapping[str, Style], name: str, measure: str, words: str, along: str
) -> str:
    """A measure at the best settings, a chart a net."""
    found = _at_best(nets, charts, styles, name, measure, words, along)
    return _section(QUESTIONS[name], f"{words} against {along}, each at its best settings.", found)


def _measures(nets: Nets, charts: dict[str, Any], styles: Mapping[str, Style]) -> str:
    """The other measures, a chart a net and measure."""
    found = []
    for measure, words, along in (
        ("test_error", "Test error", "seconds"),
        ("gain", "Gain realised", "seconds"),
        ("calibration_error", "Calibration error, octaves", "epochs"),
        ("calibration_error", "Calibration error, octaves", "seconds"),
    ):
        name = f"nets-{measure.replace('_', '-')}-{along}"
        found += _at_best(nets, charts, styles, name, measure, words, along, named=True)
    words = (
        "Test error and gain against seconds; the calibration error, of samplers with a memory of norms, against both."
    )
    return _section(QUESTIONS["nets-measures"], words, found)


def _gains(nets: Nets, charts: dict[str, Any], styles: Mapping[str, Style]) -> str:
    found = _at_best(nets, charts, styles, "nets-gain", "gain", "Gain realised", "epochs")
    words = "Uniform's second moment over each sampler's own, by the true norms of all examples."
    return _section("What is gained of what there is to gain?", words, found)


def _steps(nets: Nets, charts: dict[str, Any], styles: Mapping[str, Style]) -> str:
    """The loss at the end of the grid against constant step sizes, with the first optimiser."""
    found = []
    optimisers = [name for name in OPTIMISERS if any(line.optimiser == name for line in nets.of("grid"))][:1]
    for model in nets.models:
        for batch_size in sorted({line.batch_size for line in nets.of("grid", model=model)}):
            series = []
            for label in STEPS:
                wanted = {"model": model, "sampler": label, "batch_size": batch_size, "rule": "constant"}
                lines = [line for line in nets.of("grid", **wanted) if line.optimiser in optimisers]
                if lines:
                    x = np.array([line.step for line in lines])
                    series.append(_series(label, styles, x, [line.runs["loss"][:, -1] for line in lines]))
            if series:
                place = f"nets-step-and-batch-{model}-{batch_size}"
                charts[place] = _chart(series, "step size", "Step size", log_x=True)
                heading = f"{title(model)}, batches of {batch_size}"
                found.append(chart(place, heading, f"Training loss against step sizes: {heading}"))
    words = f"Training loss at the end of the grid, {''.join(OPTIMISERS[name] for name in optimisers)}, constant steps."
    return _section(QUESTIONS["nets-step-and-batch"], words, found)


def _variants(nets: Nets, charts: dict[str, Any], styles: Mapping[str, Style], name: str, labels: Sequence[str]) -> str:
    """The training loss of variants, a chart a net and step size."""
    found = []
    others = [label for label in labels if label not in (UNIFORM, "calibrated")]
    if not any(line.sampler in others for line in nets.of("parts")):
        return ""
    for model in nets.models:
        for level, words in LEVELS.items():
            lines = [line for label in labels for line in nets.of("parts", model=model, level=level, sampler=label)]
            if lines:
                place = f"{name}-{model}-{level}"
                charts[place] = _chart_of(lines, styles, "loss", "epochs")
                heading = f"{title(model)}, at {words}"
                found.append(chart(place, heading, f"Training loss against epochs: {heading}"))
    return _section(QUESTIONS[name], "Training loss against epochs, SGD with constant steps.", found)


# --- what they share ------------------------------------------------------------------------


def _at_best(
    nets: Nets,
    charts: dict[str, Any],
    styles: Mapping[str, Style],
    name: str,
    measure: str,
    words: str,
    along: str,
    *,
    named: bool = False,
) -> list[str]:
    """A chart a net of those that have the measure, each at its best settings; its heading may name the measure."""
    found = []
    for model in nets.models:
        known = [line for line in nets.at_best(model) if np.isfinite(line.last(measure))]
        if known:
            place = f"{name}-{model}"
            charts[place] = _chart_of(known, styles, measure, along)
            heading = f"{title(model)}: {words}" if named else title(model)
            found.append(chart(place, heading, f"{words} against {along}: {title(model)}"))
    return found


def _section(heading: str, words: str, found: Sequence[str]) -> str:
    if not found:
        return ""
    return (
        f'<h2>{html.escape(heading)}</h2>\n<p class="hint">{html.escape(words)}</p>\n'
        f'<div class="charts">\n{"".join(found)}</div>\n'
    )


def _chart_of(lines: Sequence[Line], styles: Mapping[str, Style], measure: str, along: str) -> dict[str, Any]:
    series = []
    for line in lines:
        known = np.isfinite(line.mean(measure))
        x = (line.epochs if along == "epochs" else line.mean("seconds"))[known]
        series.append(_series(line.sampler, styles, x, list(line.runs[measure][:, known].T)))
    return _chart(series, "epoch" if along == "epochs" else "second", along.capitalize())


def _chart(series: Sequence[dict[str, Any]], along: str, x_title: str, *, log_x: bool = False) -> dict[str, Any]:
    return {"log": True, "logX": log_x, "along": along, "xTitle": x_title, "series": list(series)}


def _series(
    label: str, styles: Mapping[str, Style], x: NDArray[np.float64], columns: Sequence[NDArray[np.float64]]
) -> dict[str, Any]:
    """A line of the page; each column has the runs at one place."""
    curve = Curve(
        np.array([column.mean() for column in columns]),
        np.array([column.std(ddof=1) if len(column) > 1 else 0.0 for column in columns]),
        np.array([column.min() for column in columns]),
    )
    return {"label": label, "style": in_plotly(styles[label]), **points(x, curve)}


def _labels(nets: Nets) -> list[str]:
    """All that is drawn, those compared first."""
    of_parts = dict.fromkeys([*PARTS, *AGES, *SPENDING])
    there = {line.sampler for line in nets.lines}
    return [*nets.samplers, *(label for label in of_parts if label in there and label not in nets.samplers)]


def _style(nets: Nets, label: str) -> Style:
    return nets.styles[label] if label in PARTS[1:] else style_of(nets, label)
