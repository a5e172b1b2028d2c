"""Linear models in plain NumPy, one loss after another as its definition reads: what kernels are tested against."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp, softmax

from avare import problems

Array = NDArray[np.float64]

# Away from neutral values: parameters that are not 1.
PARAMETERS: dict[str, dict[str, float]] = {
    "Softmax": {},
    "Logistic": {},
    "LeastSquares": {},
    "Huber": {"delta": 0.8},
    "SmoothedHinge": {"gamma": 0.6},
}
LOSSES = list(PARAMETERS)
CURVATURES = {"Softmax": 0.5, "Logistic": 0.25, "LeastSquares": 1.0, "Huber": 1.0, "SmoothedHinge": 1.0 / 0.6}


def make(name: str, X: Any, y: ArrayLike, **arguments: Any) -> problems.Linear:
    """A problem with the parameters above."""
    problem = getattr(problems, name)(X, y, **{**PARAMETERS[name], **arguments})
    assert isinstance(problem, problems.Linear)
    return problem


def targets(name: str, n: int, generator: np.random.Generator) -> Array:
    """Some y for n examples: three classes, two, or numbers."""
    if name == "Softmax":
        return generator.permutation(np.arange(n) % 3).astype(np.float64)
    if name in ("Logistic", "SmoothedHinge"):
        return generator.permutation(np.arange(n) % 2) * 2.0 - 1.0
    return generator.normal(0.0, 2.0, n)


def loss(name: str, z: Array, y: float) -> tuple[float, Array, Array]:
    """Value, slope and curvature (a matrix) of the loss of one example, in its outputs z."""
    if name == "Softmax":
        p, chosen = softmax(z), np.eye(len(z))[int(y)]
        return float(logsumexp(z) - z[int(y)]), p - chosen, np.diag(p) - np.outer(p, p)
    (output,) = z
    if name == "Logistic":
        first, second = -y * expit(-y * output), expit(output) * expit(-output)
        result = float(np.logaddexp(0.0, -y * output))
    elif name == "LeastSquares":
        first, second = output - y, 1.0
        result = 0.5 * (output - y) ** 2
    elif name == "Huber":
        delta, r = PARAMETERS[name]["delta"], output - y
        inside = abs(r) <= delta
        first, second = (r, 1.0) if inside else (delta * np.sign(r), 0.0)
        result = 0.5 * r * r if inside else delta * (abs(r) - 0.5 * delta)
    else:
        gamma, u = PARAMETERS[name]["gamma"], 1.0 - y * output
        first = 0.0 if u <= 0.0 else -y * u / gamma if u <= gamma else -y
        second = 1.0 / gamma if 0.0 < u < gamma else 0.0
        result = 0.0 if u <= 0.0 else u * u / (2.0 * gamma) if u <= gamma else u - 0.5 * gamma
    return float(result), np.array([first]), np.array([[second]])


@dataclass
class Plain:
    """f(x) = sum_i s_i loss(y_i, a_i.x) + l2/2 |x|^2, by one pass over the examples after another."""

    name: str
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
        self.outputs = len(np.unique(self.y)) if self.name == "Softmax" else 1
        self.dim = self.outputs * self.X.shape[1]

    def _each(self, x: Array) -> list[tuple[float, Array, Array]]:
        table = np.reshape(x, (self.outputs, -1))
        return [loss(self.name, table @ row, float(y)) for row, y in zip(self.X, self.y, strict=True)]

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
        return np.asarray(CURVATURES[self.name] * self.s * lengths + self.l2 / len(self.X))
