"""Small linear models of every kind, for the tests of the solvers."""

import io
import pickle
from typing import Any

import numpy as np
from scipy import sparse

from avare.problems import Generic, Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax

N, D = 150, 4
PROBLEMS = ("Softmax", "Logistic", "LeastSquares", "Huber", "SmoothedHinge")


def make(name: str, *, csr: bool = False, n: int = N, **options: Any) -> Linear:
    generator = np.random.default_rng(11)
    X = generator.normal(size=(n, D)) * generator.lognormal(0, 1, (n, 1)) / 3
    X[generator.random((n, D)) < 0.2] = 0.0
    outputs = X @ np.array([1.0, -2.0, 0.5, 1.0]) + 0.3 * generator.normal(size=n)
    rows = sparse.csr_matrix(X) if csr else X
    options = {"l2": 0.7, **options}
    if name == "Softmax":
        return Softmax(rows, np.digitize(outputs, [-0.5, 0.5]), **options)
    if name in ("Logistic", "SmoothedHinge"):
        kind = Logistic if name == "Logistic" else SmoothedHinge
        return kind(rows, np.sign(outputs + 0.2 * generator.normal(size=n)), **options)
    return (LeastSquares if name == "LeastSquares" else Huber)(rows, outputs, **options)


def plainly(problem: Linear) -> Generic:
    """The same problem, for the loop in Python."""
    return Generic(
        problem.n,
        problem.dim,
        batch_gradient=problem._batch_gradient,
        objective=problem._objective,
        norms=problem._norms,
        l2=problem.l2,
    )


def saved_and_loaded(state: dict[str, Any], way: str) -> Any:
    if way == "pickle":
        return pickle.loads(pickle.dumps(state))
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return dict(np.load(file))
