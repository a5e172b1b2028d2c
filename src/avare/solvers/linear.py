"""What SAGA needs of a linear model: a sampler by name, the scale of the columns, a step size, and when to stop."""

import inspect
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._randomness import Seed
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler, build, get
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.steps import Steps
from avare.solvers.updates.proximal import proximal

DEFAULT = "Calibrated"
"""The sampler of `saga` by default."""
_BATCH = 32
_ROWS, _ROUNDS = 1024, 10  # of the power method: a rough estimate is enough
_SHARE = 0.2  # of the batch over the total smoothness, and ...
_LARGEST = 0.1  # ... of one over the smoothness of the sum: good on several problems, with and without weights


def batch_size_of(n: int) -> int:
    """Choose a batch size: 32, but at most a hundredth of the examples."""
    return min(_BATCH, math.ceil(n / 100))


def build_by_norms(
    name: str, problem: Linear, batch_size: int | None, norms: Vector, scores: Vector, seed: Seed, **more: Any
) -> Sampler:
    """Build a sampler by name, with first norms and fixed scores, and those of more options that it has."""
    kind = get(name)
    parameters = inspect.signature(kind).parameters
    options = {key: value for key, value in {"initial_norms": norms, **more}.items() if key in parameters}
    if "smoothness" in kind.needs:
        options["smoothness"] = scores
    size = batch_size_of(problem.n) if batch_size is None else batch_size
    return build(name, problem, size, lasting_floor=True, seed=seed, **options)


class Preconditioner(NamedTuple):
    """How steps scale with the columns of X, so that data need not be scaled."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise 0."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner, sqrt(sum_j D_j a_ij^2)."""


def bends_of(problem: Linear) -> Vector:
    """Return the largest curvature of each example, times its weight."""
    weights = problem.model.sample_weight
    return problem.curvature * (weights if len(weights) else np.ones(problem.n))


def _rows_of(problem: Linear) -> Any:
    """Return the rows; dense columns are centred if there is a free bias."""
    return problem.rows(centred=problem.model.matrix.sparse is None)


def preconditioner_of(problem: Linear) -> Preconditioner:
    """Measure the columns of X. O(size of X)."""
    rows = _rows_of(problem)
    curvature = rows.squares(bends_of(problem)) + problem.penalty.l2[: problem.width]
    inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=curvature > 0.0)
    shift = np.zeros(problem.width)
    if rows.means is not None:
        shift[:-1] = rows.means
    return Preconditioner(inverse, shift, np.sqrt(rows.lengths(inverse)).astype(np.float32))


def step_size_of(problem: Linear, preconditioner: Preconditioner, batch_size: int) -> float:
    """Choose a step size, 1 / (5 S / m + 10 L).

    S is the sum of the smoothness constants and L the constant of the sum, both in the preconditioner. The power method
    on some rows estimates L.
    """
    bends = bends_of(problem)
    constants = bends * preconditioner.lengths.astype(np.float64) ** 2
    total = float(constants.sum())
    if total == 0.0:
        return 1.0
    generator = np.random.default_rng(0)
    chosen = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
    weights = bends[chosen] * total / (len(chosen) * constants[chosen])
    rows, root = _rows_of(problem).subset(chosen), np.sqrt(preconditioner.inverse)
    direction, largest = generator.standard_normal((1, problem.width)), 0.0
    for _ in range(_ROUNDS):
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        direction = root * rows.sums(weights[:, None] * rows.outputs(root * direction))
        largest = float(np.linalg.norm(direction))
    return 1.0 / (total / (_SHARE * batch_size) + largest / _LARGEST)


def first_norms(problem: Linear, preconditioner: Preconditioner) -> tuple[Vector, Vector]:
    """Return norms for the first step, and the smoothness of each example: both in the preconditioner."""
    lengths, weights = preconditioner.lengths.astype(np.float64), problem.model.sample_weight
    norms = lengths * weights if len(weights) else lengths
    return norms, problem.curvature * norms * lengths


class SagaSteps(Steps):
    """The steps of one run of SAGA, all of one size. The table is filled at the first iterate, unless that is 0."""

    problem: Linear
    estimator: TableEstimator

    def __init__(
        self, sampler: Sampler, estimator: TableEstimator, preconditioner: Preconditioner, size: float, tol: float
    ) -> None:
        problem = estimator.problem
        super().__init__("saga", sampler, estimator, proximal(problem, preconditioner, size))
        self._preconditioner, self.period = preconditioner, self.epoch_steps
        self._goal = tol**2 * problem.best_constant() if tol > 0.0 else -math.inf
        if self.x.any():  # with an empty table, the noise of the first epoch would lead away again
            estimator.fill(self.x)

    def check(self, step: int) -> str | None:
        """Return why the iterates have converged, if they have."""
        whole = self.problem.penalty.subgradient(self.x, self.estimator.state.sums.ravel())
        table = whole.reshape(self.estimator.shape)
        table = table - table[:, -1:] * self._preconditioner.shift
        if 0.5 * float((table**2 @ self._preconditioner.inverse).sum()) > self._goal:  # an estimate, without a pass
            return None
        gap = self.problem.gap(self.x)
        if gap > self._goal:
            return None
        return f"converged after step {step}: the objective is at most {gap:.3g} above the minimum"
