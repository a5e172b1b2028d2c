"""What the command prints fits the terminal, and is printed as it is."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from avare.experiments import Table, Task
from avare.experiments.cli.output import Display, print_table, say
from avare.experiments.data import Data
from avare.experiments.sgd_runs import Setting, descent_spec

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


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_terminal_cuts_a_digit_or_a_name(width: int) -> None:
    stream = io.StringIO()
    print_table(Console(file=stream, force_terminal=True, width=width, color_system=None), WIDE)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and "…" not in stream.getvalue()
    for number in ("1.23 × 10⁻⁴", "0.457", "1.69 × 10¹⁰"):
        assert any(number in line for line in lines)
    for word in ("a", "long", "name[red]of", "file", "decreasing", "Calibrated", "1", "h", "20", "min"):
        assert any(word in line for line in lines)
    tables = stream.getvalue().count("Calibrated")
    assert tables == 1 and ("suboptimality: 1.23 × 10⁻⁴" in lines) == (width < 200)  # a line for each cell


def test_what_all_rows_have_in_common_is_printed_once() -> None:
    rows = [
        {"dataset": "mnist", "sampler": name, "runs": 3, "order": "Uniform > Mabs > Vrb > Avare", "regret": regret}
        for name, regret in (("Uniform", 1.69e10), ("Avare", 1.2e10))
    ]
    table = Table.of("Where they end", "dataset; sampler; runs||integer; order||number; regret||power", rows)
    texts = []
    for width in (100, 36):
        stream = io.StringIO()
        print_table(Console(file=stream, force_terminal=True, width=width, color_system=None), table)
        texts.append(stream.getvalue())
        assert texts[-1].startswith("Where they end\n┏" if width == 100 else "Where they end\ndataset: mnist; runs: 3;")
        assert all(len(line) <= width for line in texts[-1].splitlines())
    assert [text.count("Mabs") for text in texts] == [2, 1] and "│ Uniform │ 1.69 × 10¹⁰ │" in texts[1]


def test_names_are_printed_as_they_are() -> None:
    data = Data("x[red]y", np.ones((4, 2)), np.arange(4) % 2)
    tasks = [Task(descent_spec("compare", data, Setting("logistic", 3, 2), "Uniform", "constant", 0), data)]
    for terminal in (False, True):
        stream = io.StringIO()
        shown = Display(Console(file=stream, force_terminal=terminal, width=80, color_system=None))
        record: dict[str, Any] = {"spec": tasks[0].spec, "key": tasks[0].key}
        shown.begin("runs", tasks, [])
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
    text = "A verdict of a [long-hyphenated] kind\nPage: a/very/long/path/to/index.html"
    plain, narrow = io.StringIO(), io.StringIO()
    say(Console(file=plain, width=20), text)
    assert plain.getvalue() == f"{text}\n"
    say(Console(file=narrow, force_terminal=True, width=24, color_system=None), text)
    assert [line.rstrip() for line in narrow.getvalue().splitlines()] == [
        "A verdict of a",
        "[long-hyphenated] kind",
        "Page:",
        "a/very/long/path/to/index.html",  # whole, to be copied
    ]
