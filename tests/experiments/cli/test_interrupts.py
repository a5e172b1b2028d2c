"""Ctrl-C ends the command with code 130 and one line, whenever it comes; `make campaign` tries random moments."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import avare
from avare import _interrupts
from avare.experiments.cli import main

# Something that ignores the exception, and then an import that fails.
INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
raise OSError
"""


def started(folder: Path, *arguments: str, command: Sequence[str] = ("-m", "avare"), **modules: str) -> tuple[int, str]:
    """Run the command with modules that come before the installed ones; return its code and what it says."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    paths = os.pathsep.join([str(folder), str(Path(avare.__file__).parents[1])])
    whole = [sys.executable, *command, *arguments]
    found = subprocess.run(whole, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    return found.returncode, found.stderr


@pytest.mark.parametrize("module", ["numpy", "numba", "typer"])
def test_during_imports(module: str, tmp_path: Path) -> None:
    assert started(tmp_path, "--version", **{module: INTERRUPTED}) == (130, "avare: interrupted\n")


def test_after_the_end(tmp_path: Path) -> None:
    # The command is complete: its own code says so, and nothing is written over its result.
    late = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
    assert started(tmp_path, "--version", sitecustomize=late) == (0, "")


def test_in_code_that_is_made_from_text(tmp_path: Path) -> None:
    # Numba and dataclasses make such code. Python then wants to end by the signal instead of the exit code.
    source = """
import os, signal
from avare.experiments.cli import application
application.application = lambda *arguments, **options: exec("os.kill(os.getpid(), signal.SIGINT)")
"""
    (tmp_path / "avare").write_text(
        "import sys\nfrom avare.experiments.cli import main\nimport text\nsys.exit(main())\n"
    )
    assert started(tmp_path, command=[str(tmp_path / "avare")], text=source) == (130, "avare: interrupted\n")


def test_twice(tmp_path: Path) -> None:
    # Something does not end: a second Ctrl-C ends it.
    slow = """
import os, signal, time
from avare.experiments.cli import application
def run(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)
application.run = run
"""
    (tmp_path / "avare").write_text(
        "import sys\nfrom avare.experiments.cli import main\nimport slow\nsys.exit(main())\n"
    )
    assert started(tmp_path, command=[str(tmp_path / "avare")], slow=slow) == (130, "avare: interrupted\n")


def test_an_interrupt_in_a_destructor_comes_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def run(arguments: list[str]) -> int:
        Interrupting()  # Python ignores the exception
        time.sleep(10.0)
        return 0

    hook = sys.unraisablehook
    monkeypatch.setattr("avare.experiments.cli.application.run", run)
    assert main(["datasets"]) == 130 and sys.unraisablehook is hook
    assert capsys.readouterr().err == "avare: interrupted\n"


def test_an_interrupt_that_something_swallows_still_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def swallow(arguments: list[str]) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setattr("avare.experiments.cli.application.run", swallow)
    assert main(["datasets"]) == 130

    def stop(arguments: list[str]) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setattr("avare.experiments.cli.application.run", stop)
    assert main(["datasets"]) == 130
    assert capsys.readouterr().err == "avare: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("argument", "started_with", "expected"),
    [
        ("/bin/avare", ["python", "/bin/avare", "report"], True),
        ("avare.exe", ["python.exe", "avare.exe"], True),
        ("-m", ["python", "-m", "avare"], True),
        ("-m", ["python", "-m", "pytest"], False),
        ("train.py", ["python", "train.py", "avare"], False),
        ("/bin/avare", ["python", "-m", "worker"], False),  # workers have the arguments of their parent
    ],
)
def test_other_programs_keep_their_handlers(
    argument: str, started_with: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    monkeypatch.setattr(sys, "orig_argv", started_with)
    assert _interrupts.is_command() is expected


def test_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "isatty", lambda stream: True)
    monkeypatch.setattr(os, "write", lambda stream, text: written.append((stream, text)))
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit, match="130"):
        _interrupts.end_at_once(signal.SIGINT, None)
    assert written == [(2, b"\x1b[?25havare: interrupted\n")]
