"""One run: done from its spec and data alone, in any process."""

import platform
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.base import Experiment
from avare.experiments.registry import of_kind
from avare.experiments.store import Record, Spec
from avare.problems import ToleranceWarning
from avare.samplers import LimitWarning
from avare.solvers import DivergenceWarning


def perform(
    spec: Spec, X: Any, y: NDArray[Any], optimum: float | None = None, experiment: Experiment | None = None
) -> Record:
    """Do a run from its spec, data and, if it is known, the least objective; return its record.

    The experiment is by default the one that is registered for ``spec["experiment"]``. BLAS uses one thread, so that
    runs side by side do not disturb each other, and so that the numbers do not depend on how many there are.
    """
    threadpool_limits = require("threadpoolctl", "a run").threadpool_limits
    owner = of_kind(spec["experiment"]) if experiment is None else experiment
    with interrupts_at_once(), threadpool_limits(1), warnings.catch_warnings():
        for category in (LimitWarning, DivergenceWarning, ToleranceWarning):  # records say it
            warnings.simplefilter("ignore", category)
        result = owner.run(spec, X, y, optimum)
    return {"spec": dict(spec), "where": surroundings(), **result}


@contextmanager
def interrupts_at_once() -> Iterator[None]:
    """Make Ctrl-C raise at once; a solver alone would stop early, and the next run would start."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def surroundings(*packages: str) -> dict[str, Any]:
    """Return versions (of more packages, if named), machine and date, without the machine's name."""
    versions = {"python": platform.python_version()}
    for package in ("avare", "numpy", "numba", "scipy", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0]}, {len(models)} cores" if models else "unknown processor"
