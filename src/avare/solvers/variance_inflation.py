"""How much wider than the posterior the draws of a chain are: by the noise of the gradient, and by the step.

Near a mode f is about quadratic, with second derivative A, and the estimate of its gradient has some covariance C.
Then one step is linear in the iterate, and the covariance S of its stationary law solves S = M S M' + N, with the
matrix M of a step and the noise N that it adds. In the eigenvectors of A this is one small equation per pair of them:
for Langevin dynamics of step size a,

    S_ij (1 - (1 - a l_i)(1 - a l_j)) = 2 a [i = j] + a^2 C_ij,

and a system of four for Hamiltonian dynamics. With C = 0 it gives the effect of the step alone. A is taken at the mean
of the draws, C is measured at some of them. Matrices come in blocks: one of all coordinates or, if there are many, one
per coordinate, as if they were not correlated.

Worked example: one coordinate, A = 1, C = 30, a = 0.1. The variance is (0.2 + 0.01 * 30) / (1 - 0.81) = 2.63, and
without the noise 0.2 / 0.19 = 1.05: the standard deviation is 1.62 instead of 1, and 1.03 by the step alone.
"""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.linear.preconditioner import bends_of, lengths_of, squared_columns
from avare.solvers.steps import Steps
from avare.solvers.updates.hamiltonian import Hamiltonian, principal
from avare.solvers.updates.langevin import Langevin

Dynamics: TypeAlias = Langevin | Hamiltonian

TOO_WIDE = 0.1
"""Standard deviations that are wrong by more than this are reported."""
_AIM = 0.05  # of the largest error, for automatic step sizes: half of it, because both are estimates
_WIDEST = 1000  # coordinates, up to which correlations count
_MOST_PRODUCTS = 300  # coordinates of a model with several outputs, up to which its second derivative is computed
_POINTS, _BATCHES = 64, 16  # to measure the noise with
_LESSONS = 2000  # batches from which a copy of the sampler learns before
_WITHOUT = 0.25  # weight of the error without noise correction, because the measured noise is not exact
_DECADES, _PRECISE = 25.0, 0.05  # the range of the search for a step size, in natural logarithms, and its precision
_ROUNDS = 60  # of the search for a curvature that explains the draws
_SEED = 20


class WideningWarning(UserWarning):
    """The draws of a chain are wider than the posterior.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", WideningWarning)  # if you know it, and want the draws all the same
    """


@dataclass(frozen=True, slots=True, eq=False)
class Widening:
    """By how much the standard deviations of a chain are too large, per coordinate: 0.1 for 10 %.

    It is an estimate from the noise of the gradient at some of the draws, exact for a normal posterior. For shuffled
    passes it is an upper bound: their errors cancel out in part. With ``str`` it is said in words.

    >>> found = Widening(np.array([0.3]), np.array([0.01]), np.array([0.32]), "use control='mode'")
    >>> found.is_too_wide
    True
    """

    gradient: Vector
    """By the noise of the gradient alone."""
    step: Vector
    """By the step size alone."""
    total: Vector
    """By both."""
    advice: str

    def __str__(self) -> str:
        verdict = f"all standard deviations are right to {TOO_WIDE:.0%}"
        if self.is_too_wide:
            worst = int(np.argmax(np.abs(self.total)))
            verdict = f"that of coordinate {worst} is wrong by {self.total[worst]:+.0%}: {self.advice}"
        effects = f"gradient noise {_said(self.gradient)}; the step {_said(self.step)}"
        return f"Effect on the standard deviations: {effects}; {verdict}."

    @property
    def is_too_wide(self) -> bool:
        """Whether a standard deviation is wrong by more than 10 %."""
        return bool((np.abs(self.total) > TOO_WIDE).any())


def _said(values: Vector) -> str:
    return f"{np.median(values):+.1%} in the median, {values[np.argmax(np.abs(values))]:+.1%} at most"


def widening(steps: Steps, size: float, draws: Vector, weights: Vector, last: Vector) -> Widening:
    """Estimate the widening of draws with weights that sum to 1, made by steps of one size.

    The last draws of the chain that made these steps count for a table that moves with the chain.
    """
    estimator, sampler, update = steps.estimator, steps.sampler, steps.update
    mean = weights @ draws
    curvature = curvature_of(estimator.problem, mean)
    points = draws[np.linspace(0, len(draws) - 1, min(_POINTS, len(draws))).astype(int)]
    if estimator.control == "saga":
        points = last[-_POINTS:]
    blocks = 1 if curvature is not None and curvature.ndim == 2 else len(mean)
    noise = _noise(estimator, _copy(sampler), points, blocks)
    if curvature is None:
        curvature = _explained(noise, update, size, weights @ (draws - mean) ** 2)
    exact, stepped, both = _variances(_spectrum(curvature, update), noise, update, size)
    advice = "use smaller steps or larger batches"
    if estimator.control == "none":
        advice = 'pass control="mode", or ' + advice
    ratios = [np.maximum(each / exact, 0.0) for each in (both - stepped + exact, stepped, both)]
    by_noise, by_step, by_both = (np.sqrt(ratio) - 1.0 for ratio in ratios)
    return Widening(by_noise, by_step, by_both, advice)


def automatic_size(steps: Steps, mode: Vector) -> float:
    """Return the largest step size with which all standard deviations should be right to 5 %."""
    estimator, sampler, update = steps.estimator, steps.sampler, steps.update
    curvature = curvature_of(estimator.problem, mode)
    assert curvature is not None  # callers check that the model is linear
    spectrum = _spectrum(curvature, update)
    points = mode + spectrum.normal(np.random.default_rng(_SEED), _POINTS)
    if isinstance(estimator, TableEstimator) and estimator.control == "saga":  # it holds gradients at earlier draws
        estimator.fill(estimator.problem.survey(points[-1]))
    noise = _noise(estimator, _taught(sampler, estimator, points), points, len(spectrum.values))
    most = 1.0 / float(spectrum.values.max())
    high = float(np.log(np.sqrt(most) if isinstance(update, Hamiltonian) else most))
    variants: list[tuple[Dynamics, float]] = [(update, 1.0)]
    if isinstance(update, Hamiltonian):
        measured = update
        if sampler.independent:  # as if the noise had been measured
            excess, turn = principal(update.memory, noise[0] if len(noise) == 1 else noise[:, 0, 0])
            measured = update._replace(memory=update.memory._replace(excess=excess, turn=turn))
        variants = [(update, _WITHOUT), (measured, 1.0)]

    def is_right(logarithm: float) -> bool:
        for each, share in variants:
            exact, _, both = _variances(spectrum, noise, each, float(np.exp(logarithm)))
            if share * float(np.abs(np.sqrt(both / exact) - 1.0).max()) > _AIM:
                return False
        return True

    if is_right(high):
        return float(np.exp(high))
    low = high - _DECADES
    while high - low > _PRECISE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_right(middle) else (low, middle)
    return float(np.exp(low))


def _taught(sampler: Sampler, estimator: PlainEstimator, points: Vector) -> Sampler:
    """Return a copy of a sampler after what it would learn from a chain: from one draw, then from batches at others."""
    trial = _copy(sampler)
    if sampler.learns:
        trial.update(np.arange(sampler.n), estimator.norms(points[0]))
        for k in range(_LESSONS):
            batch = trial.sample()
            trial.update(batch.indices, estimator.at(points[k % len(points)], batch.indices, batch.weights)[1])
    return trial


def curvature_of(problem: Problem, x: Vector) -> Vector | None:
    """Return the second derivative of f at x, only its diagonal if there are many coordinates; None if it has none."""
    if not isinstance(problem, Linear):
        return None
    if problem.outputs > 1 and problem.dim <= _MOST_PRODUCTS:
        return np.stack([problem.hessian_product(x, row) for row in np.eye(problem.dim)])
    if problem.outputs == 1 and problem.dim <= _WIDEST:
        return np.asarray(problem.gram(x) + np.diag(problem.penalty.l2))
    return diagonal_curvature(problem, x)


def diagonal_curvature(problem: Linear, x: Vector) -> Vector:
    """Return the diagonal of the second derivative of f at x; approximate with several outputs. O(size of X)."""
    return np.asarray(np.tile(squared_columns(problem, problem.curvatures(x)), problem.outputs) + problem.penalty.l2)


def expected_norms(problem: Linear, control: str, mode: Vector) -> Vector:
    """Approximate the norms of the terms drawn near the mode: gradients, or with a control variate differences.

    A difference is a curvature times the distance of two outputs. The scale of that distance comes from the posterior,
    as if its coordinates were not correlated. O(size of X).
    """
    if control == "none":
        return problem.loss_norms(mode)
    bends = bends_of(problem, problem.curvatures(mode))
    curvature = diagonal_curvature(problem, mode)[: problem.width]
    spread = lengths_of(problem, 1.0 / np.maximum(curvature, 1e-12 * max(float(curvature.max()), 1e-300)))
    return np.asarray(bends * problem.lengths * spread)


def _copy(sampler: Sampler) -> Sampler:
    trial = copy.deepcopy(sampler)
    trial.reseed(_SEED)
    return trial


def batch_gradients(estimator: PlainEstimator, sampler: Sampler, x: Vector, batches: int) -> Vector:
    """Return estimates at x from some batches of a copy of a sampler, which does not learn; one per row."""
    found = np.empty((batches, len(x)))
    for each in found:
        batch = sampler.sample()
        sampler.forget(batch)
        each[:] = estimator.at(x, batch.indices, batch.weights)[0]
    return found


def _noise(estimator: PlainEstimator, sampler: Sampler, points: Vector, blocks: int) -> Vector:
    """Measure the covariance of the gradient estimate, in some blocks."""
    total: Any = 0.0
    for x in points:
        found = batch_gradients(estimator, sampler, x, _BATCHES)
        found = (found - found.mean(axis=0)).reshape(_BATCHES, blocks, -1)
        total += found.transpose(1, 2, 0) @ found.transpose(1, 0, 2) / ((_BATCHES - 1) * len(points))
    return np.asarray(total)


class Spectrum(NamedTuple):
    """The curvature in coordinates x / sqrt(D), in blocks."""

    values: Vector
    """Eigenvalues, one row per block."""
    vectors: Vector
    """Eigenvectors, one per column."""
    root: Vector
    """sqrt(D), one row per block."""

    def normal(self, generator: np.random.Generator, count: int) -> Vector:
        """Draw from the normal law with this curvature, one vector per row."""
        along = generator.standard_normal((count, *self.values.shape)) / np.sqrt(self.values)
        return np.asarray((self.root * np.einsum("nbj,bij->nbi", along, self.vectors)).reshape(count, -1))

    def turned(self, covariances: Vector) -> Vector:
        """Return covariances of the scaled coordinates in the eigenvectors."""
        return np.asarray(self.vectors.transpose(0, 2, 1) @ covariances @ self.vectors)

    def diagonal(self, covariances: Vector) -> Vector:
        """Return the variances of the coordinates, from covariances in the eigenvectors."""
        scaled = ((self.vectors @ covariances) * self.vectors).sum(axis=2)
        return np.asarray((self.root**2 * scaled).ravel())


def _spectrum(curvature: Vector, update: Dynamics) -> Spectrum:
    blocks = curvature[None] if curvature.ndim == 2 else curvature[:, None, None]
    root = update.memory.root.reshape(len(blocks), -1)
    values, vectors = np.linalg.eigh(root[:, :, None] * blocks * root[:, None, :])
    return Spectrum(np.maximum(values, 1e-12 * float(values.max())), vectors, root)


def _variances(spectrum: Spectrum, noise: Vector, update: Dynamics, size: float) -> tuple[Vector, Vector, Vector]:
    """Return the variances of the posterior, of a chain with exact gradients, and of one with noise."""
    values, _, root = spectrum
    noise, identity = spectrum.turned(root[:, :, None] * noise * root[:, None, :]), np.eye(values.shape[1])
    exact = spectrum.diagonal(identity / values[:, None, :])
    if isinstance(update, Langevin):
        kept = 1.0 - size * values
        lost = 1.0 - kept[:, :, None] * kept[:, None, :]
        stepped = spectrum.diagonal(2.0 * size * identity / lost)
        return exact, stepped, stepped + spectrum.diagonal(size**2 * noise / lost)
    kept, motion = np.exp(-update.friction * size), update.memory
    lacks = -np.minimum(kept**2 * size**2 * motion.excess, 1.0 - kept**2)  # the noise of the friction
    turn = motion.turn
    if len(values) > 1:
        missing = (turn**2 @ lacks if len(turn) else lacks)[:, None, None]
    else:
        missing = ((turn * lacks) @ turn.T if len(turn) else np.diag(lacks))[None]
    added = _hamiltonian(values, noise, spectrum.turned(missing), float(kept), size)
    return exact, exact, exact + spectrum.diagonal(added)  # the step alone adds nothing: see `updates.hamiltonian`


def _hamiltonian(values: Vector, noise: Vector, missing: Vector, kept: float, size: float) -> Vector:
    """Return what noise in the kicks, and missing noise of the friction, add to the covariances of the positions.

    For each pair of eigenvectors this solves S = L S R' + N, with matrices of positions and velocities, 2 x 2.
    """
    half = 0.5 * size * (1.0 + kept)
    step = np.empty((*values.shape, 2, 2))
    step[..., 0, 0], step[..., 0, 1] = 1.0 - half * size * values, half
    step[..., 1, 0], step[..., 1, 1] = -kept * size * values, kept
    kick, friction = -size * np.array([half, kept]), np.array([0.5 * size, 1.0])
    kicks, frictions = np.outer(kick, kick).ravel(), np.outer(friction, friction).ravel()
    result = np.empty_like(noise)
    for i in range(values.shape[1]):  # a row at a time, to save memory
        products = np.einsum("nab,njcd->njacbd", step[:, i], step).reshape(*values.shape, 4, 4)
        added = noise[:, i, :, None] * kicks + missing[:, i, :, None] * frictions
        result[:, i] = np.linalg.solve(np.eye(4) - products, added[..., None])[..., 0, 0]
    return result


def _explained(noise: Vector, update: Dynamics, size: float, variances: Vector) -> Vector:
    """Return the curvature along each coordinate with which the draws would have their variances."""
    stable = 1.0 / (update.memory.scale * (size if isinstance(update, Langevin) else size**2))
    curvature = np.minimum(1.0 / np.maximum(variances, 1e-300), stable)
    for _ in range(_ROUNDS):
        _, _, both = _variances(_spectrum(curvature, update), noise, update, size)
        curvature = np.minimum(curvature * np.clip(both / variances, 0.5, 2.0), stable)
    return np.asarray(curvature)
