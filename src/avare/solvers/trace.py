"""The table of measurements that a solver returns."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

Trace = np.recarray[Any, Any]

COLUMNS = (
    "step",
    "epoch",
    "seconds",
    "objective",
    "suboptimality",
    "cost",
    "optimal_cost",
    "relative_error",
    "regret",
    "gain",
)
_TYPE = np.dtype([(name, np.int64 if name == "step" else np.float64) for name in COLUMNS])


def table(rows: Sequence[tuple[float, ...]]) -> Trace:
    """Return rows as a table whose columns are attributes."""
    return np.array([tuple(row) for row in rows], dtype=_TYPE).view(np.recarray)


def row(
    step: int,
    epoch: float,
    seconds: float,
    measures: tuple[float, float, float],
    optimum: float | None,
    regret: float,
    gain: float,
) -> tuple[float, ...]:
    """Return a row of the table, from objective, sum of norms and cost, and the regret of the previous row."""
    objective, total, cost = measures
    least = total * total
    suboptimality = math.nan if optimum is None else objective - optimum
    error = cost / least - 1.0 if least > 0.0 else 0.0
    return (step, epoch, seconds, objective, suboptimality, cost, least, error, regret + cost - least, gain)


def evaluation_steps(evaluate: Any, steps: int, epoch: int) -> NDArray[np.int64]:
    """Return the steps after which to evaluate, sorted: from "epoch", "never", an interval, or a list of steps."""
    if isinstance(evaluate, str):
        if evaluate == "never":
            return np.empty(0, dtype=np.int64)
        if evaluate != "epoch":
            raise ValueError(f'evaluate = {evaluate!r}: must be "epoch", "never", an integer or a list of steps')
        evaluate = epoch
    if np.ndim(evaluate) == 0:
        every = validation.integer("evaluate", evaluate, at_least=1)
        return np.unique(np.append(np.arange(0, steps, every), steps))
    return np.unique(validation.indices("evaluate", _array(evaluate), steps + 1))


def _array(values: ArrayLike) -> NDArray[Any]:
    return np.asarray(values, dtype=np.int64) if np.size(values) == 0 else np.asarray(values)
