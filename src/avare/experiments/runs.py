"""What a run is: made from its specification and data alone, wherever it is run."""

import math
import platform
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import diagnostics, problems, schedules
from avare.experiments.data import Loss
from avare.experiments.store import Record, Spec
from avare.problems import Linear
from avare.samplers import LimitWarning, Sampler, get
from avare.schedules import Schedule
from avare.solvers import DivergenceWarning, sgd, sgld
from avare.solvers.trace import COLUMNS, Trace

REVISION = 1  # of what a run computes; to be raised when its numbers change, so that it is run again

_PROBLEMS: dict[str, type[Linear]] = {
    "softmax": problems.Softmax,
    "logistic": problems.Logistic,
    "least_squares": problems.LeastSquares,
    "huber": problems.Huber,
    "smoothed_hinge": problems.SmoothedHinge,
}
_POINTS = 400  # of a thinned trace, at most
_warm: set[tuple[Any, ...]] = set()  # what this process has compiled, or loaded


def perform(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None = None) -> Record:
    """Do a run and give its record.

    BLAS is kept to one thread, so that runs side by side do not disturb each other, and so that
    the numbers do not depend on how many there are.

    Parameters
    ----------
    spec
        What determines it: see `descent_spec`, `table_spec` and `theory_spec`, and `avare.experiments.nets.plan`.
    X, y
        The data.
    optimum
        The least objective, where it is known.
    """
    from threadpoolctl import threadpool_limits

    kinds = {"reproduce": _descend, "compare": _descend, "table": _tabulate, "theory": _regret, "nets": _train}
    with interrupts_at_once(), threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", LimitWarning)
        warnings.simplefilter("ignore", DivergenceWarning)  # the status tells
        warnings.simplefilter("ignore", problems.ToleranceWarning)
        result = kinds[spec["experiment"]](spec, X, y, optimum)
    where = surroundings(*(["torch"] if spec["experiment"] == "nets" else []))
    return {"spec": dict(spec), "where": where, **result}


@contextmanager
def interrupts_at_once() -> Iterator[None]:
    """Let Ctrl-C end what is being done, where a solver would only stop early, and the next go on."""

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


# --- specifications ------------------------------------------------------------------------


def descent_spec(
    experiment: str,
    *,
    dataset: str,
    data_digest: str,
    loss: Loss,
    steps: str,
    sampler: str,
    options: Mapping[str, Any],
    seed: int,
    epochs: int,
    batch_size: int,
    replacement: bool,
    l2: float,
    caution: float = 1.0,
) -> dict[str, Any]:
    """All that determines a run of SGD; the caution multiplies the smoothness from which step sizes are made."""
    return {
        "experiment": experiment,
        "dataset": dataset,
        "data_digest": data_digest,
        "loss": loss,
        "steps": steps,
        "sampler": sampler,
        "options": dict(options),
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "replacement": replacement,
        "l2": l2,
        "caution": caution,
        "revision": REVISION,
    }


def table_spec(*, dataset: str, data_digest: str, loss: Loss, l2: float, tolerance: float) -> dict[str, Any]:
    """All that determines what is known of a dataset; the tolerance is a part of the gradient at 0."""
    return {
        "experiment": "table",
        "dataset": dataset,
        "data_digest": data_digest,
        "loss": loss,
        "l2": l2,
        "tolerance": tolerance,
        "revision": REVISION,
    }


def theory_spec(
    method: str, *, dataset: str, data_digest: str, loss: Loss, l2: float, seed: int, steps: int
) -> dict[str, Any]:
    """All that determines a run whose regret is measured at every step; the method is "sgd" or "sgld"."""
    return {
        "experiment": "theory",
        "method": method,
        "dataset": dataset,
        "data_digest": data_digest,
        "loss": loss,
        "l2": l2,
        "seed": seed,
        "length": steps,
        "revision": REVISION,
    }


# --- what they are made of -----------------------------------------------------------------


def problem_of(spec: Spec, X: Any, y: NDArray[Any]) -> Linear:
    """The problem of a run: no bias, and the l2 term in all."""
    kind: Any = _PROBLEMS[spec["loss"]]
    problem: Linear = kind(X, y, l2=spec["l2"])
    return problem


def sampler_of(spec: Spec, problem: Linear) -> Sampler:
    """The sampler of a run; what some rules want to know of the data is taken from it."""
    name = spec["sampler"]
    more: dict[str, Any] = {}
    if name in ("Static", "Safe"):
        more["smoothness"] = problem.smoothness
    if name == "Mixture":
        more["components"] = np.stack([problem.smoothness, problem.lengths])
    make: Any = get(name)
    sampler: Sampler = make(
        problem.n,
        spec["batch_size"],
        replacement=spec["replacement"],
        seed=spec["seed"],
        **spec["options"],
        **more,
    )
    return sampler


def step_size_of(spec: Spec, problem: Linear) -> Schedule:
    """The paper's step sizes: m / (2 N L + m mu t), or without the last term, with L the largest, times the caution."""
    largest = spec["caution"] * float(problem.smoothness.max())
    if spec["steps"] == "decreasing":
        return schedules.inverse_time(problem.n, largest, problem.strong_convexity, spec["batch_size"])
    return schedules.constant(spec["batch_size"] / (2.0 * problem.n * largest))


def facts_of(problem: Linear, tolerance: float) -> dict[str, Any]:
    """What there is to know of a problem; its optimum is found to a part of the gradient at 0."""
    first = float(np.linalg.norm(problem.gradient(np.zeros(problem.dim))))
    allowed = max(tolerance * first, 1e-12)
    x = problem.minimize(tolerance=allowed) if first > 0.0 else np.zeros(problem.dim)
    return {
        "n": problem.n,
        "dim": problem.dim,
        "optimum": problem.objective(x),
        "gradient_at_optimum": float(np.linalg.norm(problem.gradient(x))),
        "gradient_allowed": allowed,
        "gain_at_optimum": float(diagnostics.gain(problem.norms(x))),
        "smoothness_ratio": float(diagnostics.smoothness_ratio(problem.smoothness)),
    }


def doubt_of_optimum(spec: Spec, facts: Mapping[str, Any], name: str | None = None) -> str:
    """What is to be said of an optimum that was not found to the tolerance asked for; empty where it was.

    It is empty too for a record that does not say what was asked for, as those of older versions.

    Parameters
    ----------
    spec, facts
        Of the record of a dataset.
    name
        What the dataset is called, if not as in the spec.

    Examples
    --------
    >>> doubt_of_optimum({"dataset": "mine", "l2": 1.0}, {"gradient_at_optimum": 1e-9, "gradient_allowed": 1e-8})
    ''
    """
    left, allowed = facts.get("gradient_at_optimum"), facts.get("gradient_allowed")
    if left is None or allowed is None or left <= allowed:
        return ""
    # A convex function with the curvature mu is at most |gradient|^2 / (2 mu) above its minimum.
    l2 = spec.get("l2")
    most = f", by at most {left * left / (2.0 * l2):.2g}" if isinstance(l2, int | float) and l2 > 0.0 else ""
    return (
        f"The optimum of {name or spec['dataset']} was not found to the tolerance asked for (its gradient is "
        f"{left:.2g} long, not {allowed:.2g}): suboptimalities are too small{most}, and the gain at the optimum is "
        "approximate."
    )


def caution_of(problem: Linear, X: Any, batch_size: int) -> float:
    """What the largest smoothness must be multiplied by for steps that are not too long for the gradient as a whole.

    Steps of m / (2 N L) are as if gradients of a batch had nothing in common. Where rows point the same way, those of
    large batches would overshoot, whatever the sampler; this keeps them within 1 / curvature of f: that at 0 for the
    smooth losses, the largest there is for Huber's and the smoothed hinge, which may have none at 0.

    >>> rows = 1.0 + 0.1 * np.random.default_rng(0).normal(size=(1000, 5))
    >>> problem = problems.LeastSquares(rows, rows[:, 0])
    >>> caution_of(problem, rows, 1), caution_of(problem, rows, 128)
    (1.0, 48.0)
    """
    squares = problems.LeastSquares(X, np.zeros(problem.n), l2=0.0)  # whose second derivative is X^T X
    direction = np.random.default_rng(0).normal(size=squares.dim)
    largest = 0.0
    for _ in range(8):  # power iterations
        direction = squares.hessian_product(np.zeros(squares.dim), direction)
        largest = float(np.linalg.norm(direction))
        if largest == 0.0:
            return 1.0
        direction /= largest
    bend = 1.0 / len(problem.classes) if isinstance(problem, problems.Softmax) else problem.curvature
    needed = batch_size * (bend * largest + problem.l2) / (2.0 * problem.n * float(problem.smoothness.max()))
    return max(1.0, float(f"{needed:.2g}"))  # rounded, for it is part of what determines a run


def surroundings(*packages: str) -> dict[str, Any]:
    """Versions, also of more packages, machine and date, without the machine's name."""
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


# --- the kinds of runs ---------------------------------------------------------------------


def _descend(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    problem = problem_of(spec, X, y)
    step_size = step_size_of(spec, problem)
    kind = (spec["loss"], spec["sampler"], str(getattr(X, "dtype", "")), hasattr(X, "indptr"))
    if kind not in _warm:  # so that no compilation is timed
        sgd(problem, sampler_of(spec, problem), step_size, steps=1)
        _warm.add(kind)
    started = time.perf_counter()
    run = sgd(
        problem,
        sampler_of(spec, problem),
        step_size,
        epochs=spec["epochs"],
        optimum=optimum,
    )
    total = time.perf_counter() - started
    return {
        "seconds": {"steps": run.seconds, "evaluation": total - run.seconds},
        "optimum": optimum,
        "trace": {name: numbers(run.trace[name]) for name in COLUMNS},
        "status": run.status,
    }


def _tabulate(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    problem = problem_of(spec, X, y)
    started = time.perf_counter()
    facts = facts_of(problem, spec["tolerance"])
    return {
        "seconds": {"steps": time.perf_counter() - started, "evaluation": 0.0},
        "facts": facts,
        "status": "finished",
    }


def _regret(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    """The regret of every step, summed, with batches of 1 and step sizes falling as 1/t."""
    problem = problem_of(spec, X, y)
    largest, mu, steps = float(problem.smoothness.max()), problem.strong_convexity, spec["length"]
    delta = {"sgd": 1.0, "sgld": 0.5}[spec["method"]]
    sampler = get("Avare")(problem.n, 1, replacement=True, seed=spec["seed"], delta=delta)  # type: ignore[call-arg]  # its own
    started = time.perf_counter()
    trace: Trace
    if spec["method"] == "sgd":
        run = sgd(
            problem,
            sampler,
            schedules.inverse_time(problem.n, largest, mu),
            steps=steps,
            evaluate=1,
        )
        trace, seconds, status = run.trace, run.seconds, run.status
    else:
        chain = sgld(
            problem,
            sampler,
            schedules.polynomial(1.0 / mu, 2.0 * problem.n * largest / mu + 1.0, 1.0),  # the same sizes
            steps=steps,
            burn_in=steps,  # no draw is kept
            seed=spec["seed"],
            evaluate=1,
        )
        trace, seconds, status = chain.traces[0], chain.seconds, chain.status
    total = time.perf_counter() - started
    # A row is taken before the step that follows it: the regret of the first t steps is the sum of rows 0 to t - 1.
    chosen = np.unique(np.geomspace(1, steps, _POINTS).round().astype(np.int64))
    return {
        "seconds": {"steps": seconds, "evaluation": total - seconds},
        "trace": {"step": chosen.tolist(), "regret": numbers(trace.regret[chosen - 1])},
        "status": status,
    }


def _train(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    from avare.experiments.nets.training import train  # which imports PyTorch

    return train(spec, X, y)


def numbers(values: ArrayLike) -> list[float | int | None]:
    """As JSON has them: None for what is not finite.

    >>> numbers(np.array([1.5, np.nan]))
    [1.5, None]
    """
    return [number(value) for value in np.asarray(values).tolist()]


def number(value: float) -> float | None:
    """The same for one."""
    return value if math.isfinite(value) else None
