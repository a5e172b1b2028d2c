"""Small linear models with every loss, for the tests of the solvers."""

import io
import pickle
from typing import Any

import numpy as np
from scipy import sparse

from avare import problems
from avare.problems import Generic, Linear
from avare.samplers import Sampler

N, D = 150, 4
PROBLEMS = ("Softmax", "Logistic", "LeastSquares", "Huber", "SmoothedHinge")


def make(name: str, *, csr: bool = False, n: int = N, **options: Any) -> Linear:
    generator = np.random.default_rng(11)
    X = generator.normal(size=(n, D)) * generator.lognormal(0, 1, (n, 1)) / 3
    X[generator.random((n, D)) < 0.2] = 0.0
    y = X @ np.array([1.0, -2.0, 0.5, 1.0]) + 0.3 * generator.normal(size=n)
    kind = getattr(problems, name)
    if kind.target == "classes":
        y = np.digitize(y, [-0.5, 0.5])
    elif kind.target == "two classes":
        y = np.sign(y + 0.2 * generator.normal(size=n))
    problem: Linear = kind(sparse.csr_matrix(X) if csr else X, y, **{"l2": 0.7, **options})
    return problem


def plainly(problem: Linear) -> Generic:
    """The same problem, for the loop in Python."""
    return Generic(
        problem.n,
        problem.dim,
        batch_gradient=problem.loss_batch_gradient,
        objective=problem.total_loss,
        norms=problem.loss_norms,
        l2=problem.l2,
    )


def without_compiled_loop(kind: type[Sampler]) -> Any:
    """The same sampler, which says that steps move it, so that the loop is not compiled."""
    return type(kind.__name__, (kind,), {"follows_path": True, "move": lambda self, length: None})


def saved_and_loaded(state: dict[str, Any], way: str) -> Any:
    if way == "pickle":
        return pickle.loads(pickle.dumps(state))
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return dict(np.load(file))
