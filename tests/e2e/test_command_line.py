"""The command as people and machines run it: on a terminal, through a pipe, killed, interrupted, twice at once."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import numba
import psutil
import pytest

from avare.experiments import Store

pytestmark = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT), reason="minutes without compiled code; the compiled run tests it"
)
COMMAND = [sys.executable, "-m", "avare"]
# Vrb goes step by step in Python, so that each run takes about a second: long enough to be killed in.
SWEEP = ["reproduce", "synthetic", "--runs", "2", "--samplers", "Vrb,Avare", "--steps", "decreasing", "--out", "r"]
RECORDS = 1 + 4


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=200)


def numbers(folder: Path) -> dict[str, Any]:
    """What is stored, without what depends on the clock."""
    found = {}
    for record in Store(folder).read()[0]:
        trace = {name: values for name, values in record.get("trace", {}).items() if name != "seconds"}
        found[record["key"]] = (trace, record.get("facts"), record.get("optimum"))
    return found


def wait_for_records(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.json"))) < count:
        assert time.monotonic() < deadline, "nothing is being stored"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    found = run(folder, *SWEEP, "--jobs", "2")
    assert found.returncode == 0, found.stderr
    return numbers(folder / "r" / "runs")


@pytest.mark.slow
def test_killed_and_started_again(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    store = tmp_path / "r" / "runs"
    with subprocess.Popen([*COMMAND, *SWEEP], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sweep:
        wait_for_records(store, 2)
        workers = psutil.Process(sweep.pid).children(recursive=True)
        sweep.kill()
        sweep.communicate()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive  # no worker is left
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in store.glob("*.json")}
    assert 2 <= len(before) < RECORDS
    found = run(tmp_path, *SWEEP)
    assert found.returncode == 0, found.stderr
    assert f"runs: 4 wanted, {len(before) - 1} stored already" in found.stderr
    assert numbers(store) == undisturbed  # nothing is lost, and all is as it would have been
    for name, (content, changed) in before.items():  # nothing was run twice
        assert ((store / name).read_bytes(), (store / name).stat().st_mtime_ns) == (content, changed)
    assert not list(store.glob("*.damaged"))
    again = run(tmp_path, *SWEEP)
    assert again.returncode == 0 and "runs: 4 wanted, 4 stored already" in again.stderr


@pytest.mark.slow
def test_two_at_once_do_not_harm_each_other(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    sweeps = [
        subprocess.Popen(
            [*COMMAND, *SWEEP, "--jobs", "1"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    texts = [sweep.communicate(timeout=200)[1] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], texts
    assert numbers(tmp_path / "r" / "runs") == undisturbed


class Terminal:
    """A command on its own terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "150"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        """Read all the time, as a terminal does: otherwise the command would have to wait."""
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:  # the other end was closed
                return
            if not part:
                return
            self.text += part.decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def wait(self) -> int:
        code = self.process.wait(timeout=200)
        self._reader.join(timeout=60)
        os.close(self._master)
        return code


def test_on_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "compare", "digits", "--runs", "2", "--epochs", "2", "--out", "r")
    assert terminal.wait() == 0
    assert "\x1b[" in terminal.text and "4/4" in terminal.text  # a display that is written over
    assert "wanted" not in terminal.text  # no plain lines
    assert "Results: r/runs" in terminal.text
    failing = Terminal(tmp_path, "compare", "nothing")
    assert failing.wait() == 1
    assert failing.text.strip().startswith("avare: nothing: neither a file") and "Traceback" not in failing.text


@pytest.mark.slow
def test_interrupted_on_a_terminal(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    terminal = Terminal(tmp_path, *SWEEP)
    wait_for_records(tmp_path / "r" / "runs", 2)
    workers = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.press(b"\x03")  # which every process of the terminal gets
    assert terminal.wait() == 130
    kept = len(list((tmp_path / "r" / "runs").glob("*.json")))
    assert f"avare: interrupted; {kept} results are stored" in terminal.text and "Traceback" not in terminal.text
    assert 2 <= kept <= RECORDS
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert run(tmp_path, *SWEEP).returncode == 0
    assert numbers(tmp_path / "r" / "runs") == undisturbed


def test_interrupted_in_one_process(tmp_path: Path) -> None:
    arguments = [*COMMAND, *SWEEP, "--jobs", "1"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        wait_for_records(tmp_path / "r" / "runs", 2)
        sweep.send_signal(signal.SIGINT)
        _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130 and "avare: interrupted; " in err and "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_ended_by_a_signal(tmp_path: Path, number: signal.Signals, code: int) -> None:
    arguments = [*COMMAND, *SWEEP, "--jobs", "2", "--runs", "50"]  # many, so that it has not ended before the signal
    with subprocess.Popen(
        arguments,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # under nohup it would be ignored
    ) as sweep:
        wait_for_records(tmp_path / "r" / "runs", 2)
        sweep.send_signal(number)
        _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == code and "Traceback" not in err
    if number != signal.SIGKILL:  # of which joblib says that it cleans up
        assert "avare: interrupted; " in err and "resource_tracker" not in err


def test_through_a_pipe(tmp_path: Path) -> None:
    found = run(tmp_path, "compare", "digits", "--runs", "1", "--epochs", "1", "--json")
    assert found.returncode == 0 and "\x1b" not in found.stdout + found.stderr
    assert {row["sampler"] for row in json.loads(found.stdout)["runs"]} == {"Uniform", "Calibrated"}
    assert "runs: [2/2] " in found.stderr
    head = subprocess.run(
        f"{' '.join(COMMAND)} --help | head -1", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert head.returncode == 0 and "Traceback" not in head.stderr
