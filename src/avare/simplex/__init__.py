"""Mathematics on distributions, without any randomness: which probabilities are best, given what is known."""

from avare.simplex.variance import minimize_variance as minimize_variance

__all__ = ["minimize_variance"]
