"""Runs on linear models: SGD, the search for the optimum, and what limits uniform sampling.

What limits uniform sampling is the noise of its batches, or the distance that is still to go. Two runs that differ by
their seed alone end at x and y. Their mean (x + y) / 2 is as far from the optimum, but has half of the noise. If f is
roughly quadratic there, noise adds 2 ((f(x) + f(y)) / 2 - f((x + y) / 2)) to the objective. The rest above the optimum
is distance: it would be there without noise, and no sampler makes it smaller.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import diagnostics, problems, samplers, schedules
from avare.experiments.base import Task
from avare.experiments.data import Data
from avare.experiments.store import Record, Spec, number, numbers
from avare.problems import Linear
from avare.samplers import Sampler
from avare.samplers.registry import LASTING_FLOOR
from avare.schedules import Auto, Schedule
from avare.solvers import sgd
from avare.solvers.trace import COLUMNS

RULES = ("decreasing", "constant")
"""The paper's step size rules."""
BASELINE, DEFAULT = "Uniform", "Calibrated"
"""The sampler that others are compared with, and the one that is compared by default."""
AUTO: Literal["auto"] = "auto"
"""Step sizes that are found for each sampler, and averaged iterates."""
OwnSteps = Literal["auto", "paper", "decreasing", "constant"]
"""Step sizes of a comparison: found, both of the paper's, or one of them."""
REVISION = 2  # of what a run computes; raise it when the numbers change, so that stored runs are done again
MEASURES = ("suboptimality", "regret", "relative_error")


@dataclass(frozen=True, slots=True)
class Setting:
    """What runs of SGD on the same data have in common, whatever the sampler."""

    loss: str
    epochs: int
    batch_size: int
    l2: float = 1.0  # factor of the one l2 term of the whole sum
    caution: float = 1.0  # factor on the largest smoothness, from which the paper's step sizes are made
    bound: float | None = None  # on the norms, for samplers that need one; None: learned


def common_spec(experiment: str, data: Data, loss: str, l2: float) -> dict[str, Any]:
    """Return what the specs of all runs on linear models have."""
    about = {"dataset": data.name, "data_digest": data.digest, "bias": data.bias, "held_out": data.held_out}
    return {"experiment": experiment, **about, "loss": loss, "l2": l2, "revision": REVISION}


def descent_spec(experiment: str, data: Data, setting: Setting, sampler: str, steps: str, seed: int) -> dict[str, Any]:
    """Return all that determines a run."""
    return {
        **common_spec(experiment, data, setting.loss, setting.l2),
        "steps": steps,
        "sampler": sampler,
        "options": options_of(sampler, steps, len(data), setting.epochs, setting.bound),
        "seed": seed,
        "epochs": setting.epochs,
        "batch_size": setting.batch_size,
        "replacement": not samplers.get(sampler).without_replacement_only,
        "caution": setting.caution,
    }


def descend(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    """Do a run; it is evaluated once per epoch."""
    problem = problem_of(spec, X, y)
    problem.optimum = optimum
    step_size = step_size_of(spec, problem)
    sgd(problem, sampler_of(spec, problem), step_size, steps=1)  # so that no compilation is timed
    started = time.perf_counter()
    run = sgd(problem, sampler_of(spec, problem), step_size, epochs=spec["epochs"])
    total = time.perf_counter() - started
    trace = {name: numbers(run.trace[name]) for name in COLUMNS}
    seconds = {"steps": run.seconds, "evaluation": total - run.seconds}
    tested = {"test_error": number(held_out_error(spec, problem, X, y, run.x))} if spec["held_out"] else {}
    return {"seconds": seconds, "optimum": optimum, "trace": trace, "status": run.status, **tested}


def held_out_error(spec: Spec, problem: Linear, X: Any, y: NDArray[Any], x: NDArray[np.float64]) -> float:
    """Return the share of wrong classes among the rows held out, or the root mean square of the errors of numbers."""
    rows, wanted, table = X[problem.n :], y[problem.n :], problem.coefficients(x)
    outputs = np.asarray(rows @ table[:, : rows.shape[1]].T) + (table[:, -1] if spec["bias"] else 0.0)
    if problem.target == "numbers":
        return float(np.sqrt(np.mean((outputs[:, 0] - wanted) ** 2)))
    places = outputs.argmax(axis=1) if problem.outputs > 1 else (outputs[:, 0] > 0.0).astype(np.int64)
    return float(np.mean(problem.classes[places] != wanted))


def optimum_task(experiment: str, data: Data, loss: str, l2: float, tolerance: float) -> Task:
    """Return the search for an optimum, to a tolerance relative to the gradient at 0."""
    return Task({**common_spec(experiment, data, loss, l2), "tolerance": tolerance}, data)


def find_optimum(spec: Spec, X: Any, y: NDArray[Any]) -> Record:
    """Find the optimum, as a run, and the facts about a problem there."""
    problem = problem_of(spec, X, y)
    started = time.perf_counter()
    first = float(np.linalg.norm(problem.gradient(np.zeros(problem.dim))))
    allowed = max(spec["tolerance"] * first, 1e-12)
    x = problem.minimize(tolerance=allowed) if first > 0.0 else np.zeros(problem.dim)
    facts = {
        "n": problem.n,
        "dim": problem.dim,
        "optimum": problem.objective(x),
        "gradient_at_optimum": float(np.linalg.norm(problem.gradient(x))),
        "gradient_allowed": allowed,
        "gain_at_optimum": float(diagnostics.gain(problem.norms(x))),
        "smoothness_ratio": float(diagnostics.smoothness_ratio(problem.smoothness)),
    }
    return {"seconds": {"steps": time.perf_counter() - started}, "facts": facts, "status": "finished"}


def separate(problem: Linear, ends: Sequence[NDArray[np.float64]], optimum: float) -> tuple[float, float]:
    """Return what noise and distance add to the optimum at the ends of some runs.

    >>> from avare.problems import LeastSquares
    >>> problem = LeastSquares(np.eye(2), [0.0, 0.0], l2=0.0)
    >>> separate(problem, [np.array([3.0, 1.0]), np.array([3.0, -1.0])], 0.0)  # 3 to go, and noise of 1
    (1.0, 4.0)
    """
    reached = float(np.mean([problem.objective(x) for x in ends]))
    centre = problem.objective(np.mean(ends, axis=0))
    noise = max(0.0, len(ends) / (len(ends) - 1.0) * (reached - centre))
    return noise, max(0.0, reached - optimum - noise)


# --- what a run is made of ------------------------------------------------------------------


def problem_of(spec: Spec, X: Any, y: NDArray[Any]) -> Linear:
    """Return the problem of a run: without the rows held out, and with one l2 term for the whole sum."""
    rows = len(y) - spec["held_out"]
    return problems.get(spec["loss"])(X[:rows], y[:rows], l2=spec["l2"], bias=spec["bias"])


def sampler_of(spec: Spec, problem: Linear) -> Sampler:
    """Return the sampler of a run; what it needs of the data is taken from the problem.

    Some norms exceed the paper's bound. They count as the bound, which would otherwise be doubled.
    """
    options = {"replacement": spec["replacement"], "seed": spec["seed"], **spec["options"]}
    if "bound" not in options:
        return samplers.build(spec["sampler"], problem, spec["batch_size"], **options)
    kind: Any = samplers.get(spec["sampler"])

    class Capped(kind):  # type: ignore[misc]  # a class that is known at run time only
        def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
            super().learn(indices, np.minimum(norms, options["bound"]))

    found: Sampler = Capped(problem.n, spec["batch_size"], **options)
    return found


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


def caution_of(problem: Linear, batch_size: int) -> float:
    """Return the factor on the largest smoothness that makes the paper's steps short enough for the full gradient.

    Steps of m / (2 N L) assume that the gradients of a batch have nothing in common. If rows point the same way, large
    batches overshoot with them, whatever the sampler. This factor keeps steps within 1 / curvature of f at 0 (for Huber
    and smoothed hinge, its largest curvature). O(size of X).

    >>> rows = 1.0 + 0.1 * np.random.default_rng(0).normal(size=(1000, 5))
    >>> problem = problems.LeastSquares(rows, rows[:, 0])
    >>> caution_of(problem, 1), caution_of(problem, 128)
    (1.0, 48.0)
    """
    rows, largest = problem.rows(centred=False), 1.0
    direction = np.random.default_rng(0).normal(size=(1, problem.width))
    for _ in range(8):  # power iterations
        direction = rows.sums(rows.outputs(direction / largest))
        largest = float(np.linalg.norm(direction)) or 1.0
    of_loss = problem.curvature if problem.outputs == 1 else 1.0 / problem.outputs
    needed = batch_size * (of_loss * largest + problem.l2) / (2.0 * problem.n * float(problem.smoothness.max()))
    return max(1.0, float(f"{needed:.2g}"))  # rounded, because it is a part of the spec


def options_of(sampler: str, rule: str, n: int, epochs: int, bound: float | None) -> dict[str, Any]:
    """Return the paper's options of a sampler: a lasting floor for constant steps, horizon and bound of the theory.

    >>> options_of("Avare", "constant", 100, epochs=5, bound=None)
    {'p_min': 0.002}
    """
    lasting = None if rule == "decreasing" else 1.0 / (LASTING_FLOOR * n)
    known = {"p_min": lasting, "horizon": epochs * n, "bound": bound}
    taken = samplers.get(sampler).takes
    return {name: value for name, value in known.items() if name in taken and value is not None}


def batch_size_of(wanted: int | None, n: int) -> int:
    """Return the draws per step: as wanted, or 128, or n if there are fewer examples.

    >>> batch_size_of(None, 1000), batch_size_of(None, 60), batch_size_of(16, 60)
    (128, 60, 16)
    """
    size = min(128, n) if wanted is None else validation.integer("batch_size", wanted, at_least=1)
    if size > n:
        raise ValueError(f"batch_size = {size}: must be at most {n}, the number of examples")
    return size
