"""Tables as CSV (all digits), Markdown and HTML (for readers)."""

import csv
import html
import io
from typing import Any

from avare.experiments.content import ANSWERS, Column, Table, absent

_MARKED: dict[Any, str] = {"agrees": "yes", "differs": "no", **ANSWERS}  # classes of the page, by verdict
_NUMBERS = ("integer", "number", "ratio", "digits", "percent", "power", "seconds")


def as_csv(table: Table) -> str:
    """Write all columns with all digits; an empty field where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    for row in table.rows:
        writer.writerow(
            ["" if absent(value) else ANSWERS[value] if isinstance(value, bool) else value for value in row]
        )
    return text.getvalue()


def as_markdown(table: Table) -> str:
    """Write rounded numbers, aligned to the right."""
    columns = _shown(table)
    lines = [
        [column.heading for _, column in columns],
        ["---:" if column.kind in _NUMBERS else "---" for _, column in columns],
        *([column.text(row[place]).replace("|", "\\|") for place, column in columns] for row in table.rows),
    ]
    return f"{table.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_html(table: Table) -> str:
    """Write a table in a frame that scrolls on narrow screens."""
    columns = _shown(table)
    head = "".join(f'<th scope="col"{_class(column)}>{html.escape(column.heading)}</th>' for _, column in columns)
    body = "".join(
        "<tr>" + "".join(_cell(column, row[place]) for place, column in columns) + "</tr>\n" for row in table.rows
    )
    caption = html.escape(table.caption)
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table>\n'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _shown(table: Table) -> list[tuple[int, Column]]:
    return [(place, column) for place, column in enumerate(table.columns) if column.kind != "detail"]


def _cell(column: Column, value: Any) -> str:
    if column.name == "note" and absent(value):
        return "<td></td>"
    text = html.escape(column.text(value))
    if column.name in ("verdict", "holds") and value in _MARKED:
        text = f'<span class="{_MARKED[value]}">{text}</span>'
    if column.kind in _NUMBERS and isinstance(value, str):
        return f'<td class="words">{text}</td>'
    return f"<td{_class(column)}>{text}</td>"


def _class(column: Column) -> str:
    return ' class="number"' if column.kind in _NUMBERS else ' class="note"' if column.name == "note" else ""
