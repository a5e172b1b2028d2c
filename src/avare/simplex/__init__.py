"""Mathematics on distributions, without any randomness: which probabilities are best, given what is known."""

from avare.simplex.groups import Groups as Groups
from avare.simplex.groups import arrange as arrange
from avare.simplex.groups import split as split
from avare.simplex.intervals import safest as safest
from avare.simplex.intervals import widened as widened
from avare.simplex.newton import newton_step as newton_step
from avare.simplex.variance import minimize_variance as minimize_variance

__all__ = [
    "Groups",
    "arrange",
    "minimize_variance",
    "newton_step",
    "safest",
    "split",
    "widened",
]
