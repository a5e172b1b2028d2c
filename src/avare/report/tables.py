"""Tables: one set of rows, written as CSV (all digits), as Markdown and as HTML (what a reader wants)."""

import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from avare.experiments.paper.checking import LOGARITHMS, MEASURE_NAMES, Row, log10, other_settings
from avare.experiments.paper.plan import BOUNDS
from avare.report.results import Group, Results, short, title

_NOTHING = "–"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_ANSWERS = {True: "yes", False: "no"}
_MARKED: dict[Any, str] = {"agrees": "yes", "differs": "no", **_ANSWERS}
_NUMBERS = ("integer", "number", "ratio", "digits", "percent", "power", "seconds")


class Column(NamedTuple):
    """A column: its name in CSV, its heading elsewhere, and how its values are written.

    The kinds are "text", "integer", "number" (two decimals), "ratio" (three), "digits" (three that count), "percent",
    "power" (of ten), "seconds", "answer" (yes or no), and "detail", which is for CSV only.
    """

    name: str
    heading: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows under a caption."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """All columns with all digits; an empty field where there is no value."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        for row in self.rows:
            writer.writerow(["" if _absent(value) else _plain(value) for value in row])
        return text.getvalue()

    def markdown(self) -> str:
        """Numbers rounded, and to the right."""
        columns = [column for column in self.columns if column.kind != "detail"]
        lines = [
            [column.heading for column in columns],
            ["---:" if column.kind in _NUMBERS else "---" for column in columns],
            *(
                [_cell(column.kind, value).replace("|", "\\|") for column, value in self._shown(row)]
                for row in self.rows
            ),
        ]
        return f"{self.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def html(self) -> str:
        """In a frame of its own, which scrolls where the screen is narrow."""
        head = "".join(
            f'<th scope="col"{_class(column)}>{html.escape(column.heading)}</th>'
            for column in self.columns
            if column.kind != "detail"
        )
        body = "".join(
            "<tr>" + "".join(_html_cell(column, value) for column, value in self._shown(row)) + "</tr>\n"
            for row in self.rows
        )
        caption = html.escape(self.caption)
        return (
            f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table>\n'
            f"<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
        )

    def without(self, *names: str) -> "Table":
        """The same table without some columns."""
        keep = [place for place, column in enumerate(self.columns) if column.name not in names]
        rows = tuple(tuple(row[place] for place in keep) for row in self.rows)
        return Table(self.caption, tuple(self.columns[place] for place in keep), rows)

    def _shown(self, row: Sequence[Any]) -> list[tuple[Column, Any]]:
        return [pair for pair in zip(self.columns, row, strict=True) if pair[0].kind != "detail"]


def table_one(results: Results, paper: Mapping[str, Any]) -> Table:
    """The paper's Table 1, theirs beside ours."""
    found = [*results.facts, *((name, {}) for name in paper["table"] if name not in dict(results.facts))]
    rows = []
    for name, ours in found:
        theirs = paper["table"].get(name, {})
        row = [title(name), ours.get("n"), ours.get("dim")]
        for measure in ("smoothness_ratio", "gain_at_optimum"):
            row += [theirs.get(measure), ours.get(measure)]
        rows.append(tuple(row))
    return Table(
        "Table 1: the smoothness ratio N·max L / ΣL, and the gain N·Σn² / (Σn)² at the optimum",
        (
            Column("dataset", "dataset"),
            Column("n", "N", "integer"),
            Column("dim", "parameters", "integer"),
            Column("smoothness_ratio_paper", "smoothness ratio, paper", "number"),
            Column("smoothness_ratio", "ours", "ratio"),
            Column("gain_at_optimum_paper", "gain at x*, paper", "number"),
            Column("gain_at_optimum", "ours", "ratio"),
        ),
        tuple(rows),
    )


def last_epoch(groups: Sequence[Group], paper: Mapping[str, Any] | None) -> Table:
    """Relative error, suboptimality and regret at the last epoch; the paper's beside them, if it is given.

    Runs of other settings than the paper's have nothing beside them.
    """
    columns = [
        Column("dataset", "dataset"),
        Column("steps", "steps"),
        Column("sampler", "sampler"),
        Column("runs", "runs", "integer"),
        Column("epoch", "epoch", "integer"),
    ]
    for measure in ("relative_error", "suboptimality", "regret"):
        name = MEASURE_NAMES[measure]
        if measure in LOGARITHMS:
            shown = Column(f"{measure}_log10", f"{name}, log₁₀", "number")
            columns += [shown, Column(measure, "", "detail"), Column(f"{measure}_deviation", "", "detail")]
        else:
            shown = Column(measure, name, "power")
            columns += [shown, Column(f"{measure}_deviation", "", "detail")]
        if paper:
            columns.append(Column(f"{shown.name}_paper", "paper", "number"))
    rows = []
    for group in groups:
        figures = {} if paper is None or other_settings(group.setting, paper) else paper["last_epoch"]
        for rule in group.rules:
            theirs = figures.get(rule, {}).get(group.dataset, {})
            for series in group.of(rule):
                row = [group.title, rule, series.label, len(series.seeds), float(series.epochs[-1])]
                for measure in ("relative_error", "suboptimality", "regret"):
                    mean, deviation = series.last(measure)
                    row += [log10(mean), mean, deviation] if measure in LOGARITHMS else [mean, deviation]
                    if paper:
                        row.append(theirs.get(measure, {}).get(series.label))
                rows.append(tuple(row))
    return Table("At the last epoch, the mean of the runs", tuple(columns), tuple(rows))


def checks(found: Sequence[Row]) -> Table:
    """Theirs, ours, and whether they agree."""
    return Table(
        "Against the paper: relative error and suboptimality as log₁₀ at the last epoch",
        (
            Column("dataset", "dataset"),
            Column("steps", "steps"),
            Column("sampler", "sampler"),
            Column("measure", "measure"),
            Column("theirs", "paper", "number"),
            Column("ours", "ours", "number"),
            Column("tolerance", "tolerance"),
            Column("verdict", "verdict"),
            Column("note", "note"),
        ),
        tuple(
            (
                title(each.dataset),
                each.steps,
                each.sampler,
                MEASURE_NAMES[each.measure],
                each.theirs,
                each.ours,
                each.tolerance,
                each.verdict,
                each.note,
            )
            for each in found
        ),
    )


def times(group: Group) -> Table:
    """How long the runs took, steps apart from evaluation."""
    rows = []
    for rule in group.rules:
        for series in group.of(rule):
            steps, evaluation = series.seconds["steps"], series.seconds["evaluation"]
            options = series.spec.get("options") or {}
            words = ", ".join(f"{key} = {short(value, 40)}" for key, value in options.items())
            rows.append(
                (rule, series.label, len(series.seeds), steps, evaluation, series.spec.get("replacement"), words)
            )
    return Table(
        f"{group.title}: seconds a run, and what each sampler was given",
        (
            Column("steps", "steps"),
            Column("sampler", "sampler"),
            Column("runs", "runs", "integer"),
            Column("seconds_steps", "steps, s", "seconds"),
            Column("seconds_evaluation", "evaluation, s", "seconds"),
            Column("replacement", "replacement", "answer"),
            Column("options", "options"),
        ),
        tuple(rows),
    )


def growths(results: Results) -> Table:
    """The slope of the regret in log-log."""
    return Table(
        "The fitted slope of the regret, and the exponent of the bound",
        (
            Column("method", "method"),
            Column("runs", "runs", "integer"),
            Column("steps", "steps", "integer"),
            Column("slope", "slope", "number"),
            Column("bound", "bound"),
        ),
        tuple(
            (each.label, each.runs, float(each.steps[-1]), each.slope, str(BOUNDS.get(each.method, "")))
            for each in results.growths
        ),
    )


def power(value: float) -> str:
    """A number with a power of ten.

    >>> power(1.69e10).split()[2], power(0.002).split()[2]
    ('10¹⁰', '10⁻³')
    """
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}".replace("-", "−")


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def _plain(value: Any) -> Any:
    return _ANSWERS[value] if isinstance(value, bool) else value


def _cell(kind: str, value: Any) -> str:
    """A value as a reader wants it."""
    if _absent(value):
        return _NOTHING
    if isinstance(value, str):
        return value
    if kind == "answer":
        return _ANSWERS[value]
    if kind == "integer":
        return f"{value:,.0f}".replace(",", "\u202f")
    if kind == "percent":
        return f"{100.0 * value:.2f} %"
    if kind == "digits":
        return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0.0 else power(value)
    if kind == "seconds":
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    if kind == "power" or abs(value) >= 1000.0:
        return power(value)
    return f"{value:.{3 if kind == 'ratio' else 2}f}".replace("-", "−")


def _html_cell(column: Column, value: Any) -> str:
    if column.name == "note" and _absent(value):
        return "<td></td>"
    text = html.escape(_cell(column.kind, value))
    if column.name in ("verdict", "holds") and value in _MARKED:
        text = f'<span class="{_MARKED[value]}">{text}</span>'
    if column.kind in _NUMBERS and isinstance(value, str):
        return f'<td class="words">{text}</td>'
    return f"<td{_class(column)}>{text}</td>"


def _class(column: Column) -> str:
    return ' class="number"' if column.kind in _NUMBERS else ' class="note"' if column.name == "note" else ""
