"""Adaptive importance sampling for JAX: weighted gradient estimators for the samplers of BlackJAX."""

from avare._optional import require

require("jax", "avare.jax", "jax")  # which says what to install

# isort: split
from avare.jax.estimators import example_norms as example_norms
from avare.jax.estimators import grad_estimator as grad_estimator
from avare.jax.estimators import minibatch as minibatch

__all__ = ["example_norms", "grad_estimator", "minibatch"]
