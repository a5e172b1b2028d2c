"""Runs of SGD on linear models, with the paper's step sizes or those that fit: how one is specified and done."""

import inspect
import time
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from avare import problems, samplers, schedules
from avare.experiments.base import Task
from avare.experiments.data import Data
from avare.experiments.records import Fields, numbers
from avare.experiments.store import Record, Spec
from avare.problems import Linear
from avare.samplers import Sampler
from avare.samplers.registry import LASTING_FLOOR
from avare.schedules import Auto, Schedule
from avare.solvers import Progress, sgd
from avare.solvers.trace import COLUMNS

Rule = Literal["decreasing", "constant"]

RULES: tuple[Rule, ...] = get_args(Rule)
"""The paper's step size rules."""
AUTO: Literal["auto"] = "auto"
"""Step sizes that are found for each sampler, and averaged iterates."""
REVISION = 1  # of what a run computes; raise it when the numbers change, so that stored runs are done again
ADAPTATION = 1  # the same, of how step sizes are found
MEASURES = ("suboptimality", "regret", "relative_error")
FIELDS = Fields(texts=("dataset", "steps", "sampler"), integers=("seed",), columns=("epoch", *MEASURES))
"""What a stored run must have."""

_warm: set[tuple[Any, ...]] = set()  # what this process has compiled, or loaded


def common_spec(experiment: str, data: Data, loss: str, l2: float) -> dict[str, Any]:
    """Return what the specs of all runs on linear models have."""
    return {
        "experiment": experiment,
        "dataset": data.name,
        "data_digest": data.digest,
        "loss": loss,
        "l2": l2,
        "revision": REVISION,
        **({"bias": True} if data.bias else {}),
        **({"held_out": data.held_out} if data.held_out else {}),
    }


def descent_spec(
    experiment: str,
    data: Data,
    loss: str,
    sampler: str,
    *,
    steps: str,
    seed: int,
    epochs: int,
    batch_size: int,
    l2: float,
    caution: float = 1.0,
    bound: float | None = None,
    replacement: bool = True,
) -> dict[str, Any]:
    """Return all that determines a run; the caution is a factor on the smoothness from which step sizes are made."""
    return {
        **common_spec(experiment, data, loss, l2),
        "steps": steps,
        **({"adaptation": ADAPTATION} if steps == AUTO else {}),
        "sampler": sampler,
        "options": options_of(sampler, steps, len(data), epochs, bound),
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "replacement": draws_with_replacement(sampler, replacement),
        "caution": caution,
    }


def descents(
    experiment: str,
    data: Data,
    loss: str,
    optimum: float,
    *,
    runs: int,
    rules: Sequence[str],
    samplers: Sequence[str],
    **settings: Any,
) -> list[Task]:
    """Return the runs of some samplers, seed by seed; the settings are those of `descent_spec`."""
    return [
        Task(descent_spec(experiment, data, loss, sampler, steps=rule, seed=seed, **settings), data, optimum)
        for seed in range(runs)
        for rule in rules
        for sampler in samplers
    ]


def describe_descent(spec: Spec) -> str:
    """Describe a run in a few words."""
    return f"{spec['dataset']}, {spec['steps']} steps, {spec['sampler']}, seed {spec['seed']}"


def descend(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    """Do a run; it is evaluated once per epoch."""
    problem = problem_of(spec, X, y)
    step_size = step_size_of(spec, problem)
    kind = (spec["loss"], spec["sampler"], str(getattr(X, "dtype", "")), hasattr(X, "indptr"))
    if kind not in _warm:  # so that no compilation is timed
        sgd(problem, sampler_of(spec, problem), step_size, steps=1)
        _warm.add(kind)
    tested: list[float] = []

    def look(progress: Progress) -> None:
        if spec.get("held_out"):
            tested.append(held_out_error(problem, spec, X, y, progress.average))

    started = time.perf_counter()
    run = sgd(problem, sampler_of(spec, problem), step_size, epochs=spec["epochs"], optimum=optimum, callback=look)
    total = time.perf_counter() - started
    record: Record = {
        "seconds": {"steps": run.seconds, "evaluation": total - run.seconds},
        "optimum": optimum,
        "trace": {name: numbers(run.trace[name]) for name in COLUMNS},
        "status": run.status,
    }
    if spec["steps"] == AUTO:
        record["step_size"] = run.step_size  # the last one
    if tested:
        record["trace"]["test"] = numbers(tested)
    return record


def held_out_error(problem: Linear, spec: Spec, X: Any, y: NDArray[Any], x: NDArray[np.float64]) -> float:
    """Return the share of wrong classes among the rows held out, or the root mean square of the errors of numbers."""
    rows, wanted = X[len(y) - spec["held_out"] :], y[len(y) - spec["held_out"] :]
    coefficients = problem.coefficients(x)
    outputs = np.asarray(rows @ coefficients[:, : rows.shape[1]].T)
    if problem.width > rows.shape[1]:
        outputs = outputs + coefficients[:, -1]
    if not len(problem.classes):
        return float(np.sqrt(np.mean((outputs[:, 0] - wanted) ** 2)))
    places = np.argmax(outputs, axis=1) if problem.outputs > 1 else (outputs[:, 0] > 0.0).astype(np.int64)
    return float(np.mean(problem.classes[places] != wanted))


# --- what a run is made of ------------------------------------------------------------------


def problem_of(spec: Spec, X: Any, y: NDArray[Any]) -> Linear:
    """Return the problem of a run: without the rows held out, and with one l2 term for the whole sum."""
    rows = len(y) - spec.get("held_out", 0)
    return problems.get(spec["loss"])(X[:rows], y[:rows], l2=spec["l2"], bias=spec.get("bias", False))


def sampler_of(spec: Spec, problem: Linear) -> Sampler:
    """Return the sampler of a run; what it needs of the data is taken from the problem."""
    return samplers.build(
        spec["sampler"],
        problem,
        spec["batch_size"],
        replacement=spec["replacement"],
        seed=spec["seed"],
        **spec["options"],
    )


def step_size_of(spec: Spec, problem: Linear) -> Schedule | Auto:
    """Return the paper's step sizes: m / (2 N L + m mu t) or m / (2 N L), with the largest L times the caution.

    Or a request for those that fit.
    """
    if spec["steps"] == AUTO:
        return schedules.auto()
    largest = spec["caution"] * float(problem.smoothness.max())
    if spec["steps"] == "decreasing":
        return schedules.inverse_time(problem.n, largest, problem.strong_convexity, spec["batch_size"])
    return schedules.constant(spec["batch_size"] / (2.0 * problem.n * largest))


def options_of(sampler: str, rule: str, n: int, epochs: int, bound: float | None) -> dict[str, Any]:
    """Return the paper's options of a sampler: a lasting floor for constant steps, the limits of the theory.

    With a bound, the limits stay as they are stated, although some norms exceed the paper's bound. Without one they
    are learned.

    >>> options_of("Avare", "constant", 100, epochs=5, bound=None)
    {'delta': 1.0, 'p_min': 0.002}
    """
    kind = samplers.get(sampler)
    options: dict[str, Any] = {}
    if "delta" in inspect.signature(kind).parameters:
        options["delta"] = 1.0
    if "p_min" in kind.takes:
        options["p_min"] = 0.0 if rule == "decreasing" else 1.0 / (LASTING_FLOOR * n)
    if "horizon" in kind.takes:
        options["horizon"] = epochs * n
    if "keep_limits" in kind.takes and bound is not None:
        options |= {"bound": bound, "keep_limits": True}
    return options


def draws_with_replacement(sampler: str, wanted: bool = True) -> bool:
    """Return whether a sampler draws with replacement; as wanted, if it can do both."""
    kind = samplers.get(sampler)
    return kind.with_replacement_only or (wanted and not kind.without_replacement_only)


def caution_of(problem: Linear, X: Any, batch_size: int) -> float:
    """Return the factor on the largest smoothness that makes steps short enough for the full gradient.

    Steps of m / (2 N L) assume that the gradients of a batch have nothing in common. If rows point the same way, large
    batches overshoot with them, whatever the sampler. This factor keeps steps within 1 / curvature of f: the curvature
    at 0 for the smooth losses, the largest one for Huber and smoothed hinge, which may have none at 0.

    >>> rows = 1.0 + 0.1 * np.random.default_rng(0).normal(size=(1000, 5))
    >>> problem = problems.LeastSquares(rows, rows[:, 0])
    >>> caution_of(problem, rows, 1), caution_of(problem, rows, 128)
    (1.0, 48.0)
    """
    # The second derivative of this problem is X^T X.
    squares = problems.LeastSquares(X[: problem.n], np.zeros(problem.n), l2=0.0, bias=problem.width > X.shape[1])
    direction = np.random.default_rng(0).normal(size=squares.dim)
    largest = 0.0
    for _ in range(8):  # power iterations
        direction = squares.hessian_product(np.zeros(squares.dim), direction)
        largest = float(np.linalg.norm(direction))
        if largest == 0.0:
            return 1.0
        direction /= largest
    needed = (
        batch_size
        * (problem.curvature_at_zero * largest + problem.l2)
        / (2.0 * problem.n * float(problem.smoothness.max()))
    )
    return max(1.0, float(f"{needed:.2g}"))  # rounded, because it is a part of the spec
