"""A linear model as the strategies of `avare.linear` receive it."""

from avare.linear import constant_model
from avare.linear.objective import Objective
from avare.linear.task import LinearTask
from avare.problems import Linear


def task_of(problem: Linear, tol: float = 1e-9, steps: int = 200) -> LinearTask:
    """From the best constant model."""
    (flat, scale), total = constant_model(problem), Objective(problem)
    return LinearTask(total, flat, tol * scale, steps)
