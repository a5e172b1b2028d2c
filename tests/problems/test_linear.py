"""Linear models: every loss and every kind of X, compared to plain NumPy."""

import math
import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from avare import problems
from avare.problems import matrix, rows
from loss_checks import (
    check_against_numpy,
    check_batch,
    check_copies,
    check_finite_differences,
    check_large_outputs,
    check_small_slopes,
    check_smoothness,
    check_sums,
    example,
    own_gradient,
)
from plain_losses import CASES, Case, Plain

every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
Softmax, Logistic, Squares, Hinge = (CASES[name] for name in ("Softmax", "Logistic", "LeastSquares", "SmoothedHinge"))


@every_loss
@pytest.mark.parametrize("bias", [False, True])
def test_rows_wider_than_a_tile(case: Case, bias: bool) -> None:
    if numba.config.DISABLE_JIT:
        pytest.skip("minutes without compiled code; the compiled run tests it")
    n, width = 6, matrix._TILE + 9  # four rows at once, and two by themselves
    X, y, generator = example(case, n, width, seed=3)
    check_sums(case.make(X / 10.0, y, l2=0.3, bias=bias), Plain(case, X / 10.0, y, l2=0.3, bias=bias), generator)


# --- numbers -------------------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.7])
def test_sums_are_those_of_plain_numpy(case: Case, sparse: bool, bias: bool, weighted: bool, l2: float) -> None:
    check_against_numpy(case, sparse=sparse, bias=bias, weighted=weighted, l2=l2)


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("chunk", [4, 6, 20, 21, 22])
def test_sums_are_made_of_any_chunks(case: Case, sparse: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_CHUNK", 1)
    monkeypatch.setattr(rows, "_FEWEST", chunk)
    X, y, generator = example(case, seed=1)
    problem = case.make(sp.csr_array(X) if sparse else X, y, l2=0.3, bias=True)
    check_sums(problem, Plain(case, X, y, 0.3, None, True), generator)


@every_loss
def test_derivatives_are_those_of_finite_differences(case: Case) -> None:
    check_finite_differences(case)


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", range(10))
def test_batches_of_any_size(case: Case, sparse: bool, size: int) -> None:
    X, y, generator = example(case, seed=3)
    weights = generator.lognormal(size=21)
    problem = case.make(sp.csr_array(X) if sparse else X, y, l2=5.0, sample_weight=weights, bias=True)
    plain = Plain(case, X, y, 5.0, weights, True)
    x = generator.normal(size=problem.dim)
    check_batch(problem, plain, x, generator.integers(0, 21, size), generator.normal(size=size))
    check_batch(problem, plain, x, np.full(size, 4), np.zeros(size))
    check_batch(problem, plain, x, np.arange(21)[::-1][:size], np.arange(size))


def test_a_batch_may_be_lists() -> None:
    X, y, _ = example(Logistic)
    problem = Logistic.make(X, y)
    gradient, norms = problem.batch_gradient([0, 1, 2, 0, 1], [3, 3], [1, -2])
    assert np.allclose(gradient, -problem.batch_gradient(np.array([0.0, 1, 2, 0, 1]), np.array([3]), np.ones(1))[0])
    assert norms[0] == norms[1]
    gradient, norms = problem.batch_gradient(np.zeros(5), [], [])
    assert (gradient == 0.0).all() and norms.shape == (0,)


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
@given(data=st.data())
def test_any_shape_and_any_values(case: Case, sparse: bool, data: st.DataObject) -> None:
    n, width = data.draw(st.integers(3, 10)), data.draw(st.integers(1, 6))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scale = 10.0 ** data.draw(st.integers(-6, 3))
    X = scale * generator.standard_t(2.0, (n, width)) * (generator.random((n, width)) < data.draw(st.floats(0, 1)))
    y = case.targets(n, generator)
    weights = data.draw(st.none() | st.lists(st.just(0.0) | st.floats(1e-3, 1e3), min_size=n, max_size=n))
    bias, l2 = data.draw(st.booleans()), data.draw(st.just(0.0) | st.floats(1e-6, 1e3))
    problem = case.make(sp.csr_array(X) if sparse else X, y, l2=l2, sample_weight=weights, bias=bias)
    plain = Plain(case, X, y, l2, weights, bias)
    x = generator.normal(size=problem.dim) * 10.0 ** data.draw(st.integers(-3, 2))
    # An output has an error of a few roundings of its summands, and so have its slope and value.
    outputs = np.abs(plain.X) @ np.abs(x.reshape(plain.outputs, -1)).T
    error = 1e-14 * (1.0 + outputs.max(axis=1) + np.abs(y)) * case.curvature * 2
    lengths = np.sqrt(np.square(plain.X).sum(axis=1))
    norms = plain.norms(x)
    assert (np.abs(problem.norms(x) - norms) <= plain.s * lengths * error + 1e-13 * norms).all()
    slack = float(np.sum(plain.s * lengths * error) + 1e-12 * (norms.sum() + l2 * np.linalg.norm(x)))
    assert np.linalg.norm(problem.gradient(x) - plain.gradient(x)) <= slack
    indices = generator.integers(0, n, 6)
    gradient, some = problem.batch_gradient(x, indices, np.ones(6))
    assert np.linalg.norm(gradient - plain.gradients(x)[indices].sum(axis=0)) <= 6 * slack
    # A value may be the square of an output: its error is that of the output times a slope, which may be large.
    size = 1.0 + outputs.max(axis=1) + np.abs(y)
    expected = plain.objective(x)
    assert abs(problem.objective(x) - expected) <= np.sum(plain.s * size * error * 10) * size.max() + 1e-12 * expected
    assert np.array_equal(some, problem.norms(x)[indices]) or np.allclose(some, problem.norms(x)[indices], rtol=1e-9)


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("output", [800.0, -800.0, 1e8])
def test_large_outputs_do_not_overflow(case: Case, sparse: bool, output: float) -> None:
    check_large_outputs(case, sparse=sparse, output=output)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NumPy warns of what is meant to overflow")
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_an_objective_that_is_too_large_is_infinite() -> None:
    problem = problems.LeastSquares(np.ones((2, 1)), [0.0, 0.0], l2=0.0)
    assert problem.objective([1e154]) == pytest.approx(1e308)
    assert problem.objective([1.5e154]) == problem.objective([1e200]) == math.inf
    wide = problems.Huber(np.array([[1e-200]]), [0.0], l2=0.0, delta=0.5)
    assert wide.objective([1e200]) == 0.375


@every_loss
def test_small_slopes_are_exact(case: Case) -> None:
    check_small_slopes(case)


# --- smoothness ----------------------------------------------------------------------------


@every_loss
def test_smoothness_bounds_how_much_gradients_change(case: Case) -> None:
    check_smoothness(case)


@every_loss
def test_smoothness_is_attained(case: Case) -> None:
    X, y, generator = example(case, seed=7)
    weights = generator.lognormal(size=21)
    problem = case.make(X, y, l2=2.1, sample_weight=weights, bias=True)
    for i in (0, 1, 2):
        row = np.append(X[i], 1.0)
        row /= row @ row  # so that its output is 1
        if case is Softmax:  # two classes of probability nearly 1/2, the third of e^-40
            x, step = np.concatenate([20.0 * row, 20.0 * row, -20.0 * row]), np.concatenate([row, -row, 0.0 * row])
        else:  # where the curvature is largest: at 0, at a residual of 0, or in the quadratic part
            x = (0.0 if case is Logistic else y[i] * 0.7 if case is Hinge else y[i]) * row
            step = row
        x, z = x + 1e-4 * step, x - 1e-4 * step
        change = np.linalg.norm(own_gradient(problem, x, i) - own_gradient(problem, z, i)) / np.linalg.norm(x - z)
        assert change == pytest.approx(problem.smoothness[i], rel=1e-7)


def test_smoothness_is_the_papers() -> None:
    X, y, _ = example(Softmax, seed=8)
    squares = np.square(X).sum(axis=1)
    assert np.allclose(problems.Softmax(X, y, l2=1.5).smoothness, 0.5 * squares + 1.5 / 21, rtol=1e-14)
    assert np.allclose(problems.Logistic(X, y > 0, l2=1.5).smoothness, 0.25 * squares + 1.5 / 21, rtol=1e-14)


# --- kinds of X ----------------------------------------------------------------------------


def strided(X: NDArray[Any]) -> NDArray[Any]:
    wide = np.full((2 * X.shape[0], 3 * X.shape[1]), np.nan, dtype=X.dtype)
    wide[::2, 1::3] = X
    return wide[::2, 1::3]


def read_only(X: NDArray[Any]) -> NDArray[Any]:
    X = X.copy()
    X.flags.writeable = False
    return X


def backwards(X: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1]


def with_int64(X: NDArray[Any]) -> Any:
    matrix = sp.csr_array(X)
    return sp.csr_array((matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)), shape=X.shape)


IN_PLACE: dict[str, Callable[[NDArray[Any]], Any]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": strided,
    "backwards": backwards,
    "read-only": read_only,
    "CSR array": sp.csr_array,
    "CSR matrix": sp.csr_matrix,
    "CSR of int64": with_int64,
}


def duplicated(X: NDArray[Any]) -> Any:
    """Each entry in two parts, unsorted."""
    rows, columns = np.nonzero(X)
    rows, columns = np.concatenate([rows, rows]), np.concatenate([columns, columns])
    values = np.concatenate([0.25 * X[X != 0], 0.75 * X[X != 0]])
    order = np.lexsort((-np.arange(len(rows)), rows))
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(X)))])
    return sp.csr_array((values[order], columns[order], starts), shape=X.shape)


def unsorted(X: NDArray[Any]) -> Any:
    matrix = sp.csr_array(X)
    for first, last in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        matrix.indices[first:last] = matrix.indices[first:last][::-1].copy()
        matrix.data[first:last] = matrix.data[first:last][::-1].copy()
    matrix.has_sorted_indices = False
    return matrix


CONVERTED: dict[str, Callable[[NDArray[Any]], Any]] = {
    "CSR with duplicates": duplicated,
    "CSR unsorted": unsorted,
    "CSC": sp.csc_array,
    "COO": sp.coo_matrix,
    "lists": lambda X: X.tolist(),
    "of the other byte order": lambda X: X.astype(X.dtype.newbyteorder()),
}


# Each takes seconds to compile.
LONG = {("F", np.float32), ("strided", np.float64), ("backwards", np.float64)}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(kind, dtype, marks=[pytest.mark.slow] if (kind, dtype) in LONG else [])
        for kind, dtype in product([*IN_PLACE, *CONVERTED], [np.float32, np.float64])
    ],
)
def test_any_kind_of_x_gives_the_same(kind: str, dtype: type) -> None:
    X, y, generator = example(Softmax, n=9, seed=9)
    X = X.astype(dtype)
    given = {**IN_PLACE, **CONVERTED}[kind](X)
    if hasattr(given, "tocsr"):
        assert np.array_equal(given.toarray(), X)
    plain = Plain(Softmax, X.astype(np.float64), y, 0.4, None, True)
    check_sums(problems.Softmax(given, y, l2=0.4, bias=True), plain, generator)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("Logistic", "F"), ("Huber", "CSR of int64")])
def test_float32_with_the_other_targets(name: str, kind: str) -> None:
    X, y, generator = example(CASES[name], n=9, seed=10)
    X = X.astype(np.float32).astype(np.float64)
    check_sums(
        CASES[name].make(IN_PLACE[kind](X.astype(np.float32)), y, l2=0.4), Plain(CASES[name], X, y, 0.4), generator
    )


@pytest.mark.parametrize(
    ("dtype", "sparse"), [(np.int8, False), (np.uint32, True), (np.float16, False), (np.int64, True)]
)
def test_other_numbers_are_converted(dtype: type, sparse: bool) -> None:
    X: NDArray[Any] = np.array([[1, 0], [2, 3], [0, 0], [5, 1]], dtype=dtype)
    problem = problems.LeastSquares(sp.csr_array(X) if sparse else X, [1, 2, 3, 4], l2=0.0)
    assert np.allclose(problem.gradient([1.0, 0.5]), X.T.astype(float) @ (X @ np.array([1.0, 0.5]) - [1, 2, 3, 4]))


@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_x_is_not_copied(kind: str, dtype: type) -> None:
    X, y, _ = example(Squares)
    given = IN_PLACE[kind](X.astype(dtype))
    rows = problems.LeastSquares(given, y, bias=True).model.matrix
    if kind.startswith("CSR"):
        assert rows.sparse is not None and rows.dense is None
        assert np.shares_memory(rows.sparse.values, given.data) and rows.sparse.values.dtype == dtype
        for own, places in ((rows.sparse.columns, given.indices), (rows.sparse.starts, given.indptr)):
            assert own.dtype == np.int32 and np.shares_memory(own, places) == (places.dtype == np.int32)
    else:
        assert rows.dense is not None and rows.sparse is None
        assert np.shares_memory(rows.dense, given)
        assert rows.dense.strides == given.strides and rows.dense.dtype == dtype


@pytest.mark.parametrize("kind", ["duplicated", "unsorted"])
def test_the_given_matrix_is_not_changed(kind: str) -> None:
    X, y, _ = example(Squares)
    given = {"duplicated": duplicated, "unsorted": unsorted}[kind](X)
    before = [part.copy() for part in (given.data, given.indices, given.indptr)]
    problems.LeastSquares(given, y).gradient(np.ones(5))
    for part, old in zip((given.data, given.indices, given.indptr), before, strict=True):
        assert np.array_equal(part, old)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the same arrays, but for an X that is large")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("C", np.float64),
        ("CSR array", np.float64),
        *(pytest.param(kind, np.float32, marks=pytest.mark.slow) for kind in ("C", "F", "CSR array")),
    ],
)
def test_memory_does_not_grow_with_x(kind: str, dtype: Any) -> None:
    n, width = 40_000, 50
    X: NDArray[Any] = np.random.default_rng(11).normal(size=(n, width)).astype(dtype)
    problem = problems.LeastSquares(IN_PLACE[kind](X), np.ones(n), bias=True)
    x = np.ones(width + 1)
    for measure, result in (("objective", 5 * 8 * n), ("gradient", 3 * 8 * n), ("norms", 5 * 8 * n)):
        getattr(problem, measure)(x)  # compiles
        tracemalloc.start()
        try:
            getattr(problem, measure)(x)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # A gradient has the output, the slope and the curvature of each example; an objective its output, loss and
        # length, and what the length is computed from. There are two parts of 2^16 numbers: the next one is made before
        # the last one is released. All rows would be fifty times 8 bytes each.
        assert peak <= result + (2 * 8 << 16) + 150_000


# --- labels --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["spam", "ham", "spam", "ham"], ["ham", "spam"]),
        (np.array(["spam", "ham", "spam", "ham"], dtype=object), ["ham", "spam"]),
        ([True, False, True, False], [False, True]),
        ([1, 0, 1, 0], [0, 1]),
        ([1, -1, 1, -1], [-1, 1]),
        ([7, -3, 7, -3], [-3, 7]),
        (np.array([9, 8, 9, 8], dtype=np.uint8), [8, 9]),
        ([0.5, 0.25, 0.5, 0.25], [0.25, 0.5]),
    ],
)
def test_the_larger_label_counts_as_plus_one(y: Any, classes: list[Any]) -> None:
    X = np.array([[2.0], [-1.0], [0.0], [0.0]])
    for name, slopes in (("Logistic", [-0.5, 0.5]), ("SmoothedHinge", [-1.0, 1.0])):
        problem: Any = CASES[name].make(X, y)
        assert problem.classes.tolist() == classes
        assert np.allclose(problem.batch_gradient([0.0], [0], [1.0])[0], slopes[0] * 2.0)
        assert np.allclose(problem.batch_gradient([0.0], [1], [1.0])[0], slopes[1] * -1.0)


@pytest.mark.parametrize("y", [["b", "c", "a", "b"], [1, 2, 0, 1], [0.0, 7.5, -1.5, 0.0], [True, True, False, True]])
def test_classes_in_order(y: list[Any]) -> None:
    problem = problems.Softmax(np.eye(4), y, l2=0.0)
    assert problem.classes.tolist() == sorted(set(y)) and problem.outputs == len(problem.classes)
    gradients = problem.coefficients(problem.gradient(np.zeros(problem.dim)))
    for column, label in enumerate(y):
        assert gradients[:, column].argmin() == sorted(set(y)).index(label)


# --- what else a problem has ---------------------------------------------------------------


def test_coefficients_are_a_table() -> None:
    problem = problems.Softmax(np.eye(3), [0, 1, 2], bias=True)
    assert problem.width == 4 and problem.dim == 12
    table = problem.coefficients(np.arange(12.0))
    assert np.array_equal(table, np.arange(12.0).reshape(3, 4))
    z = table[:, :3].T + table[:, 3]  # the outputs of each row of eye(3)
    expected = np.log(np.exp(z).sum(axis=1)) - np.diag(z)
    assert problem.objective(np.arange(12.0)) == pytest.approx(expected.sum() + 0.5 * np.sum(np.arange(12.0) ** 2))


def test_optimum_may_be_set() -> None:
    problem = problems.LeastSquares(np.eye(2), [1.0, 2.0])
    assert problem.optimum is None
    problem.optimum = 3
    assert problem.optimum == 3.0
    with pytest.raises(ValueError, match="optimum = nan: must be finite"):
        problem.optimum = math.nan
    problem.optimum = None
    assert problem.optimum is None


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
def test_copies_are_the_same(case: Case, sparse: bool) -> None:
    check_copies(case, sparse=sparse)


def test_repr() -> None:
    X, y, _ = example(Softmax)
    assert repr(problems.Softmax(X, y, l2=0.5)) == "Softmax(n=21, dim=15, l2=0.5)"
    assert repr(problems.Huber(X, y, delta=0.25)) == "Huber(n=21, dim=5, l2=1, delta=0.25)"
    assert repr(problems.SmoothedHinge(X, y > 0, gamma=2)) == "SmoothedHinge(n=21, dim=5, l2=1, gamma=2)"


# --- bad input -----------------------------------------------------------------------------


def spoilt(value: float, dtype: type = np.float64) -> NDArray[Any]:
    X: NDArray[Any] = np.ones((4, 3), dtype=dtype)
    X[2, 1] = value
    return X


def out_of_range() -> Any:
    matrix = sp.csr_array(np.ones((4, 3)))
    matrix.indices[5] = 3
    return matrix


def float_columns() -> Any:
    matrix = sp.csr_array(np.ones((4, 3)))
    matrix.indices = matrix.indices.astype(np.float64)
    return matrix


def falling_starts() -> Any:
    matrix = sp.csr_array(np.ones((4, 3)))
    matrix.indptr[1] = 11
    return matrix


GOOD = np.eye(4, 3)
BAD_DATA: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (spoilt(math.nan), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = nan: must be finite"),
    (spoilt(-math.inf), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = -inf: must be finite"),
    (spoilt(math.nan, np.float32), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = nan"),
    (np.asfortranarray(spoilt(math.nan)), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = nan"),
    (strided(spoilt(math.inf)), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = inf"),
    (sp.csr_array(spoilt(math.nan)), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = nan: must be finite"),
    (sp.csc_array(spoilt(math.inf, np.float32)), [0, 1, 0, 1], {}, ValueError, r"X\[2, 1\] = inf: must be finite"),
    (float_columns(), [0, 1, 0, 1], {}, TypeError, "X is no CSR matrix: indices has dtype float64: must hold integers"),
    (np.ones(4), [0, 1, 0, 1], {}, ValueError, r"X has shape \(4,\): must have 2 dimensions"),
    (np.ones((4, 3, 1)), [0, 1, 0, 1], {}, ValueError, r"X has shape \(4, 3, 1\): must have 2 dimensions"),
    (sp.coo_array(np.ones(4)), [0, 1, 0, 1], {}, ValueError, r"X has shape \(4,\): must have 2 dimensions"),
    (np.ones((0, 3)), [], {}, ValueError, r"X has shape \(0, 3\): must not be empty"),
    (np.ones((4, 0)), [0, 1, 0, 1], {}, ValueError, r"X has shape \(4, 0\): must not be empty"),
    (sp.csr_array((0, 3)), [], {}, ValueError, r"X has shape \(0, 3\): must not be empty"),
    (GOOD + 1j, [0, 1, 0, 1], {}, TypeError, "X has dtype complex128: must hold real numbers"),
    (sp.csr_array(GOOD + 1j), [0, 1, 0, 1], {}, TypeError, "X has dtype complex128: must hold real numbers"),
    (GOOD > 0, [0, 1, 0, 1], {}, TypeError, "X has dtype bool"),
    ([["a"]] * 4, [0, 1, 0, 1], {}, TypeError, "X has dtype <U1"),
    ([[1.0], [1.0, 2.0]], [0, 1], {}, ValueError, "X is not an array: "),
    (out_of_range(), [0, 1, 0, 1], {}, ValueError, "X is no CSR matrix: indices must be < 3"),
    (falling_starts(), [0, 1, 0, 1], {}, ValueError, "X is no CSR matrix: indptr must be a non-decreasing sequence"),
    (GOOD, [0, 1, 0], {}, ValueError, "y has length 3: must match X, which has 4"),
    (GOOD, [[0, 1, 0, 1]], {}, ValueError, r"y has shape \(1, 4\): must have 1 dimension"),
    (GOOD, [0.0, 1.0, math.nan, 1.0], {}, ValueError, r"y\[2\] = nan: must be finite"),
    (GOOD, [0.0, 1.0, 0.0, math.inf], {}, ValueError, r"y\[3\] = inf: must be finite"),
    (GOOD, [[0], [0, 1]], {}, ValueError, "y is not an array: "),
    (GOOD, [0, 1, 0, 1], {"sample_weight": [1, 1, -2, 1]}, ValueError, r"sample_weight\[2\] = -2.0: must be finite"),
    (GOOD, [0, 1, 0, 1], {"sample_weight": [1, math.nan, 1, 1]}, ValueError, r"sample_weight\[1\] = nan"),
    (GOOD, [0, 1, 0, 1], {"sample_weight": [1, 1]}, ValueError, "sample_weight has length 2: must match X"),
    (GOOD, [0, 1, 0, 1], {"sample_weight": [[1, 1, 1, 1]]}, ValueError, r"sample_weight has shape \(1, 4\)"),
    (GOOD, [0, 1, 0, 1], {"bias": 1}, TypeError, "bias = 1: must be True or False"),
    (GOOD, [0, 1, 0, 1], {"bias": "yes"}, ValueError, "bias = 'yes': must be True, False or \"free\""),
    (GOOD, [0, 1, 0, 1], {"l2": -1.0}, ValueError, "l2 = -1.0: must be at least 0"),
    (GOOD, [0, 1, 0, 1], {"l2": math.nan}, ValueError, "l2 = nan: must be finite"),
    (GOOD, [0, 1, 0, 1], {"l2": "1"}, TypeError, "l2 = '1': must be a number"),
]


@pytest.mark.parametrize("name", ["Softmax", "Logistic", "LeastSquares"])
@pytest.mark.parametrize(("X", "y", "arguments", "error", "message"), BAD_DATA)
def test_refuses_bad_data(
    name: str, X: Any, y: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        CASES[name].make(X, y, **arguments)


@pytest.mark.parametrize("name", ["Softmax", "Logistic", "SmoothedHinge"])
def test_refuses_labels_that_make_no_classes(name: str) -> None:
    with pytest.raises(ValueError, match=r"^y has 1 class, 'a': must have at least 2$"):
        CASES[name].make(GOOD, ["a"] * 4)
    with pytest.raises(TypeError, match=r"y holds labels that have no order: .* 'str'"):
        CASES[name].make(GOOD, np.array(["a", math.nan, "a", "b"], dtype=object))
    if name != "Softmax":
        with pytest.raises(ValueError, match=r"^y has 3 classes, 0, 1, 2: must have 2$"):
            CASES[name].make(GOOD, [0, 1, 2, 0])
        with pytest.raises(ValueError, match=r"^y has 4 classes, 'a', 'b', 'c', \.\.\.: must have 2$"):
            CASES[name].make(GOOD, ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("Huber", {"delta": 0.0}, ValueError, "delta = 0.0: must be above 0"),
        ("Huber", {"delta": math.inf}, ValueError, "delta = inf: must be finite"),
        ("SmoothedHinge", {"gamma": -1}, ValueError, "gamma = -1.0: must be above 0"),
        ("SmoothedHinge", {"gamma": None}, TypeError, "gamma = None: must be a number"),
    ],
)
def test_refuses_bad_parameters(name: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CASES[name].make(GOOD, [0, 1, 0, 1], **arguments)


def test_refuses_targets_that_are_not_numbers() -> None:
    for name in ("LeastSquares", "Huber"):
        with pytest.raises(TypeError, match="y has dtype <U1: must hold real numbers"):
            CASES[name].make(GOOD, ["a", "b", "a", "b"])
        with pytest.raises(TypeError, match="y has dtype bool"):
            CASES[name].make(GOOD, [True, False, True, True])


BAD_POINTS: list[tuple[Any, type[Exception], str]] = [
    (np.ones(2), ValueError, r"has shape \(2,\): must be \(3,\)"),
    (np.ones((1, 3)), ValueError, r"has shape \(1, 3\): must be \(3,\)"),
    (1.0, ValueError, r"has shape \(\): must be \(3,\)"),
    ([0.0, math.nan, 1.0], ValueError, r"\[1\] = nan: must be finite"),
    ([0.0, 1.0, -math.inf], ValueError, r"\[2\] = -inf: must be finite"),
    ([1j, 0, 0], TypeError, "has dtype complex128: must hold real numbers"),
    (["a", "b", "c"], TypeError, "has dtype <U1: must hold real numbers"),
    ([[0.0], [1.0, 2.0]], ValueError, "is not an array"),
]


@pytest.mark.parametrize(("x", "error", "message"), BAD_POINTS)
def test_refuses_bad_points(x: Any, error: type[Exception], message: str) -> None:
    problem = problems.LeastSquares(GOOD, np.ones(4))
    good = np.ones(3)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("x", lambda: problem.objective(x)),
        ("x", lambda: problem.gradient(x)),
        ("x", lambda: problem.norms(x)),
        ("x", lambda: problem.evaluate(x)),
        ("x", lambda: problem.batch_gradient(x, [0], [1.0])),
        ("x", lambda: problem.hessian_product(x, good)),
        ("direction", lambda: problem.hessian_product(good, x)),
        ("x", lambda: problem.gram(x)),
        ("x", lambda: problem.coefficients(x)),
        ("start", lambda: problem.minimize(start=x)),
    ]
    for argument, call in calls:
        with pytest.raises(error, match=f"^{argument}.*{message}"):
            call()


@pytest.mark.parametrize(
    ("indices", "weights", "error", "message"),
    [
        ([0, 4], [1.0, 1.0], ValueError, r"indices\[1\] = 4: must be in \[0, 4\)"),
        ([-1], [1.0], ValueError, r"indices\[0\] = -1: must be in \[0, 4\)"),
        ([0.0], [1.0], TypeError, "indices has dtype float64: must hold integers"),
        ([[0]], [1.0], ValueError, r"indices has shape \(1, 1\)"),
        ([0, 1], [1.0], ValueError, "weights has length 1: must match indices, which has 2"),
        ([0, 1], [1.0, math.nan], ValueError, r"weights\[1\] = nan: must be finite"),
        ([0, 1], [[1.0], [2.0]], ValueError, r"weights has shape \(2, 1\): must have 1 dimension"),
        ([0], 1.0, ValueError, r"weights has shape \(\): must have 1 dimension"),
        ([0], [True], TypeError, "weights has dtype bool"),
    ],
)
def test_refuses_bad_batches(indices: Any, weights: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        problems.LeastSquares(GOOD, np.ones(4)).batch_gradient(np.ones(3), indices, weights)


def test_refuses_bad_probabilities() -> None:
    problem = problems.LeastSquares(GOOD, np.ones(4))
    with pytest.raises(ValueError, match="p has length 3: must match n, which has 4"):
        problem.evaluate(np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match=r"p\[1\] = -0.5"):
        problem.evaluate(np.ones(3), [0.5, -0.5, 0.5, 0.5])


def test_an_example_that_is_never_drawn_costs_only_if_it_has_a_norm() -> None:
    problem = problems.LeastSquares(np.array([[1.0], [1.0], [0.0]]), [3.0, 0.0, 1.0], l2=0.0)
    assert problem.evaluate([2.0], [0.25, 0.75, 0.0])[2] == pytest.approx(1.0 / 0.25 + 4.0 / 0.75)
    assert problem.evaluate([2.0], [0.0, 1.0, 0.0])[2] == math.inf


def test_a_data_frame_of_numbers_and_of_true_and_false() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [31.0, 45.0, 28.0], "is_new": [True, False, True]})
    frame["visits"] = pandas.array([1, 5, 2], dtype="Int64")
    problem = problems.Logistic(frame, [0, 1, 0], l2=1.0, bias=True)
    assert problem.names == ["age", "is_new", "visits", "bias"]
    assert problem.model.matrix.dense is not None
    assert problem.model.matrix.dense[:, :3].tolist() == [[31.0, 1.0, 1.0], [45.0, 0.0, 5.0], [28.0, 1.0, 2.0]]
    with pytest.raises(TypeError, match="X has dtype object"):
        problems.Logistic(frame.assign(city=["a", "b", "a"]), [0, 1, 0], l2=1.0)
