"""Linear models in plain NumPy, written as their definitions read: the reference for the kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp, softmax

from avare import problems

Array = NDArray[np.float64]
Derivatives = tuple[float, Array, Array]
"""Value, slope (a vector) and curvature (a matrix) of a loss, in the outputs of one example."""


@dataclass(frozen=True)
class Case:
    """A loss, parameters away from their neutral values, and its definition in plain NumPy."""

    kind: Any
    """The class, derived from `problems.Linear`."""
    definition: Callable[..., Derivatives]
    """Function of the outputs z (an array) and the target y, and of the parameters by name."""
    curvature: float
    """The largest curvature, with these parameters."""
    parameters: dict[str, float] = field(default_factory=dict)

    def make(self, X: Any, y: ArrayLike, **arguments: Any) -> problems.Linear:
        """A problem with these parameters."""
        problem = self.kind(X, y, **{**self.parameters, **arguments})
        assert isinstance(problem, problems.Linear)
        return problem

    def targets(self, n: int, generator: np.random.Generator) -> Array:
        """Some y for n examples: three classes, two, or numbers."""
        if self.kind.target == "classes":
            return generator.permutation(np.arange(n) % 3).astype(np.float64)
        if self.kind.target == "two classes":
            return generator.permutation(np.arange(n) % 2) * 2.0 - 1.0
        return generator.normal(0.0, 2.0, n)

    def outputs(self, y: Array) -> int:
        """The number of outputs per example."""
        return len(np.unique(y)) if self.kind.target == "classes" else 1

    def derivatives(self, z: Array, y: float) -> Derivatives:
        """Value, slope and curvature at the outputs z of an example with the target y."""
        return self.definition(z, y, **self.parameters)


def of_one(definition: Callable[..., tuple[float, float, float]]) -> Callable[..., Derivatives]:
    """The definition of a loss with one output, from numbers."""

    def derivatives(z: Array, y: float, **parameters: float) -> Derivatives:
        value, slope, curvature = definition(float(z[0]), y, **parameters)
        return float(value), np.array([slope]), np.array([[curvature]])

    return derivatives


def _softmax(z: Array, y: float) -> Derivatives:
    p, chosen = softmax(z), np.eye(len(z))[int(y)]
    return float(logsumexp(z) - z[int(y)]), p - chosen, np.diag(p) - np.outer(p, p)


def _logistic(z: float, y: float) -> tuple[float, float, float]:
    return np.logaddexp(0.0, -y * z), -y * expit(-y * z), expit(z) * expit(-z)


def _least_squares(z: float, y: float) -> tuple[float, float, float]:
    return 0.5 * (z - y) ** 2, z - y, 1.0


def _huber(z: float, y: float, delta: float) -> tuple[float, float, float]:
    r = z - y
    if abs(r) <= delta:
        return 0.5 * r * r, r, 1.0
    return delta * (abs(r) - 0.5 * delta), delta * np.sign(r), 0.0


def _smoothed_hinge(z: float, y: float, gamma: float) -> tuple[float, float, float]:
    u = 1.0 - y * z
    if u <= 0.0:
        return 0.0, 0.0, 0.0
    if u < gamma:
        return u * u / (2.0 * gamma), -y * u / gamma, 1.0 / gamma
    return u - 0.5 * gamma, -y, 0.0


CASES = {
    "Softmax": Case(problems.Softmax, _softmax, 0.5),
    "Logistic": Case(problems.Logistic, of_one(_logistic), 0.25),
    "LeastSquares": Case(problems.LeastSquares, of_one(_least_squares), 1.0),
    "Huber": Case(problems.Huber, of_one(_huber), 1.0, {"delta": 0.8}),
    "SmoothedHinge": Case(problems.SmoothedHinge, of_one(_smoothed_hinge), 1.0 / 0.6, {"gamma": 0.6}),
}


@dataclass
class Plain:
    """f(x) = sum_i s_i loss(y_i, a_i.x) + l2/2 |x|^2, one example after another."""

    case: Case
    X: Array
    y: Array
    l2: float = 0.0
    sample_weight: ArrayLike | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        self.X = np.array(self.X, dtype=np.float64)
        if self.bias:
            self.X = np.hstack([self.X, np.ones((len(self.X), 1))])
        self.s = np.ones(len(self.X)) if self.sample_weight is None else np.asarray(self.sample_weight, dtype=float)
        self.outputs = self.case.outputs(self.y)
        self.dim = self.outputs * self.X.shape[1]

    def _each(self, x: Array) -> list[Derivatives]:
        table = np.reshape(x, (self.outputs, -1))
        return [self.case.derivatives(table @ row, float(y)) for row, y in zip(self.X, self.y, strict=True)]

    def objective(self, x: Array) -> float:
        values = [s * value for s, (value, _, _) in zip(self.s, self._each(x), strict=True)]
        return float(np.sum(values) + 0.5 * self.l2 * np.sum(np.square(x)))

    def gradients(self, x: Array) -> Array:
        """A row for each example, without the l2 term."""
        parts = zip(self.s, self._each(x), self.X, strict=True)
        return np.array([s * np.outer(slope, row).ravel() for s, (_, slope, _), row in parts])

    def norms(self, x: Array) -> Array:
        return np.array([np.sqrt(np.sum(np.square(row))) for row in self.gradients(x)])

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.gradients(x).sum(axis=0) + self.l2 * np.asarray(x))

    def hessian(self, x: Array) -> Array:
        total = self.l2 * np.eye(self.dim)
        for s, (_, _, curvature), row in zip(self.s, self._each(x), self.X, strict=True):
            total += s * np.kron(curvature, np.outer(row, row))
        return total

    def gram(self, x: Array) -> Array:
        parts = zip(self.s, self._each(x), self.X, strict=True)
        return np.asarray(sum(s * np.trace(c) / self.outputs * np.outer(row, row) for s, (_, _, c), row in parts))

    def smoothness(self) -> Array:
        lengths = np.array([np.sum(np.square(row)) for row in self.X])
        return np.asarray(self.case.curvature * self.s * lengths + self.l2 / len(self.X))
