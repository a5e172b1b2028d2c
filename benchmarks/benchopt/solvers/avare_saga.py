"""A solver file for benchopt's benchmark_logreg_l2: copy it to the folder ``solvers`` of that benchmark."""

from typing import Any

import avare
from benchopt import BaseSolver


class Solver(BaseSolver):
    """`avare.saga` on sum_i log(1 + exp(-y_i x_i.b)) + lmbd/2 |b|^2, stopped after a number of epochs."""

    name = "avare"
    install_cmd = "conda"
    requirements = ("pip::avare",)
    sampling_strategy = "iteration"
    parameters = {"sampler": ["Calibrated", "Uniform"]}  # noqa: RUF012  # as benchopt wants it

    def set_objective(self, X: Any, y: Any, lmbd: float, fit_intercept: bool = False) -> None:
        """Take the data."""
        self.problem = avare.problems.Logistic(X, y, l2=lmbd, bias="free" if fit_intercept else False)

    def warm_up(self) -> None:
        """Compile, outside the measured time."""
        self.run(1)

    def run(self, n_iter: int) -> None:
        """Run a number of epochs."""
        run = avare.saga(self.problem, self.sampler, epochs=n_iter, tol=0.0, evaluate="never", seed=0)
        self.beta = run.x

    def get_result(self) -> dict[str, Any]:
        """Return the coefficients."""
        return {"beta": self.beta}
