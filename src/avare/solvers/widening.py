"""How much wider than the posterior the draws of a chain are: by the noise of the gradient, and by the step.

Near a mode f is about quadratic, with second derivative A, and the estimate of its gradient has some covariance C.
Then one step is linear in the iterate, and the covariance S of its stationary law solves S = M S M' + N, with the
matrix M of a step and the noise N that it adds. In the eigenvectors of A this is one small equation per pair of them:
for Langevin dynamics of step size a,

    S_ij (1 - (1 - a l_i)(1 - a l_j)) = 2 a [i = j] + a^2 C_ij,

and a system of four for Hamiltonian dynamics. With C = 0 it gives the effect of the step alone. A is taken at the mean
of the draws, C is measured at some of them.

Worked example: one coordinate, A = 1, C = 30, a = 0.1. The variance is (0.2 + 0.01 * 30) / (1 - 0.81) = 2.63, and
without the noise 0.2 / 0.19 = 1.05: the standard deviation is 1.62 instead of 1, and 1.03 by the step alone.
"""

import copy
from dataclasses import dataclass

import numpy as np

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.control import Estimator, batch_gradients
from avare.solvers.dynamics import Motion, principal
from avare.solvers.metric import bends_of, lengths_of, squared_columns

TOO_WIDE = 0.1
"""Standard deviations that are wrong by more than this are said to be."""
_AIM = 0.05  # of the largest error, for automatic step sizes: half of it, because both are estimates
_WIDEST = 1000  # coordinates, up to which correlations count
_MOST_PRODUCTS = 300  # coordinates of a model with several outputs, up to which its second derivative is computed
_POINTS, _BATCHES = 64, 16  # to measure the noise with
_LESSONS = 2000  # batches from which a copy of the sampler learns before
_WITHOUT = 0.25  # how much the error counts that there is if no noise is subtracted: measuring it is not exact
_DECADES, _PRECISE = 25.0, 0.05  # the range of the search for a step size, in natural logarithms, and its precision
_ROUNDS = 60  # of the search for a curvature that explains the draws
_SEED = 20


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
        parts = [
            f"{cause} {_said(values)}" for cause, values in (("gradient noise", self.gradient), ("the step", self.step))
        ]
        said = "; ".join(parts)
        verdict = f"all standard deviations are right to {TOO_WIDE:.0%}"
        if self.is_too_wide:
            worst = int(np.argmax(np.abs(self.total)))
            verdict = f"that of coordinate {worst} is wrong by {self.total[worst]:+.0%}: {self.advice}"
        return f"Effect on the standard deviations: {said}; {verdict}."

    @property
    def is_too_wide(self) -> bool:
        """Whether a standard deviation is wrong by more than 10 %."""
        return bool((np.abs(self.total) > TOO_WIDE).any())


def _said(values: Vector) -> str:
    return f"{np.median(values):+.1%} in the median, {values[np.argmax(np.abs(values))]:+.1%} at most"


def widening(
    estimator: Estimator, sampler: Sampler, motion: Motion, size: float, draws: Vector, weights: Vector, last: Vector
) -> Widening:
    """Estimate the widening of draws with weights that sum to 1, made by steps of one size.

    The last draws of the chain that has this estimator and this sampler count for a table that moves with the chain.
    """
    problem = estimator.problem
    mean = weights @ draws
    curvature = curvature_of(problem, mean)
    points = draws[np.linspace(0, len(draws) - 1, min(_POINTS, len(draws))).astype(int)]
    if estimator.control == "saga":
        points = last[-_POINTS:]
    noise = _noise(estimator, _copy(sampler), points, whole=curvature is not None and curvature.ndim == 2)
    if curvature is None:
        curvature = _explained(noise, motion, size, weights @ (draws - mean) ** 2)
    exact, stepped, both = _variances(_spectrum(curvature, motion), noise, motion, size)
    advice = "use smaller steps or larger batches"
    if estimator.control == "none":
        advice = 'pass control="mode", or ' + advice
    ratios = [np.maximum(each / exact, 0.0) for each in (both - stepped + exact, stepped, both)]
    by_noise, by_step, by_both = (np.sqrt(ratio) - 1.0 for ratio in ratios)
    return Widening(by_noise, by_step, by_both, advice)


def automatic_size(estimator: Estimator, sampler: Sampler, motion: Motion, mode: Vector) -> float:
    """Return the largest step size with which all standard deviations should be right to 5 %."""
    problem = estimator.problem
    curvature = curvature_of(problem, mode)
    if curvature is None:
        raise TypeError(
            f'step_size = "auto": needs a linear model of avare.problems, not {type(problem).__name__}; pass a number'
        )
    generator = np.random.default_rng(_SEED)
    values, vectors, root = spectrum = _spectrum(curvature, motion)
    normal = generator.standard_normal((_POINTS, problem.dim)) / np.sqrt(values)
    points = mode + root * (normal if vectors is None else normal @ vectors.T)
    if estimator.control == "saga":  # the table holds gradients at earlier draws
        estimator.anchor(points[-1])
    trial = _copy(sampler)
    if sampler.learns:  # as it would from a chain: every example at one draw, then batches at others
        trial.update(np.arange(problem.n), estimator.norms(points[0]))
        for k in range(_LESSONS):
            batch = trial.sample()
            trial.update(batch.indices, estimator.gradient(points[k % _POINTS], batch.indices, batch.weights)[1])
    noise = _noise(estimator, trial, points, whole=vectors is not None)
    most = 1.0 / float(values.max())
    high = float(np.log(most if motion.friction == 0.0 else np.sqrt(most)))
    unmeasured = motion
    if motion.friction > 0.0 and sampler.independent:  # as if it had been measured
        excess, turn = principal(motion, noise)
        motion = motion._replace(excess=excess, turn=turn)

    def error(logarithm: float) -> float:
        size, least = float(np.exp(logarithm)), 0.0
        for each, share in ((motion, 1.0), (unmeasured, _WITHOUT)):
            exact, _, both = _variances(spectrum, noise, each, size)
            least = max(least, share * float(np.abs(np.sqrt(both / exact) - 1.0).max()))
        return least

    if error(high) <= _AIM:
        return float(np.exp(high))
    low = high - _DECADES
    while high - low > _PRECISE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if error(middle) <= _AIM else (low, middle)
    return float(np.exp(low))


def curvature_of(problem: Problem, x: Vector) -> Vector | None:
    """Return the second derivative of f at x, only its diagonal if there are many coordinates; None if it has none."""
    if not isinstance(problem, Linear):
        return None
    if problem.outputs > 1 and problem.dim <= _MOST_PRODUCTS:
        return np.stack([problem.hessian_product(x, row) for row in np.eye(problem.dim)])
    if problem.outputs == 1 and problem.dim <= _WIDEST:
        return np.asarray(problem.gram(x) + np.diag(problem._l2))
    return diagonal_curvature(problem, x)


def diagonal_curvature(problem: Linear, x: Vector) -> Vector:
    """Return the diagonal of the second derivative of f at x, with several outputs about. O(size of X)."""
    return np.asarray(np.tile(squared_columns(problem, problem._curvatures(x)), problem.outputs) + problem._l2)


def expected_norms(problem: Linear, control: str, mode: Vector) -> Vector:
    """Return about the norms of what is drawn near the mode: gradients, or with a control variate differences.

    A difference is a curvature times the distance of two outputs. The scale of that distance comes from the posterior,
    as if its coordinates were not correlated. O(size of X).
    """
    if control == "none":
        return problem._norms(mode)
    bends = bends_of(problem, problem._curvatures(mode))
    curvature = diagonal_curvature(problem, mode)[: problem.width]
    spread = lengths_of(problem, 1.0 / np.maximum(curvature, 1e-12 * max(float(curvature.max()), 1e-300)))
    return np.asarray(bends * problem.lengths * spread)


def _copy(sampler: Sampler) -> Sampler:
    trial = copy.deepcopy(sampler)
    trial.reseed(_SEED)
    return trial


def _noise(estimator: Estimator, sampler: Sampler, points: Vector, whole: bool) -> Vector:
    """Measure the covariance of the gradient estimate, or only its diagonal."""
    dim = estimator.problem.dim
    total = np.zeros((dim, dim) if whole else dim)
    for x in points:
        found = batch_gradients(estimator, sampler, x, _BATCHES)
        found -= found.mean(axis=0)
        total += (found.T @ found if whole else (found**2).sum(axis=0)) / ((_BATCHES - 1) * len(points))
    return total


def _spectrum(curvature: Vector, motion: Motion) -> tuple[Vector, Vector | None, Vector]:
    """Return eigenvalues and eigenvectors (None for a diagonal) of the curvature in scaled coordinates, and scales."""
    root = motion.root
    if curvature.ndim == 1:
        return curvature * root**2, None, root
    values, vectors = np.linalg.eigh(root[:, None] * curvature * root)
    return np.maximum(values, 1e-12 * float(values[-1])), vectors, root


def _variances(
    spectrum: tuple[Vector, Vector | None, Vector], noise: Vector, motion: Motion, size: float
) -> tuple[Vector, Vector, Vector]:
    """Return the variances of the posterior, of a chain with exact gradients, and of one with noise."""
    values, vectors, root = spectrum
    scaled = noise * (root**2 if noise.ndim == 1 else np.outer(root, root))
    if vectors is not None:
        scaled = vectors.T @ scaled @ vectors

    def along(covariances: Vector) -> Vector:
        if vectors is None:
            return covariances
        whole = np.diag(covariances) if covariances.ndim == 1 else covariances
        return np.asarray(((vectors @ whole) * vectors).sum(axis=1))

    if motion.friction == 0.0:
        kept = 1.0 - size * values
        stepped = along(2.0 * size / (1.0 - kept * kept))
        pairs = kept**2 if vectors is None else np.outer(kept, kept)
        return along(1.0 / values), stepped, stepped + along(size**2 * scaled / (1.0 - pairs))
    kept = np.exp(-motion.friction * size)
    spread = -np.minimum(kept**2 * size**2 * motion.excess, 1.0 - kept**2)  # what the friction's noise lacks
    if vectors is not None:
        turn = vectors.T @ motion.turn if len(motion.turn) else vectors.T
        spread = (turn * spread) @ turn.T
    elif len(motion.turn):
        spread = motion.turn**2 @ spread
    exact = along(1.0 / values)  # whatever the step: see `dynamics`
    return exact, exact, exact + along(_hamiltonian(values, scaled, spread, float(kept), size))


def _hamiltonian(values: Vector, noise: Vector, spread: Vector, kept: float, size: float) -> Vector:
    """Solve for what noise in the kicks, and more noise of the friction, add to the covariances of the positions."""
    half = 0.5 * size * (1.0 + kept)
    steps = np.empty((len(values), 2, 2))
    steps[:, 0, 0], steps[:, 0, 1] = 1.0 - half * size * values, half
    steps[:, 1, 0], steps[:, 1, 1] = -kept * size * values, kept
    kick, friction = -size * np.array([half, kept]), np.array([0.5 * size, 1.0])
    kicks, frictions = np.outer(kick, kick).ravel(), np.outer(friction, friction).ravel()
    if noise.ndim == 1:
        added = noise[:, None] * kicks + spread[:, None] * frictions
        return _solved(steps, steps, added)
    result = np.empty_like(noise)
    for i in range(len(values)):
        added = noise[i, :, None] * kicks + spread[i, :, None] * frictions
        result[i] = _solved(np.broadcast_to(steps[i], steps.shape), steps, added)
    return result


def _solved(left: Vector, right: Vector, added: Vector) -> Vector:
    """Solve S = L S R' + N for the first entry of S, for many L and R of two rows."""
    products = np.einsum("nab,ncd->nacbd", left, right).reshape(len(right), 4, 4)
    return np.asarray(np.linalg.solve(np.eye(4) - products, added[:, :, None])[:, 0, 0])


def _explained(noise: Vector, motion: Motion, size: float, variances: Vector) -> Vector:
    """Return the curvature along each coordinate with which the draws would have their variances."""
    stable = 1.0 / (motion.scale * (size if motion.friction == 0.0 else size**2))
    curvature = np.minimum(1.0 / np.maximum(variances, 1e-300), stable)
    for _ in range(_ROUNDS):
        _, _, both = _variances(_spectrum(curvature, motion), noise, motion, size)
        curvature = np.minimum(curvature * np.clip(both / variances, 0.5, 2.0), stable)
    return np.asarray(curvature)
