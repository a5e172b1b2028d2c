"""What every loss must satisfy; each check takes a `Case`, so that a loss from outside the package can be checked too.

`check_loss` calls them all.
"""

import copy
import math
import pickle
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from avare import diagnostics, problems
from plain_losses import Array, Case, Plain

# Sums of about ten products: each is off by a rounding or two of its largest part.
CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def example(case: Case, n: int = 21, width: int = 5, seed: int = 0) -> tuple[Array, Array, np.random.Generator]:
    """X with a row and a column of zeros, and a third of zeros besides; and y."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, width)) * (generator.random((n, width)) > 0.3)
    X[n // 2], X[:, 1] = 0.0, 0.0
    return X, case.targets(n, generator), generator


def check_loss(case: Case) -> None:
    """Check all of the following."""
    for sparse, bias, weighted, l2 in product((False, True), (False, True), (False, True), (0.0, 0.7)):
        check_against_numpy(case, sparse=sparse, bias=bias, weighted=weighted, l2=l2)
    check_finite_differences(case)
    check_small_slopes(case)
    check_smoothness(case)
    for sparse in (False, True):
        for output in (800.0, -800.0, 1e8):
            check_large_outputs(case, sparse=sparse, output=output)
        check_copies(case, sparse=sparse)
        check_minimum(case, sparse=sparse, l2=0.3)


def check_sums(problem: problems.Linear, plain: Plain, generator: np.random.Generator) -> None:
    """All that is summed over examples equals plain NumPy, at a random x."""
    x, direction = generator.normal(size=(2, plain.dim))
    p = generator.dirichlet(np.ones(problem.n))
    assert problem.dim == plain.dim and problem.n == len(plain.X)
    norms = plain.norms(x)
    assert problem.objective(x) == pytest.approx(plain.objective(x), rel=1e-12)
    assert np.allclose(problem.gradient(x), plain.gradient(x), **CLOSE)
    assert np.allclose(problem.norms(x), norms, **CLOSE)
    assert np.allclose(problem.hessian_product(x, direction), plain.hessian(x) @ direction, **CLOSE)
    assert np.allclose(problem.gram(x), plain.gram(x), **CLOSE)
    assert np.allclose(problem.smoothness, plain.smoothness(), **CLOSE)
    assert np.allclose(problem.lengths, np.sqrt(np.square(plain.X).sum(axis=1)), **CLOSE)
    objective, total, cost = problem.evaluate(x, p)
    assert objective == problem.objective(x) and total == pytest.approx(norms.sum(), rel=1e-12)
    assert cost == pytest.approx(diagnostics.cost(norms, p), rel=1e-12)
    objective, total, cost = problem.evaluate(x)
    assert objective == problem.objective(x) and total == pytest.approx(norms.sum(), rel=1e-12) and math.isnan(cost)
    indices, weights = generator.integers(0, problem.n, 7), generator.normal(size=7)
    check_batch(problem, plain, x, indices, weights)


def check_batch(
    problem: problems.Linear, plain: Plain, x: Array, indices: NDArray[np.int64], weights: NDArray[Any]
) -> None:
    """The gradient and norms of a batch equal plain NumPy."""
    gradient, norms = problem.batch_gradient(x, indices, weights)
    assert gradient.shape == (problem.dim,) and norms.shape == indices.shape
    assert np.allclose(gradient, np.asarray(weights) @ plain.gradients(x)[indices], **CLOSE)
    assert np.allclose(norms, plain.norms(x)[indices], **CLOSE)


def check_against_numpy(case: Case, *, sparse: bool, bias: bool, weighted: bool, l2: float) -> None:
    """All sums equal plain NumPy, with any arguments."""
    X, y, generator = example(case)
    weights = np.where(generator.random(21) > 0.3, generator.lognormal(size=21), 0.0) if weighted else None
    problem = case.make(sp.csr_array(X) if sparse else X, y, l2=l2, sample_weight=weights, bias=bias)
    check_sums(problem, Plain(case, X, y, l2, weights, bias), generator)
    assert problem.strong_convexity == problem.l2 == l2


def check_finite_differences(case: Case) -> None:
    """The gradient and the Hessian are the derivatives of the objective."""
    X, y, generator = example(case, seed=2)
    problem = case.make(X, y, l2=0.7, sample_weight=generator.lognormal(size=21), bias=True)
    x, direction = generator.normal(size=(2, problem.dim))
    h = 1e-5  # the error is h^2 times a third derivative, and 1e-16 / h of rounding: about 1e-10 of terms of order 10
    slope = (problem.objective(x + h * direction) - problem.objective(x - h * direction)) / (2 * h)
    assert slope == pytest.approx(problem.gradient(x) @ direction, rel=1e-7)
    curve = (problem.gradient(x + h * direction) - problem.gradient(x - h * direction)) / (2 * h)
    assert np.allclose(curve, problem.hessian_product(x, direction), rtol=1e-6, atol=1e-6)


def check_small_slopes(case: Case) -> None:
    """All is in float64: a target or a sum in float32 would show in the eighth digit."""
    X, y, generator = example(case, seed=5)
    problem, plain = case.make(X, y, l2=0.0), Plain(case, X, y)
    x = 1e-3 * generator.normal(size=problem.dim)
    assert np.allclose(problem.norms(x), plain.norms(x), rtol=1e-14, atol=0)


def check_smoothness(case: Case) -> None:
    """The smoothness constants bound how much gradients change."""
    X, y, generator = example(case, seed=6)
    weights = generator.lognormal(size=21)
    problem = case.make(X, y, l2=2.1, sample_weight=weights, bias=True)
    constants = problem.smoothness
    for _ in range(5 if numba.config.DISABLE_JIT else 100):
        x, z = generator.normal(size=(2, problem.dim)) * generator.lognormal(size=(2, 1))
        for i in range(21):
            difference = own_gradient(problem, x, i) - own_gradient(problem, z, i)
            assert np.linalg.norm(difference) <= constants[i] * np.linalg.norm(x - z) * (1.0 + 1e-12)


def own_gradient(problem: problems.Linear, x: Array, i: int) -> Array:
    """The gradient of one example, its share of the l2 term included."""
    return np.asarray(problem.batch_gradient(x, [i], [1.0])[0] + problem.l2 / problem.n * x)


def check_large_outputs(case: Case, *, sparse: bool, output: float) -> None:
    """Large outputs do not overflow."""
    X = np.array([[1.0], [-1.0], [1.0], [-1.0], [0.5], [1.0]])
    many = case.kind.target == "classes"
    y = np.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0]) if many else np.array([1.0, 1.0, -1.0, -1.0, 1.0, -1.0])
    problem = case.make(sp.csr_array(X) if sparse else X, y, l2=0.0)
    plain = Plain(case, X, y)
    x = np.array([output, -output, 0.0]) if many else np.array([output])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert problem.objective(x) == pytest.approx(plain.objective(x), rel=1e-13)
        assert np.allclose(problem.gradient(x), plain.gradient(x), rtol=1e-13)
        assert np.allclose(problem.norms(x), plain.norms(x), rtol=1e-13)
        assert np.allclose(problem.hessian_product(x, np.ones_like(x)), plain.hessian(x).sum(axis=1), rtol=1e-13)
        assert np.isfinite(problem.gram(x)).all()


def check_copies(case: Case, *, sparse: bool) -> None:
    """Pickled and copied problems are the same."""
    X, y, generator = example(case)
    problem = case.make(sp.csr_array(X) if sparse else X, y)
    x = generator.normal(size=problem.dim)
    for twin in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert twin.objective(x) == problem.objective(x) and repr(twin) == repr(problem)


def correlated(case: Case, n: int | None = None, width: int = 6, seed: int = 0) -> tuple[Array, Array]:
    """Correlated columns of different sizes, on which a plain descent would take long; and y."""
    generator = np.random.default_rng(seed)
    n = n or (10 if numba.config.DISABLE_JIT else 300)
    X = generator.normal(size=(n, width)) @ generator.normal(size=(width, width)) * np.logspace(-1.0, 1.0, width)
    return X, case.targets(n, generator)


def check_minimum(case: Case, *, sparse: bool, l2: float) -> None:
    """The gradient is 0 at the minimum, also by plain NumPy, and the objective is larger around it."""
    X, y = correlated(case)
    weights = np.random.default_rng(1).lognormal(size=len(X))
    problem = case.make(sp.csr_array(X) if sparse else X, y, l2=l2, sample_weight=weights, bias=True)
    x = problem.minimize()
    assert np.linalg.norm(problem.gradient(x)) <= 1e-10
    # The same by plain NumPy, but for the rounding of some hundred terms of size 1 to 100.
    assert np.linalg.norm(Plain(case, X, y, l2, weights, True).gradient(x)) <= 1e-9
    assert problem.optimum == problem.objective(x)
    for step in np.random.default_rng(2).normal(0.0, 1e-3, (5, problem.dim)):
        assert problem.objective(x + step) > problem.optimum
