"""The optimum of a dataset with a loss, and the possible gain there."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import diagnostics
from avare.experiments.base import Task
from avare.experiments.data import Data, display_name
from avare.experiments.document import Table
from avare.experiments.sgd_runs import common_spec, problem_of
from avare.experiments.store import Record, Spec


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


def doubt_of_optimum(spec: Spec, facts: Mapping[str, Any]) -> str:
    """Return a warning if the search for an optimum ended before its tolerance; "" if it did not."""
    left, allowed = facts["gradient_at_optimum"], facts["gradient_allowed"]
    if left <= allowed:
        return ""
    # A convex function of curvature mu is at most |gradient|^2 / (2 mu) above its minimum.
    most = f" by at most {left * left / (2.0 * spec['l2']):.2g}" if spec["l2"] > 0.0 else ""
    return (
        f"The optimum of {display_name(spec['dataset'])} was not found to the requested tolerance: the norm of its "
        f"gradient is {left:.2g}, not {allowed:.2g}. Suboptimalities are too small{most}, and the gain at the optimum "
        "is approximate."
    )


def facts_table(facts: Iterable[Mapping[str, Any]]) -> Table:
    """Return the facts about some datasets."""
    columns = (
        "dataset; n|examples|integer; dim|coefficients|integer; optimum||value; "
        "gain_at_optimum|gain at the optimum|ratio; smoothness_ratio||number"
    )
    return Table.of("At the optimum", columns, facts)
