"""Many runs, side by side: what is stored is not run again, and what is finished is stored at once."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from avare import _validation as validation
from avare.experiments.data import Data
from avare.experiments.runs import interrupts_at_once, perform
from avare.experiments.store import Claim, Record, Spec, Store, key_of

_LARGE = "1M"  # bytes from which an array is shared between processes rather than sent
_WAIT = 0.5  # seconds between two looks at what another process has claimed
_CONNECTING = "10s"


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A run to be done: what determines it, and its data."""

    spec: Spec
    data: Data
    optimum: float | None = None

    @property
    def key(self) -> str:
        """What its record is kept under."""
        return key_of(self.spec)


class Watch:
    """Is told how a sweep gets on; this one says nothing. Calls may come from any thread, one at a time."""

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """So many runs are wanted, and some of them are stored already."""

    def started(self, task: Task) -> None:
        """A run is under way."""

    def finished(self, task: Task, record: Record, *, here: bool = True) -> None:
        """A run is stored; by another process, if not here."""

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Nothing is left but what other processes have claimed."""

    def end(self) -> None:
        """No more runs."""


def sweep(
    tasks: Sequence[Task],
    store: Store,
    *,
    title: str = "",
    jobs: int = 1,
    dask: str | None = None,
    watch: Watch | None = None,
) -> list[Record]:
    """Do all runs that are not stored yet, and give the records of all, in order.

    Parameters
    ----------
    tasks
        The runs.
    store
        Where results are.
    title
        What this is, for the watch.
    jobs
        How many at a time, each in a process of its own; 1: in this one.
    dask
        The address of a Dask scheduler whose workers are to do the runs; they need no access to the store.
    watch
        Is told how it gets on.
    """
    jobs = validation.integer("jobs", jobs, at_least=1)
    watch = Watch() if watch is None else watch
    store.make()  # to fail now, if at all
    store.tidy()
    found = {task.key: store.get(task.spec) for task in tasks}
    watch.begin(title, tasks, [record for record in found.values() if record is not None])
    pending = [task for task in {task.key: task for task in tasks}.values() if found[task.key] is None]
    try:
        if pending:
            with _workers(jobs, dask, pending) as side_by_side:
                while pending:
                    done = _round(pending, store, side_by_side, watch)
                    found |= done
                    pending = [task for task in pending if task.key not in done]
                    if pending and not done:
                        watch.waiting(pending)
                        time.sleep(_WAIT)
    finally:
        watch.end()
    return [record for task in tasks if (record := found[task.key]) is not None]


def _round(pending: Sequence[Task], store: Store, side_by_side: Any, watch: Watch) -> dict[str, Record]:
    """Do what no other process has claimed; give what is stored then."""
    done: dict[str, Record] = {}
    claims: dict[str, Claim] = {}
    faults: list[Exception] = []

    def claimed() -> Iterator[Task]:
        # Asked for the next run by whatever thread has seen one end, where no exception would be noticed.
        try:
            for task in pending:
                if faults:
                    return  # what is under way is still waited for
                claim = store.claim(task.spec)
                if claim is None:
                    continue
                record = store.get(task.spec)  # by another process, since we looked
                if record is not None:
                    claim.release()
                    done[task.key] = record
                    watch.finished(task, record, here=False)
                    continue
                claims[task.key] = claim
                watch.started(task)
                yield task
        except Exception as error:
            faults.append(error)

    results = side_by_side(claimed())
    by_key = {task.key: task for task in pending}
    try:
        for record in results:
            if isinstance(record, Exception):
                faults.append(record)
                continue
            key = key_of(record["spec"])
            store.put(record)
            claims.pop(key).release()
            done[key] = record
            watch.finished(by_key[key], record)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that what is under way ends with it
            results.close()
        for claim in claims.values():
            claim.release()
    if faults:
        raise faults[0]
    return done


@contextmanager
def _workers(jobs: int, dask: str | None, tasks: Sequence[Task]) -> Iterator[Any]:
    """A function from tasks to their records, as they come."""
    if dask is None and jobs == 1:
        with interrupts_at_once():
            yield _one_by_one
        return
    import joblib

    def side_by_side(tasks: Iterable[Task], **arguments: Any) -> Any:
        return joblib.Parallel(return_as="generator_unordered", batch_size=1, **arguments)(
            joblib.delayed(_attempt)(task.spec, task.data.X, task.data.y, task.optimum) for task in tasks
        )

    if dask is None:
        # Read-only arrays would be another type to Numba, and all kernels compiled again: "c" may be
        # written to, and never is, so that workers share the memory.
        settings = joblib.parallel_config(
            backend="loky", inner_max_num_threads=1, initializer=_follow_the_parent, initargs=(os.getpid(),)
        )
        with settings:
            yield lambda tasks: side_by_side(tasks, n_jobs=jobs, pre_dispatch=jobs, max_nbytes=_LARGE, mmap_mode="c")
        return
    with _cluster(dask) as client:
        arrays = {id(array): array for task in tasks for array in (task.data.X, task.data.y)}
        with joblib.parallel_config(backend="dask", client=client, scatter=list(arrays.values())):
            cores = sum(client.ncores().values())
            yield lambda tasks: side_by_side(tasks, n_jobs=-1, pre_dispatch=max(1, cores))


def _one_by_one(tasks: Iterable[Task]) -> Iterator[Record | Exception]:
    for task in tasks:
        yield _attempt(task.spec, task.data.X, task.data.y, task.optimum)


def _attempt(*arguments: Any) -> Record | Exception:
    """The record of a run, or what went wrong, so that the runs beside it are not lost."""
    try:
        return perform(*arguments)
    except Exception as error:
        return error


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise ImportError("running on a Dask cluster needs distributed: pip install 'avare[dask]'") from None
    try:
        client = Client(address, timeout=_CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConnectionError(f"dask = {address!r}: no scheduler answers there: {error}") from error
    try:
        if not client.ncores():
            raise ConnectionError(f"dask = {address!r}: the scheduler has no workers")
        yield client
    finally:
        client.close()


def _follow_the_parent(parent: int) -> None:
    """In a worker: leave Ctrl-C, which reaches every process of a terminal, to the parent; and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WAIT)
    os._exit(1)  # nobody waits for a result any more
