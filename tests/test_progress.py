import io
import os
from types import SimpleNamespace

import pytest

from avare import _progress as progress
from avare._progress import Line


class Clock:
    """Time that passes on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))  # pytest has its own way with sys.stderr
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((30, 24)))
    return terminal


def test_plain_lines_are_added_every_five_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Line("counting") as line:
        for number in range(13):
            line.say(f"at {number}")
            clock.now += 1.0
    assert capsys.readouterr() == ("", "counting: at 5 [5 s]\ncounting: at 10 [10 s]\ncounting: at 12 [13 s]\n")


def test_a_terminals_line_is_written_over(clock: Clock, terminal: Terminal) -> None:
    with Line("counting") as line:
        for number in range(4):
            line.say(f"at {number}")
            clock.now += 0.0625
    assert terminal.getvalue() == "".join(f"\r\x1b[2Kcounting: at {number} [0 s]" for number in (2, 3)) + "\n"


def test_a_terminals_line_is_cut_to_fit(clock: Clock, terminal: Terminal) -> None:
    with Line("counting") as line:
        line.say("x" * 100)
    assert terminal.getvalue() == "\r\x1b[2Kcounting: " + "x" * 19 + "\n"  # 29 of 30 columns


def test_nothing_said_nothing_written(terminal: Terminal) -> None:
    with Line("counting"):
        pass
    assert terminal.getvalue() == ""


def test_not_shown_writes_nothing(clock: Clock, terminal: Terminal) -> None:
    with Line("counting", shown=False) as line:
        line.say("one")
        clock.now += 10.0
        line.say("two")
    assert terminal.getvalue() == ""


def test_an_error_passes_and_the_line_ends(clock: Clock, terminal: Terminal) -> None:
    def fail() -> None:
        with Line("counting") as line:
            line.say("one")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert terminal.getvalue().endswith("counting: one [0 s]\n")
