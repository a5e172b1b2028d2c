"""Products with all rows: what NumPy gives for the matrix written out, for every kind of X, centred or not."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from avare.linear.design import Design, factor_cost
from avare.problems import rows as module
from avare.problems.matrix import read_matrix

KINDS = ["float64", "float32", "Fortran", "sparse"]
every_kind = pytest.mark.parametrize("kind", KINDS)
centred_or_not = pytest.mark.parametrize(("bias", "centred"), [(False, False), (True, False), (True, True)])


def example(
    kind: str, bias: bool, centred: bool, n: int = 40, columns: int = 7, density: float = 0.4
) -> tuple[Design, NDArray[np.float64], NDArray[np.float64]]:
    """The rows, the same written out, and the weights."""
    generator = np.random.default_rng(3)
    X: Any = (generator.normal(size=(n, columns)) + 5.0) * (generator.random((n, columns)) < density)
    X = X.astype(np.float32 if kind == "float32" else np.float64)
    weights = generator.lognormal(size=n)
    whole = X.astype(np.float64)
    data = sp.csr_array(X) if kind == "sparse" else np.asfortranarray(X) if kind == "Fortran" else X
    matrix, found, width, _ = read_matrix(data, bias)
    if centred:
        whole = whole - weights @ whole / weights.sum()
    whole = np.hstack([whole, np.ones((n, 1))]) if bias else whole
    return Design(matrix, found, width, weights, centred=centred), whole, weights


@every_kind
@centred_or_not
@pytest.mark.parametrize("chunk", [30, 1 << 16])
def test_products(kind: str, bias: bool, centred: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)  # several chunks, or one
    monkeypatch.setattr(module, "_FEWEST", 1)
    rows, whole, weights = example(kind, bias, centred)
    generator = np.random.default_rng(4)
    for outputs in (1, 3):
        table, factors = generator.normal(size=(outputs, rows.width)), generator.normal(size=(rows.n, outputs))
        assert np.allclose(rows.outputs(table), whole @ table.T, rtol=1e-12, atol=1e-12)
        assert np.allclose(rows.sums(factors), factors.T @ whole, rtol=1e-12, atol=1e-11)
        assert np.allclose(rows.centre(rows.centre(table), -1.0), table, rtol=1e-12, atol=1e-12)
    assert np.allclose(rows.squares(weights), weights @ whole**2, rtol=1e-10)
    lower = np.tril(rows.gram(weights))
    assert np.allclose(lower, np.tril(whole.T @ (weights[:, None] * whole)), rtol=1e-10, atol=1e-10)
    inner = whole[:, : rows.columns]
    assert np.allclose(rows.kernel(), inner @ inner.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("n", "columns", "density"), [(40, 300, 0.4), (3000, 60, 0.03), (500, 3000, 0.002)])
def test_products_of_sparse_rows_and_columns(n: int, columns: int, density: float) -> None:
    """By dense parts for the first; the columns of the second, and the rows of the third, by their entries."""
    rows, whole, weights = example("sparse", bias=True, centred=True, n=n, columns=columns, density=density)
    gram = whole.T @ (weights[:, None] * whole)
    assert np.allclose(np.tril(rows.gram(weights)), np.tril(gram), atol=1e-9 * n)
    assert np.allclose(rows.kernel(), whole[:, :-1] @ whole[:, :-1].T, rtol=1e-9, atol=1e-8)


@every_kind
def test_centred_coefficients_have_the_same_outputs(kind: str) -> None:
    plain, _, _ = example(kind, bias=True, centred=False)
    rows, _, _ = example(kind, bias=True, centred=True)
    table = np.random.default_rng(5).normal(size=(2, rows.width))
    assert np.allclose(rows.outputs(rows.centre(table)), plain.outputs(table), rtol=1e-12, atol=1e-11)


@every_kind
def test_a_subset_subtracts_the_same_means(kind: str) -> None:
    rows, whole, _ = example(kind, bias=True, centred=True)
    indices = np.array([5, 0, 5, 39])
    table = np.random.default_rng(6).normal(size=(1, rows.width))
    assert np.allclose(rows.subset(indices).outputs(table), whole[indices] @ table.T, rtol=1e-12, atol=1e-11)


def test_costs_grow_with_the_data() -> None:
    small, large = example("float64", True, True, n=20)[0], example("float64", True, True, n=2000)[0]
    assert large.curve_cost(1) > small.curve_cost(1) > 0.0
    assert large.gram_cost() > small.gram_cost() > 0.0
    assert large.kernel_cost() > small.kernel_cost() > 0.0
    assert factor_cost(100) > factor_cost(10) > 0.0
