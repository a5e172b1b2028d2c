"""Linear models that are hard to fit, drawn from a seed, and the lowest objective that several methods find."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import minimize

from avare.linear.solver import solve
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax

LOSSES = [Logistic, LeastSquares, Softmax, Huber, SmoothedHinge]


def extreme_problem(seed: int) -> Linear:
    """Scales, offsets, heavy rows, rare classes, uneven weights, collinear columns and penalties, by chance."""
    generator = np.random.default_rng(seed)
    kind: Any = LOSSES[seed % len(LOSSES)]
    n, columns = int(np.exp(generator.uniform(2.0, 6.0))), int(np.exp(generator.uniform(0.0, 4.0)))
    X: Any = generator.normal(size=(n, columns)) * np.exp(generator.normal(0.0, 3.0, columns))
    if generator.random() < 0.3:
        X *= generator.pareto(1.0, (n, 1))
    if generator.random() < 0.3:
        X = np.hstack([X, X[:, :1] + 1e-4 * generator.normal(size=(n, 1))])
    if generator.random() < 0.3:
        X = X + np.abs(X).max() * generator.normal(size=X.shape[1])
    elif generator.random() < 0.5:
        X = sp.csr_array(X * (generator.random(X.shape) < 0.2))
    classes = 3 if kind is Softmax else 2
    y = np.zeros(n, dtype=int) if generator.random() < 0.3 else generator.integers(0, classes, n)
    y[:classes] = range(classes)
    targets = generator.standard_cauchy(n) + 10.0 ** generator.uniform(0.0, 6.0) if kind in (LeastSquares, Huber) else y
    made: Linear = kind(
        X,
        targets,
        l2=float(np.exp(generator.uniform(-12.0, 6.0))),
        l1=float(np.exp(generator.uniform(-3.0, 2.0))) if generator.random() < 0.3 else 0.0,
        sample_weight=generator.lognormal(0.0, 2.0, n) if generator.random() < 0.4 else None,
        bias=[False, True, "free"][generator.integers(3)],
    )
    return made


def exact_objective(problem: Linear, x: NDArray[np.float64]) -> float:
    """The objective with outputs of more digits: those of columns far from 0 lose many."""
    X: Any = problem.model.matrix.dense
    if X is None:
        values, columns, starts = problem.model.matrix.sparse  # type: ignore[misc]  # one is not None
        X = sp.csr_array(
            (values, columns, starts), shape=(problem.n, problem.width - problem.model.matrix.bias)
        ).toarray()
    longer, table = np.longdouble, problem.coefficients(x).astype(np.longdouble)
    outputs = X.astype(longer) @ table[:, : X.shape[1]].T + table[:, X.shape[1] :].sum(axis=1)
    return problem.terms_at(np.ascontiguousarray(outputs, dtype=np.float64)).loss + problem.penalty.value(x)


def lowest(problem: Linear, x: NDArray[np.float64]) -> float:
    """Return the lowest objective of Newton's method at 1e-13 and, without an l1 term, of L-BFGS from there and x."""
    tight = solve(problem, tol=1e-13).table.ravel()
    found = [tight]
    for start in (x, tight) if problem.l1 == 0.0 else ():
        with np.errstate(all="ignore"):
            found.append(minimize(problem.objective, start, jac=problem.gradient, method="L-BFGS-B").x)
    return min(exact_objective(problem, each) for each in found)
