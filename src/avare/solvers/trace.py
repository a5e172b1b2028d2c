"""The table of measurements that a solver returns."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation

Trace = np.recarray[Any, Any]


class Row(NamedTuple):
    """One evaluation."""

    step: int
    epoch: float
    seconds: float
    """Time of the steps so far, without evaluations."""
    objective: float
    suboptimality: float
    """NaN if the optimum is not known."""
    cost: float
    """Of the sampler's distribution; NaN if the method draws nothing."""
    optimal_cost: float
    relative_error: float
    regret: float
    """The sum of cost - optimal_cost over all rows so far."""
    gain: float


COLUMNS = Row._fields
TYPE = np.dtype([(name, np.int64 if name == "step" else np.float64) for name in COLUMNS])


def evaluation_steps(evaluate: Any, steps: int, epoch: int) -> NDArray[np.int64]:
    """Return the steps after which to evaluate: from "epoch", "never", an interval, or a list of steps."""
    if isinstance(evaluate, str):
        if evaluate not in ("epoch", "never"):
            raise ValueError(f'evaluate = {evaluate!r}: must be "epoch", "never", an integer or a list of steps')
        evaluate = epoch if evaluate == "epoch" else []
    if np.ndim(evaluate) == 0:
        every = validation.integer("evaluate", evaluate, at_least=1)
        return np.unique(np.append(np.arange(0, steps, every), steps))
    listed = np.asarray(evaluate) if len(evaluate) else np.empty(0, dtype=np.int64)
    return np.unique(validation.indices("evaluate", listed, steps + 1))
