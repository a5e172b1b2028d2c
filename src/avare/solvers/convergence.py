"""Whether the draws of chains can be trusted: R-hat, the effective number of draws, and identities of the posterior.

With m and S the mean and the covariance of the draws and g the gradient of f at a draw x, let r = S g - (x - m). For
draws of the density exp(-f), whatever its form, integration by parts gives

    E[r_i] = 0,    E[(x_i - m_i) r_i] = 0.

These are Stein identities. For a normal posterior with covariance P, E[r] is S / P times the error of the mean, and
1 + E[(x_i - m_i) r_i] / S_ii is S_ii / P_ii if all directions are too wide by the same factor. So both show, without
any other chain, how wrong means and standard deviations are: because of gradient noise, of the step, or because the
chains have not reached the posterior. If the posterior is normal and the draws are right, r is 0 at each draw, and some
hundred gradients are enough. R-hat and the effective number of draws: see `avare.diagnostics.convergence`.

Worked example: P = 1, draws with m = 0.2 and S = 1.44. Then g = x and r = 1.44 x - (x - 0.2), of mean 0.288: a quarter
of the standard deviation of the draws. 1 + E[(x - m) r] / S = 1.44: they are too wide by the factor 1.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avare.diagnostics import convergence
from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.estimators.plain import PlainEstimator

WORST_R_HAT, FEWEST = 1.05, 100.0
"""R-hat above and effective numbers of draws below are reported: documented limits.

100 draws give a standard deviation with a relative error of 7 %.
"""
TOO_WIDE, TOO_FAR = 0.1, 0.25
"""So are standard deviations that are wrong by this fraction, and means by this fraction of one: documented limits."""
_STANDARD_ERRORS, _MOST = 3.0, 0.15
"""Standard errors that these limits grow by, and by how much at most: what is not known to be right is reported."""
_POINTS = 512
"""Draws at which gradients are computed: documented; a guess."""
_ROWS = 4_000_000
"""Rows of a linear model up to which these gradients are exact: a bound on the cost, and a guess."""


class ConvergenceWarning(UserWarning):
    """The draws of a chain do not represent the posterior, or `sgd` is far from a minimum.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ConvergenceWarning)  # if you know, and want the draws anyway
    """


@dataclass(frozen=True, slots=True, eq=False)
class ConvergenceReport:
    """Convergence report, one number per coordinate; `str()` summarises it.

    >>> one = np.ones(1)
    >>> numbers = one, 900.0 * one, 0.3 * one, 0.01 * one, 0.0 * one, 0.01 * one
    >>> found = ConvergenceReport(*numbers, "use smaller steps", ["x[0]"])
    >>> found.warnings()
    ['standard deviations are wrong by +30% at x[0]: use smaller steps']
    """

    r_hat: Vector
    """R-hat of the halves of all chains: 1 if they agree."""
    ess: Vector
    """The effective number of draws, for the mean or the standard deviation, whichever is less."""
    widening: Vector
    """Relative error of the standard deviations, by gradient noise, the step and chance: 0.1 if 10 % too large."""
    widening_error: Vector
    """The standard error of that estimate."""
    shift: Vector
    """Error of the means, in standard deviations; positive if they are too large."""
    shift_error: Vector
    advice: str
    """What to do against widening."""
    names: Sequence[str]
    """The names of the coordinates."""
    improper: str = ""
    """Why no number of steps would help: see `Linear.why_improper`."""

    def warnings(self) -> list[str]:
        """Return what is wrong, at which coordinates, and what to do about it."""
        if self.improper:
            return [f"the posterior is improper ({self.improper}): pass l2 > 0"]
        wide, far = (
            least + np.minimum(_STANDARD_ERRORS * error, _MOST)
            for least, error in ((TOO_WIDE, self.widening_error), (TOO_FAR, self.shift_error))
        )
        longer = "run more steps, and a longer burn_in"
        checks = (
            (self.r_hat, self.r_hat - WORST_R_HAT, "chains disagree, R-hat {:.2f}", longer),
            (self.ess, FEWEST - self.ess, "only {:.0f} effective draws", "run more steps"),
            (self.widening, np.abs(self.widening) - wide, "standard deviations are wrong by {:+.0%}", self.advice),
            (self.shift, np.abs(self.shift) - far, "means are wrong by {:+.2f} standard deviations", longer),
        )
        found = []
        for values, above, what, advice in checks:
            above = np.where(np.isnan(above), np.inf, above)
            named = [self.names[j] for j in np.argsort(-above) if above[j] > 0.0]
            if named:
                some = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
                found.append(f"{what.format(values[np.argmax(above)])} at {some}: {advice}")
        return found

    def __str__(self) -> str:
        wrong, widening, shift = self.warnings(), _largest(self.widening), _largest(self.shift)
        return (
            f"R-hat is at most {self.r_hat.max():.3f}, and there are at least {self.ess.min():.0f} effective draws. By "
            "gradients at some draws, which show gradient noise, the step and chains that are elsewhere, standard "
            f"deviations are wrong by {widening:+.1%} at most, means by {shift:+.2f} standard "
            f"deviations. {'; '.join(wrong) or 'Nothing is wrong'}."
        )


def _largest(values: Vector) -> float:
    return float(values[np.argmax(np.abs(values))])


def convergence_report(
    draws: Vector, weights: Vector, estimator: PlainEstimator, sampler: Sampler, steps: int, improper: str = ""
) -> ConvergenceReport:
    """Check the draws of chains (chains x draws x dim), with weights that sum to 1, after ``steps`` steps in all."""
    every = draws.reshape(-1, draws.shape[2])
    places = np.linspace(0, len(every) - 1, min(_POINTS, len(every))).astype(int)
    with np.errstate(all="ignore"):  # NaN counts as wrong
        mean = weights @ every
        r_hat, ess = convergence(draws)
        _, of_squares = convergence((draws - mean) ** 2)
        gradients = gradients_at(estimator, sampler, every[places], steps)
        away, factors = every[places] - mean, weights[places] / weights[places].sum()
        centred = (every - mean) * np.sqrt(weights)[:, None]
        left = gradients @ centred.T @ centred - away  # r
        deviations = np.sqrt((centred**2).sum(axis=0))
        shift, shift_error = _average(left / deviations, factors)
        excess, error = _average(away * left / deviations**2, factors)
        widening = np.sqrt(np.maximum(1.0 + excess, 0.0)) - 1.0
    advice = "use smaller steps or larger batches"
    if estimator.control == "none":
        advice = 'pass control="mode", or ' + advice
    found = (r_hat, np.minimum(ess, of_squares), widening, 0.5 * error, shift, shift_error)
    return ConvergenceReport(*found, advice, estimator.problem.names, improper)


def _average(values: Vector, weights: Vector) -> tuple[Vector, Vector]:
    """Return averages and their standard errors."""
    mean = weights @ values
    return mean, np.sqrt(weights**2 @ (values - mean) ** 2)


def gradients_at(estimator: PlainEstimator, sampler: Sampler, points: Vector, steps: int) -> Vector:
    """Return the gradient of f at each point: exact if that costs no more than the steps, otherwise of batches."""
    problem, rows = estimator.problem, estimator.problem.n * len(points)
    if rows <= steps * sampler.batch_size or (isinstance(problem, Linear) and rows <= _ROWS):
        unknown = np.full(problem.dim, np.nan)  # a draw may have overflown
        return np.stack([problem.gradient(x) if np.isfinite(x).all() else unknown for x in points])
    found = np.concatenate([estimator.from_batches(x, sampler, 1) for x in points])
    return found + problem.penalty.l2 * points
