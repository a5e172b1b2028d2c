"""What the command prints fits the terminal, and is printed as it is."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from avare.cli.display import display
from avare.cli.printing import print_table
from avare.experiments import Table
from avare.experiments.data import Data
from avare.experiments.paper.plan import Extent, descent_tasks

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
    assert ("Calibrated" in stream.getvalue()) and (stream.getvalue().count("Calibrated") > 1) == (width < 160)


def test_names_are_printed_as_they_are() -> None:
    data = Data("x[red]y", np.ones((4, 2)), np.arange(4) % 2, "d")
    tasks = descent_tasks("reproduce", data, "logistic", 1.0, Extent(1, 3, ("constant",), ("Uniform",)))
    for terminal in (False, True):
        stream = io.StringIO()
        shown = display(Console(file=stream, force_terminal=terminal, width=80, color_system=None), 1)
        record: dict[str, Any] = {"spec": tasks[0].spec, "key": tasks[0].key}
        shown.begin("runs", tasks, [])
        shown.started(tasks[0])
        shown.finished(tasks[0], {**record, "seconds": {"steps": 1.0}})
        shown.end()
        assert "x[red]y" in stream.getvalue() and "…" not in stream.getvalue()
