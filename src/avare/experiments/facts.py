"""Facts about a dataset with a loss: its optimum, and the possible gain there."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import diagnostics
from avare.experiments.base import Task
from avare.experiments.content import Table
from avare.experiments.data import Data, display_name
from avare.experiments.descent import common_spec, problem_of
from avare.experiments.store import Record, Spec
from avare.problems import Linear


def table_task(data: Data, loss: str, l2: float, tolerance: float) -> Task:
    """Return the search for an optimum, to a tolerance relative to the gradient at 0."""
    return Task({**common_spec("table", data, loss, l2), "tolerance": tolerance}, data)


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


def doubt_of_optimum(spec: Spec, facts: Mapping[str, Any], *, display: bool = False) -> str:
    """Return a warning if the search for an optimum ended before its tolerance; "" if it did not.

    It is also "" if the record does not have the tolerance, as in older versions.
    """
    left, allowed = facts.get("gradient_at_optimum"), facts.get("gradient_allowed")
    if left is None or allowed is None or left <= allowed:
        return ""
    # A convex function of curvature mu is at most |gradient|^2 / (2 mu) above its minimum.
    l2 = spec.get("l2")
    most = f", by at most {left * left / (2.0 * l2):.2g}" if isinstance(l2, int | float) and l2 > 0.0 else ""
    name = display_name(spec["dataset"]) if display else spec["dataset"]
    return (
        f"The optimum of {name} was not found to the requested tolerance (the norm of its gradient "
        f"is {left:.2g}, not {allowed:.2g}): suboptimalities are too small{most}, and the gain at the optimum is "
        "approximate."
    )


def facts_table(facts: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the facts about some datasets as the command prints them."""
    columns = (
        "dataset; n|examples|integer; dim|coefficients|integer; optimum||value; "
        "gain_at_optimum|gain at the optimum|ratio; smoothness_ratio||number"
    )
    return Table.of("", columns, ({"dataset": name, **fact} for name, fact in facts.items()))
