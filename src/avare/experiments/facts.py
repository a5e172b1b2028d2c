"""Facts about a dataset with a loss: its optimum, and the possible gain there."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import diagnostics
from avare.experiments.content import Column, Table
from avare.experiments.descent import REVISION, problem_of
from avare.experiments.store import Record, Spec
from avare.problems import Linear


def table_spec(*, dataset: str, data_digest: str, loss: str, l2: float, tolerance: float) -> dict[str, Any]:
    """Return all that determines the facts about a dataset; the tolerance is relative to the gradient at 0."""
    return {
        "experiment": "table",
        "dataset": dataset,
        "data_digest": data_digest,
        "loss": loss,
        "l2": l2,
        "tolerance": tolerance,
        "revision": REVISION,
    }


def tabulate(spec: Spec, X: Any, y: NDArray[Any]) -> Record:
    """Find the optimum, as a run."""
    problem = problem_of(spec, X, y)
    started = time.perf_counter()
    facts = facts_of(problem, spec["tolerance"])
    seconds = {"steps": time.perf_counter() - started, "evaluation": 0.0}
    return {"seconds": seconds, "facts": facts, "status": "finished"}


def facts_of(problem: Linear, tolerance: float) -> dict[str, Any]:
    """Return the facts about a problem; its optimum is found to a tolerance relative to the gradient at 0."""
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
    """Return a warning if the search for an optimum ended before its tolerance; "" if it did not.

    It is also "" if the record does not have the tolerance, as in older versions.

    Parameters
    ----------
    spec, facts
        Those of the record of a dataset.
    name
        What to call the dataset; None: as in the spec.

    Examples
    --------
    >>> doubt_of_optimum({"dataset": "mine", "l2": 1.0}, {"gradient_at_optimum": 1e-9, "gradient_allowed": 1e-8})
    ''
    """
    left, allowed = facts.get("gradient_at_optimum"), facts.get("gradient_allowed")
    if left is None or allowed is None or left <= allowed:
        return ""
    # A convex function of curvature mu is at most |gradient|^2 / (2 mu) above its minimum.
    l2 = spec.get("l2")
    most = f", by at most {left * left / (2.0 * l2):.2g}" if isinstance(l2, int | float) and l2 > 0.0 else ""
    return (
        f"The optimum of {name or spec['dataset']} was not found to the requested tolerance (the norm of its gradient "
        f"is {left:.2g}, not {allowed:.2g}): suboptimalities are too small{most}, and the gain at the optimum is "
        "approximate."
    )


def facts_table(facts: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the facts about some datasets as the command prints them."""
    headings = ("dataset", "examples", "coefficients", "optimum", "gain at the optimum", "smoothness ratio")
    return Table(
        "",
        tuple(Column(heading, heading) for heading in headings),
        tuple(
            (
                name,
                f"{fact['n']:,}",
                f"{fact['dim']:,}",
                f"{fact['optimum']:.6g}",
                f"{fact['gain_at_optimum']:.3f}",
                f"{fact['smoothness_ratio']:.2f}",
            )
            for name, fact in facts.items()
        ),
    )
