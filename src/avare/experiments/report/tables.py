"""Tables as CSV (all digits) and Markdown (for readers)."""

import csv
import io

from avare.experiments.document import Table, absent

NUMBERS = ("integer", "number", "ratio", "digits", "percent", "power", "seconds")
"""The kinds of columns that are aligned to the right."""


def as_csv(table: Table) -> str:
    """Write all columns with all digits; an empty field where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    for row in table.rows:
        writer.writerow(["" if absent(value) else value for value in row])
    return text.getvalue()


def as_markdown(table: Table) -> str:
    """Write rounded numbers, aligned to the right."""
    columns, rows = shown(table).columns, shown(table).rows
    lines = [
        [column.heading for column in columns],
        ["---:" if column.kind in NUMBERS else "---" for column in columns],
        *([column.text(value).replace("|", "\\|") for column, value in zip(columns, row, strict=True)] for row in rows),
    ]
    return f"{table.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(table: Table) -> Table:
    """Return a table without the columns that only CSV files have."""
    return table.without(*(column.name for column in table.columns if column.kind == "detail"))
