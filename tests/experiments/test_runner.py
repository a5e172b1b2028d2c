"""Only what is missing is run, whatever is stored or fails; side by side as one by one."""

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from avare.experiments import Request, Store, sgd_runs
from avare.experiments import runner as module
from avare.experiments.base import Stage, Stages, Task
from avare.experiments.comparison import compare, summary
from avare.experiments.data import Data, obtain
from avare.experiments.paper import Paper, descents
from avare.experiments.runner import Watch, execute, perform, sweep
from avare.experiments.store import Record, StoreError, key_of
from avare.solvers import SolverInterrupted, sgd

REQUEST = Request(words=("synthetic",), runs=2, epochs=2, samplers=("Uniform", "Avare"))


class Notes(Watch):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        self.said.append(f"begin {len(tasks)} {len(stored)}")

    def finished(self, task: Task, record: Record) -> None:
        self.said.append(f"finished {task.key[:8]}")

    def end(self) -> None:
        self.said.append("end")

    def count(self, what: str) -> int:
        return sum(text.startswith(what) for text in self.said)


@pytest.fixture(scope="module")
def data() -> Data:
    return obtain("synthetic")[0]


def tasks_of(data: Data, seeds: int = 3) -> list[Task]:
    return descents(data, 1.0, Request(runs=seeds, epochs=2, rules=("decreasing",), samplers=("Avare",)))


def reproduce(store: Store, request: Request = REQUEST, **workers: Any) -> list[Record]:
    return execute([Paper().stages(request)], store, **workers)


def numbers(records: Sequence[Record]) -> list[Any]:
    """What does not depend on the clock."""
    return [
        (record["spec"], record.get("facts"), {k: v for k, v in record.get("trace", {}).items() if k != "seconds"})
        for record in records
    ]


def test_stored_runs_are_not_done_again(tmp_path: Path) -> None:
    store, notes = Store(tmp_path), Notes()
    first = reproduce(store, watch=notes)
    assert notes.count("finished") == 1 + 8
    assert len(first) == 9 and {record["status"] for record in first} == {"finished"}
    notes = Notes()
    again = reproduce(store, watch=notes)
    assert notes.said == ["begin 1 1", "end", "begin 8 8", "end"]
    assert numbers(again) == numbers(first)
    (tmp_path / f"{key_of(first[5]['spec'])}.json").unlink()
    place = tmp_path / f"{key_of(first[7]['spec'])}.json"
    place.write_text(place.read_text().replace("7", "8"))
    notes = Notes()
    assert numbers(reproduce(store, watch=notes)) == numbers(first)
    assert notes.count("finished") == 2 and len(store.damaged()) == 1
    notes = Notes()
    reproduce(store, replace(REQUEST, runs=3), watch=notes)
    assert notes.count("finished") == 4  # the third seed only
    assert [path.suffix for path in tmp_path.iterdir() if path.suffix != ".json" and ".damaged" not in path.name] == []


def test_two_jobs_give_the_same_numbers_as_one(tmp_path: Path) -> None:
    one = reproduce(Store(tmp_path / "one"), jobs=1)
    two = reproduce(Store(tmp_path / "two"), jobs=2)
    assert numbers(one) == numbers(two)


def test_large_data_are_shared_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 100)  # bytes: these are large now
    data, loss = obtain("digits")
    records = compare(data, loss, Store(tmp_path / "shared"), epochs=1, runs=2, jobs=2)
    assert numbers(records) == numbers(compare(data, loss, Store(tmp_path / "own"), epochs=1, runs=2))


def test_a_table_alone_and_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    from avare.experiments import paper as reproduction

    monkeypatch.setattr(reproduction, "SETTINGS", {"synthetic": reproduction.SETTINGS["synthetic"]})
    (record,) = reproduce(Store(tmp_path), Request(words=("table",)))
    assert record["facts"]["n"] == 100
    with pytest.raises(ValueError, match="name = 'Best'"):
        reproduce(Store(tmp_path), replace(REQUEST, samplers=("Best",)))
    with pytest.raises(ValueError, match="jobs = 0"):
        sweep([], Store(tmp_path), jobs=0)
    assert sweep([], Store(tmp_path)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_ends_the_sweep_and_loses_nothing(tmp_path: Path, data: Data, jobs: int) -> None:
    tasks = tasks_of(data, 3)
    broken = Task({**tasks[2].spec, "sampler": "Best"}, data)
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="name = 'Best'"):
        sweep([*tasks[:2], broken], store, jobs=jobs)
    assert len(store.read()[0]) == 2
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}
    assert len(sweep(tasks, store, jobs=jobs)) == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_store_ends_the_sweep(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    store, tasks = Store(tmp_path), tasks_of(data, 4)

    def put(record: Any) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(store, "put", put)
    notes = Notes()
    with pytest.raises(StoreError, match="no space left"):
        sweep(tasks, store, jobs=jobs, watch=notes)
    assert notes.said[-1] == "end"


def test_an_interrupted_run_is_not_stored(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, store, done = tasks_of(data, 3), Store(tmp_path), []
    real = perform

    def failing(*arguments: Any) -> Record:
        done.append(arguments)
        if len(done) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "perform", failing)
    with pytest.raises(KeyboardInterrupt):
        sweep(tasks, store)
    assert len(store.read()[0]) == 1


def test_ctrl_c_in_a_comparison_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, loss = obtain("synthetic")
    store, runs = Store(tmp_path), []

    def interrupt(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments)
        if len(runs) == 4:  # the second run, after one step to compile
            options["callback"] = lambda progress: signal.raise_signal(signal.SIGINT)
        return sgd(*arguments, **options)

    monkeypatch.setattr(sgd_runs, "sgd", interrupt)
    with pytest.raises(SolverInterrupted) as caught:
        compare(data, loss, store, samplers=["Uniform"], epochs=2, runs=2, batch_size=4)
    assert caught.value.run.status == "interrupted" and caught.value.run.epochs < 2
    assert sorted(record["spec"]["experiment"] for record in store.read()[0]) == ["compare", "optimum"]
    monkeypatch.undo()
    records = compare(data, loss, store, samplers=["Uniform"], epochs=2, runs=2, batch_size=4)
    assert {record["status"] for record in records} == {"finished"}


def test_comparisons(tmp_path: Path) -> None:
    data, loss = obtain("digits")
    store = Store(tmp_path)
    facts, *runs = compare(
        data,
        loss,
        store,
        samplers=["Avare", "Stratified", "Mabs", "Uniform"],
        epochs=2,
        runs=2,
        batch_size=64,
        l2=0.5,
    )
    assert facts["facts"]["n"] == 1797 and [run["spec"]["experiment"] for run in runs] == ["compare"] * 8
    assert [run["spec"]["replacement"] for run in runs[:4]] == [True, False, True, True]
    assert runs[0]["spec"]["options"]["p_min"] == pytest.approx(1 / (5 * 1797))
    rows = {row["sampler"]: row for row in summary([facts, *runs])}
    assert list(rows) == ["Avare", "Uniform", "Mabs", "Stratified"]
    ends = [run["trace"]["suboptimality"][-1] for run in runs if run["spec"]["sampler"] == "Uniform"]
    assert rows["Uniform"]["suboptimality"] == pytest.approx(sum(ends) / 2)
    assert rows["Uniform"]["verdict"] == {} and set(rows["Avare"]["verdict"]) == {"epochs", "seconds"}
    with pytest.raises(ValueError, match="batch_size = 2000: must be at most 1797, the number of examples"):
        compare(data, loss, store, batch_size=2000)
    diverged = [{**run, "status": "diverged"} if run["spec"]["sampler"] == "Avare" else run for run in runs]
    (row,) = [row for row in summary(diverged) if row["sampler"] == "Avare"]
    assert row["diverged"] == row["runs"] == 2 and "suboptimality" not in row
    assert row["verdict"]["epochs"]["words"] == "inconclusive (a run diverged)"


def test_a_stage_depends_on_the_records_of_the_one_before(tmp_path: Path, data: Data) -> None:
    seen: list[list[Record]] = []

    def stages() -> Stages:
        seen.append((yield Stage("first", tasks_of(data, 1))))
        seen.append((yield Stage("second", tasks_of(data, 2))))

    def nothing() -> Stages:
        yield from ()

    notes = Notes()
    records = execute([stages()], Store(tmp_path), watch=notes)
    assert [len(each) for each in seen] == [1, 2] and records == [*seen[0], *seen[1]]
    assert notes.said[:1] == ["begin 1 0"] and "begin 2 1" in notes.said
    assert execute([nothing()], Store(tmp_path)) == []
    assert len(execute([stages(), nothing(), stages()], Store(tmp_path))) == 6


def test_a_bad_request_is_refused_before_anything_runs(tmp_path: Path, data: Data) -> None:
    def good() -> Stages:
        yield Stage("good", tasks_of(data, 1))

    def refused() -> list[Task]:
        raise ValueError("no such plan")

    def bad() -> Stages:
        yield Stage("bad", refused())

    with pytest.raises(ValueError, match="no such plan"):
        execute([good(), bad()], Store(tmp_path))
    assert not list(tmp_path.iterdir())


def test_workers_start_with_interrupts_held_back() -> None:
    child = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    found = []

    def start() -> None:
        with module._interrupts_later():
            signal.raise_signal(signal.SIGINT)
            found.append(subprocess.check_output([sys.executable, "-S", "-c", child], text=True))

    with pytest.raises(KeyboardInterrupt):
        start()
    assert found == ["True\n"]


def test_a_worker_follows_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    parents, ended = [7, 7, 1], threading.Event()
    monkeypatch.setattr(module, "_WAIT", 0.0)
    monkeypatch.setattr(os, "getppid", lambda: parents.pop(0) if parents else 1)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    before = signal.getsignal(signal.SIGINT)
    try:
        module._follow_the_parent(7)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.wait(30) and parents == []
