"""The objective of benchopt's benchmark_logreg_l2, with the same interface, so that the solver file runs here.

``benchopt run benchmarks/benchopt --no-plot`` runs it. For the full benchmark, copy `solvers/avare_saga.py` to the
folder ``solvers`` of benchmark_logreg_l2.
"""

from typing import Any

import numpy as np

from benchopt import BaseObjective


class Objective(BaseObjective):
    """sum_i log(1 + exp(-y_i x_i.b)) + lmbd/2 |b|^2."""

    name = "L2 Logistic Regression"
    parameters = {"lmbd": [1.0, 0.01]}  # noqa: RUF012  # as benchopt wants it

    def set_data(self, X: Any, y: Any) -> None:
        """Take the data."""
        self.X, self.y = X, y

    def get_objective(self) -> dict[str, Any]:
        """Return what solvers take."""
        return {"X": self.X, "y": self.y, "lmbd": self.lmbd}

    def get_one_result(self) -> dict[str, Any]:
        """Return what a solver may return."""
        return {"beta": np.zeros(self.X.shape[1])}

    def evaluate_result(self, beta: Any) -> float:
        """Return the objective."""
        losses = np.logaddexp(0.0, -self.y * (self.X @ beta))
        return float(losses.sum() + 0.5 * self.lmbd * (beta @ beta))
