"""What a chain needs of its dynamics. Each dynamics is one file: its rule, its state, its step, and its solver.

`avare.solvers.sgld` and `avare.solvers.sghmc` are the examples. To add one,

1. declare a ``NamedTuple`` with the arrays and numbers of a chain: its state;
2. write the step as a function of that state, and declare it with `update_kernel` (`avare.solvers.kernels`);
3. derive a class from `Dynamics`, whose `build` returns the state of a chain that is about to start;
4. write the solver, which passes `ChainOptions` to `draw_chains`, both of `avare.solvers.chains`.

Only ``step_size="auto"`` needs `choose_step_size` and `fast_step`.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from avare.problems.base import Vector
from avare.solvers.metric import Metric


class Dynamics(ABC):
    """How a chain moves."""

    name: str
    """The name of the solver, which states and messages contain."""
    uses_hessian = False
    """Whether to precondition linear models by the Hessian by default, also with given step sizes."""
    corrects_noise = False
    """Whether `correct` uses measurements of the gradient noise."""

    @abstractmethod
    def build(self, metric: Metric, generator: np.random.Generator) -> Any:
        """Return the state of a new chain, which may draw from the generator."""

    def correct(self, state: Any, covariance: Vector) -> None:
        """Use the measured covariance of F^T g (`avare.solvers.metric`), or its diagonal, in the steps that follow."""

    def probe(self) -> "Dynamics":
        """Return the dynamics of the short chains that tuning runs; by default the same."""
        return self

    def choose_step_size(self, variance: float, curvature: float, *, independent: bool) -> float:
        """Return a step size that keeps standard deviations right to 5 %.

        It follows from the largest variance of the gradient and the largest curvature, both in the metric, and from
        whether batches are independent.
        """
        raise TypeError(f'step_size = "auto": {self.name} has no rule for it; pass a number')

    def fast_step(self, step_size: float) -> tuple[float, float]:
        """Return how far a step goes that is fast by one standard deviation, and how stiff it is.

        Stiffness times the curvature is 1 where steps of this size become unstable.
        """
        raise NotImplementedError
