"""The metric of a chain: a matrix F with F F^T near the covariance of the posterior, in which all directions are alike.

A chain moves z in x = F z. If the Hessian of f is A and F F^T is its inverse, then f has curvature 1 along each
direction of z. Columns that are scaled, correlated or nearly collinear then mix as independent ones do. F is one of

- a diagonal, ``root``;
- a whole matrix, ``factor``, for at most `WIDEST` coordinates;
- for more, diag(root) (I + B^T diag(gain) B), with directions B in which the scaled curvature differs most from 1. The
  diagonal is estimated with random signs (Bekas, Kokiopoulou and Saad, "An estimator for the diagonal of a matrix",
  2007), and the directions are eigenvectors.
"""

from typing import Any, NamedTuple

import numpy as np

from avare._compilation import lean, product
from avare.problems import Linear
from avare.problems.base import Vector

WIDEST = 1000
"""Coordinates up to which the metric is a whole matrix: each step then costs two products with it, and a measurement of
the gradient noise costs its eigenvectors. With 300 columns of rank 25, 32 directions were too few, and chains diverged.
"""
_RANK = 32
"""Directions for more coordinates, and vectors of random signs that estimate the diagonal: a guess."""
_FLAT = 1e-12
"""Curvatures count as at least this part of the largest, so that no direction is scaled by more than 10^6."""
_PRIOR = 20.0
"""Draws of the last metric that count with the new ones: a guess. It makes the metric positive."""
_LEAST_VALUE = 1e-20
"""Eigenvalues are at least this part of the largest: the factor has their fourth roots, within a range of 10^5."""
_SEED = 20  # any number: the same problem gives the same metric


class Metric(NamedTuple):
    """A matrix F."""

    root: Vector
    factor: Vector
    """All of F, or empty."""
    basis: Vector
    """B, one direction per row; may be empty."""
    gain: Vector
    """By how much F differs from the diagonal along each direction of B."""


def diagonal(scale: Vector) -> Metric:
    """Return the metric with F F^T = D."""
    return Metric(np.sqrt(scale), np.empty((0, 0)), np.empty((0, len(scale))), np.empty(0))


def blank(dim: int, widest: int = WIDEST) -> Metric:
    """Return a metric of the shape that `metric_at` returns, to be filled by a saved one."""
    if dim <= widest:
        return diagonal(np.ones(dim))._replace(factor=np.eye(dim))
    return diagonal(np.ones(dim))._replace(basis=np.zeros((_RANK, dim)), gain=np.zeros(_RANK))


def metric_at(problem: Linear, x: Vector, widest: int = WIDEST) -> Metric:
    """Return the metric of the Hessian of f at x, a whole matrix for up to `widest` coordinates."""
    if problem.dim <= widest:
        curvature = problem.hessian(x)
        root = root_of(np.diag(curvature))
        return diagonal(root**2)._replace(factor=root[:, None] * inverse_root(root[:, None] * curvature * root))
    from scipy.sparse.linalg import LinearOperator, eigsh

    squares = np.zeros(problem.dim)
    generator = np.random.default_rng(_SEED)
    for _ in range(_RANK):  # the diagonal of the Hessian
        signs = generator.choice([-1.0, 1.0], problem.dim)
        squares += signs * problem.hessian_product(x, signs) / _RANK
    root = root_of(np.maximum(squares, problem.penalty.l2))

    def scaled(direction: Vector) -> Vector:
        return np.asarray(root * problem.hessian_product(x, root * direction.ravel()))

    operator: Any = LinearOperator((problem.dim, problem.dim), scaled, dtype=np.float64)
    values, vectors = eigsh(operator, _RANK, which="BE", tol=1e-2, v0=generator.standard_normal(problem.dim))
    gain = 1.0 / np.sqrt(np.maximum(values, _FLAT * float(values.max()))) - 1.0
    return diagonal(root**2)._replace(basis=np.ascontiguousarray(vectors.T), gain=gain)


def balanced_metric(metric: Metric, away: Vector, gradients: Vector) -> Metric:
    """Return the metric in which draws and gradients have the same covariance, with some draws of the old one added."""
    slopes, places = whitened(metric, gradients), np.asarray(np.linalg.solve(metric.factor, away.T).T, np.float64)
    slopes -= slopes.mean(axis=0)
    prior = _PRIOR * np.eye(away.shape[1])
    root = inverse_root(slopes.T @ slopes + prior)
    inner = np.linalg.solve(root, np.linalg.solve(root, places.T @ places + prior).T)
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    values = np.maximum(values, _LEAST_VALUE * values[-1])  # otherwise the factor would be singular
    return metric._replace(factor=metric.factor @ root @ vectors * values**0.25)


def inverse_root(matrix: Vector) -> Vector:
    """Return a root of the inverse of a symmetric matrix; eigenvalues are at least a part of the largest."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray(vectors / np.sqrt(np.maximum(values, _FLAT * max(float(values[-1]), 1e-300))))


def whitened(metric: Metric, gradients: Vector) -> Vector:
    """Return F^T g for each row g."""
    if len(metric.factor):
        return np.asarray(gradients @ metric.factor)
    scaled = gradients * metric.root
    return np.asarray(scaled + (scaled @ metric.basis.T * metric.gain) @ metric.basis)


def covariance(metric: Metric, gradients: Vector) -> Vector:
    """Return the covariance of F^T g over the rows g; only its diagonal if F is not a whole matrix."""
    found = whitened(metric, gradients - gradients.mean(axis=0))
    products = found.T @ found if len(metric.factor) else (found**2).sum(axis=0)
    return np.asarray(products / (len(found) - 1))


def coloured(metric: Metric, moves: Vector) -> Vector:
    """Return F z for each row z."""
    if len(metric.factor):
        return np.asarray(moves @ metric.factor.T)
    return np.asarray((moves + (moves @ metric.basis.T * metric.gain) @ metric.basis) * metric.root)


def root_of(curvature: Vector) -> Vector:
    """Return one over the root of each curvature; curvatures are at least a part of the largest."""
    return np.asarray(1.0 / np.sqrt(np.maximum(curvature, _FLAT * max(float(curvature.max()), 1e-300))))


# --- kernels -------------------------------------------------------------------------------


@lean
def whiten(metric, gradient, result):
    """Set the result to F^T g."""
    if len(metric.factor) > 0:
        _add_rows(metric.factor, gradient, result)
        return
    for j in range(len(result)):
        result[j] = metric.root[j] * gradient[j]
    _add_low_rank(metric.basis, metric.gain, result)


@lean
def colour(metric, move, result):
    """Set the result to F z; it may overwrite z."""
    if len(metric.factor) > 0:
        _multiply(metric.factor, move, result)
        return
    _add_low_rank(metric.basis, metric.gain, move)
    for j in range(len(result)):
        result[j] = metric.root[j] * move[j]


@product
def _add_rows(matrix, vector, result):
    for j in range(len(result)):
        result[j] = 0.0
    for i in range(len(vector)):
        for j in range(len(result)):
            result[j] += matrix[i, j] * vector[i]


@product
def _multiply(matrix, vector, result):
    for i in range(len(result)):
        total = 0.0
        for j in range(len(vector)):
            total += matrix[i, j] * vector[j]
        result[i] = total


@product
def _add_low_rank(basis, gain, vector):
    """Add B^T diag(gain) B v to a vector v, one direction after another: they are orthogonal."""
    for k in range(len(basis)):
        along = 0.0
        for j in range(len(vector)):
            along += basis[k, j] * vector[j]
        along *= gain[k]
        for j in range(len(vector)):
            vector[j] += along * basis[k, j]
