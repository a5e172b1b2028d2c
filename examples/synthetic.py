"""The paper's synthetic problem: a logistic regression whose rows differ widely in length.

Directions are drawn at random, divided by their squared length and multiplied by a log-normal
one; labels come from a logistic model.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import avare
from avare.samplers import get, names

Vector = NDArray[np.float64]


class Logistic:
    """f(x) = sum_i log(1 + exp(-y_i a_i.x)) + l2/2 |x|^2."""

    def __init__(self, n: int = 100, dimension: int = 10, l2: float = 1.0, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.n, self.dimension, self.l2 = n, dimension, l2
        directions = generator.normal(size=(n, dimension))
        lengths = generator.lognormal(0.0, 1.0, n)
        self.rows = directions / (directions**2).sum(axis=1, keepdims=True) * lengths[:, None]
        chance = 1.0 / (1.0 + np.exp(-self.rows @ generator.normal(size=dimension)))
        self.rows *= np.where(generator.random(n) < chance, 1.0, -1.0)[:, None]  # the label's sign included
        self.lengths = np.linalg.norm(self.rows, axis=1)
        self.constants = self.lengths**2 / 4.0 + l2 / n  # smoothness, by example
        self.smoothness = float(self.constants.max())
        self.least = self._minimum()
        self.x = np.zeros(dimension)  # where training is

    def objective(self, x: Vector) -> float:
        """f(x)."""
        return float(np.logaddexp(0.0, -self.rows @ x).sum() + self.l2 / 2.0 * x @ x)

    def slopes(self, x: Vector, indices: NDArray[np.int64] | slice = slice(None)) -> Vector:
        """The derivative of the loss of some examples by a.x."""
        slopes: Vector = -1.0 / (1.0 + np.exp(self.rows[indices] @ x))
        return slopes

    def norms(self, x: Vector) -> Vector:
        """The gradient norm of each example."""
        norms: Vector = np.abs(self.slopes(x)) * self.lengths
        return norms

    def _minimum(self) -> float:
        x = np.zeros(self.dimension)
        for _ in range(30):  # Newton's method
            slopes = self.slopes(x)
            hessian = (self.rows * (-slopes * (1.0 + slopes))[:, None]).T @ self.rows + self.l2 * np.eye(self.dimension)
            x -= np.linalg.solve(hessian, self.rows.T @ slopes + self.l2 * x)
        return self.objective(x)


def train(problem: Logistic, sampler: avare.Sampler, step_size: avare.schedules.Schedule, epochs: int) -> Vector:
    """SGD from 0; before and after each epoch: suboptimality, relative error of p, running gain."""
    problem.x = np.zeros(problem.dimension)
    trace = []
    for epoch in range(epochs + 1):
        error = avare.diagnostics.relative_error(problem.norms(problem.x), sampler.probabilities())
        trace.append((problem.objective(problem.x) - problem.least, error, sampler.gain))
        for _ in range(problem.n // sampler.batch_size if epoch < epochs else 0):
            batch = sampler.sample()
            slopes = problem.slopes(problem.x, batch.indices)
            gradient = (batch.weights * slopes) @ problem.rows[batch.indices] + problem.l2 * problem.x
            step = step_size(sampler.steps) * gradient
            problem.x = problem.x - step
            sampler.update(batch.indices, np.abs(slopes) * problem.lengths[batch.indices])
            if isinstance(sampler, avare.Safe):
                sampler.move(float(np.linalg.norm(step)))
    return np.array(trace)


def adaptation(seeds: int, epochs: int = 100) -> dict[str, list[tuple[float, float]]]:
    """By sampler and seed, the relative errors of its distribution and of a uniform one at the same iterates.

    Both are means over the last five epochs. Batches of 1, the theory's settings: T = all draws,
    G = the longest row.
    """
    data = avare.datasets.load("synthetic")
    problem = avare.problems.Logistic(data.X, data.y, l2=1.0)
    lengths, constants = problem.lengths, problem.smoothness
    step_size = avare.schedules.inverse_time(problem.n, constants.max(), problem.l2)
    limits = {"horizon": epochs * problem.n, "bound": float(lengths.max())}
    arguments: dict[str, dict[str, Any]] = {
        "Static": {"smoothness": constants},
        "Safe": {"smoothness": constants, "bound": limits["bound"]},
        "Mixture": {"components": np.stack([constants, lengths])},
        **dict.fromkeys(("Mabs", "Vrb", "Osmd"), limits),
    }
    errors: dict[str, list[tuple[float, float]]] = {}
    for name in names():
        errors[name] = []
        for seed in range(seeds):
            uniform: list[float] = []
            sampler = get(name)(problem.n, 1, seed=seed, **arguments.get(name, {}))
            run = avare.sgd(
                problem,
                sampler,
                step_size,
                epochs=epochs,
                callback=lambda now, found=uniform: found.append(avare.diagnostics.gain(problem.norms(now.x)) - 1.0),
            )
            errors[name].append((float(run.trace.relative_error[-5:].mean()), float(np.mean(uniform[-5:]))))
    return errors
