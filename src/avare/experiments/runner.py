"""Many runs, side by side: stored runs are not done again, and each finished run is stored at once."""

import itertools
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from avare import _validation as validation
from avare._optional import require
from avare.experiments.base import Experiment, Stages, Task, of_kind
from avare.experiments.store import Record, Spec, Store, key_of

_LARGE = "1M"  # bytes from which an array is shared between processes rather than sent
_WAIT = 0.5  # seconds between two looks of a worker at its parent


class Watch:
    """Receives the progress of a sweep; this one ignores it. Calls may come from any thread, one at a time."""

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Receive all runs, and the records of those that are stored already."""

    def finished(self, task: Task, record: Record) -> None:
        """Receive a record that has been stored."""

    def end(self) -> None:
        """End: no more runs follow."""


def execute(experiments: Sequence[Stages], store: Store, *, jobs: int = 1, watch: Watch | None = None) -> list[Record]:
    """Do all stages of some experiments, one after the other; return all their records.

    Each experiment can refuse its request before the first of them runs.

    Parameters
    ----------
    experiments : sequence of Stages
        As `Experiment.stages` returns them.
    store : Store
        Where results are kept.
    jobs : int, default=1
        How many runs to do at a time, each in its own process; 1: in this process.
    watch : Watch, optional
        Receives the progress.
    """
    records: list[Record] = []
    begun = [(stages, next(stages, None)) for stages in experiments]
    for stages, stage in begun:
        with suppress(StopIteration):  # after the last
            while stage is not None:
                done = sweep(stage.tasks, store, stage.title, jobs=jobs, watch=watch)
                records += done
                stage = stages.send(done)
    return records


def sweep(
    tasks: Sequence[Task], store: Store, title: str = "", *, jobs: int = 1, watch: Watch | None = None
) -> list[Record]:
    """Do all runs that are not stored yet; return the records of all, in order. The title is for the watch."""
    jobs, watch = validation.integer("jobs", jobs, at_least=1), watch or Watch()
    store.make()  # so that a bad folder fails before any run
    found = {task.key: store.get(task.spec) for task in tasks}
    watch.begin(title, tasks, [record for record in found.values() if record is not None])
    pending = {task.key: task for task in tasks if found[task.key] is None}
    faults: list[Exception] = []  # after the first, runs under way still finish
    try:
        made = _side_by_side(itertools.takewhile(lambda _: not faults, pending.values()), min(jobs, len(pending)))
        try:
            for record in made:
                if isinstance(record, Exception):
                    faults.append(record)
                    continue
                key = key_of(record["spec"])
                store.put(record)
                found[key] = record
                watch.finished(pending[key], record)
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # joblib: runs under way are cancelled
                made.close()
    finally:
        watch.end()
    if faults:
        raise faults[0]
    return [record for task in tasks if (record := found[task.key]) is not None]


def perform(
    spec: Spec, X: Any, y: NDArray[Any], optimum: float | None = None, owner: Experiment | None = None
) -> Record:
    """Do a run from its spec, data and, if it is known, the least objective, in any process; return its record.

    The owner is by default the experiment that is registered for ``spec["experiment"]``. BLAS uses one thread, so that
    runs side by side do not disturb each other, and so that the numbers do not depend on how many there are.
    """
    threadpool_limits = require("threadpoolctl", "a run").threadpool_limits
    with threadpool_limits(1), warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):  # of what diverges or does not converge: records say it
            warnings.simplefilter("ignore", category)
        result = (owner or of_kind(spec["experiment"])).run(spec, X, y, optimum)
    return {"spec": dict(spec), "where": surroundings(), **result}


def surroundings(*packages: str) -> dict[str, Any]:
    """Return versions (of more packages, if named), machine and date, without the machine's name."""
    versions = {package: version(package) for package in ("avare", "numpy", "numba", "scipy", *packages)}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    place = Path("/proc/cpuinfo")
    lines = place.read_text().splitlines() if place.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0]}, {len(models)} cores" if models else platform.processor() or "unknown processor"


def _side_by_side(tasks: Iterable[Task], jobs: int) -> Any:
    """Return a generator of records, or of the exceptions of runs that failed, in the order in which they finish."""
    if jobs <= 1:
        return (_attempt(task, of_kind(task.spec["experiment"])) for task in tasks)
    joblib = require("joblib", "running side by side")
    # Read-only arrays are another type to Numba: it would compile all kernels again. Memory maps of mode "c" can be
    # written to, and never are, so that workers share the memory.
    how = {"batch_size": 1, "pre_dispatch": jobs, "max_nbytes": _LARGE, "mmap_mode": "c"}
    workers = {"inner_max_num_threads": 1, "initializer": _follow_the_parent, "initargs": (os.getpid(),)}
    with joblib.parallel_config(backend="loky", **workers), _interrupts_later():
        calls = (joblib.delayed(_attempt)(task, of_kind(task.spec["experiment"])) for task in tasks)
        return joblib.Parallel(jobs, return_as="generator_unordered", **how)(calls)


def _attempt(task: Task, owner: Experiment) -> Record | Exception:
    """Return the record of a run, or its exception, so that the other runs are not lost.

    A worker process may not have registered the experiment: it is passed.
    """
    try:
        return perform(task.spec, task.data.X, task.data.y, task.optimum, owner)
    except Exception as error:
        return error


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Block Ctrl-C while workers start. They inherit this: before their first run, they could not handle it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which workers share; if they started it, it would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow_the_parent(parent: int) -> None:
    """In a worker: leave Ctrl-C, which every process of a terminal receives, to the parent, and exit with it."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WAIT)
    os._exit(1)  # the results have no receiver any more
