"""What the command prints fits the terminal, and is printed as it is."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from avare.cli.display import display
from avare.cli.printing import folded, print_table
from avare.experiments import Table
from avare.experiments.data import Data
from avare.experiments.descent import descents

WIDE = Table.of(
    "",
    "dataset; steps; sampler; runs||integer; epochs||integer; suboptimality||digits; relative_error||digits; "
    "regret||power; took|a run",
    [
        {
            "dataset": "a long name[red]of a file",
            "steps": "decreasing",
            "sampler": "Calibrated",
            "runs": 3,
            "epochs": 20,
            "suboptimality": 0.000123,
            "relative_error": 0.4567,
            "regret": 1.69e10,
            "took": "1 h 20 min",
        }
    ],
)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_terminal_cuts_a_digit_or_a_name(width: int) -> None:
    stream = io.StringIO()
    print_table(Console(file=stream, force_terminal=True, width=width, color_system=None), WIDE)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and "…" not in stream.getvalue()
    for text in ("a long name[red]of a file", "Calibrated", "1.23 × 10⁻⁴", "0.457", "1.69 × 10¹⁰", "1 h 20 min"):
        assert any(text in line for line in lines)
    tables = stream.getvalue().count("Calibrated")
    assert tables == {60: 1, 80: 4, 100: 2, 200: 1}[width]  # at 60, a line for each cell


def test_names_are_printed_as_they_are() -> None:
    data = Data("x[red]y", np.ones((4, 2)), np.arange(4) % 2, "d")
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 2, "l2": 1.0}
    tasks = descents("compare", data, "logistic", 0.0, runs=1, rules=["constant"], samplers=["Uniform"], **settings)
    for terminal in (False, True):
        stream = io.StringIO()
        shown = display(Console(file=stream, force_terminal=terminal, width=80, color_system=None), 1)
        record: dict[str, Any] = {"spec": tasks[0].spec, "key": tasks[0].key}
        shown.begin("runs", tasks, [])
        shown.started(tasks[0])
        shown.finished(tasks[0], {**record, "seconds": {"steps": 1.0}})
        shown.end()
        assert "x[red]y" in stream.getvalue() and "…" not in stream.getvalue()


def test_long_notes_are_folded_at_words() -> None:
    note = "run for 3 epochs, the paper for 100; batches of 32, the paper's of 128"
    rows = [{"dataset": "MNIST", "steps": "decreasing", "ours": 1.5, "verdict": "too few runs", "note": note}]
    stream = io.StringIO()
    table = Table.of("", "dataset; steps; ours||number; verdict; note", rows)
    print_table(Console(file=stream, force_terminal=True, width=80, color_system=None), table)
    text = stream.getvalue()
    assert text.count("MNIST") == 1 and all(len(line) <= 80 for line in text.splitlines())
    assert all(word in text for word in note.split())


def test_sentences_are_folded_at_words_on_a_terminal_only() -> None:
    text = "Columns of a.csv:\n  city: 3 categories of a long-hyphenated kind\nPage: a/very/long/path/to/index.html"
    assert folded(Console(file=io.StringIO(), width=20), text) == text
    lines = folded(Console(file=io.StringIO(), force_terminal=True, width=24), text).splitlines()
    assert lines == [
        "Columns of a.csv:",
        "  city: 3 categories of",
        "    a long-hyphenated",
        "    kind",
        "Page:",
        "a/very/long/path/to/index.html",  # whole, to be copied
    ]
