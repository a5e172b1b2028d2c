"""Estimators of the gradient of a log-posterior from a batch that was drawn by importance.

The samplers of BlackJAX (`blackjax.sgld`, `blackjax.sghmc`, ...) take a ``grad_estimator(position, minibatch)``, and
pass the minibatch on as it is. So it can carry weights: here it is a pair ``(data, weights)``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from avare.batch import Batch

Position = Any
Data = Any


def minibatch(data: Data, batch: Batch, n: int) -> tuple[Data, jax.Array]:
    """Return the rows of a batch and their weights, which are 1 on average.

    Parameters
    ----------
    data : array or tree of arrays
        An array, or a tree of arrays, with one row per example.
    batch : Batch
        What ``sampler.sample()`` returned.
    n : int
        Number of examples.

    Examples
    --------
    >>> import avare, numpy as np
    >>> rows, weights = minibatch(np.arange(10.0), avare.Uniform(10, 4, seed=0).sample(), 10)
    >>> rows.shape, weights.tolist()
    ((4,), [1.0, 1.0, 1.0, 1.0])
    """
    rows = jax.tree.map(lambda array: jnp.asarray(array[batch.indices]), data)
    return rows, jnp.asarray(batch.weights * (len(batch.indices) / n))


def grad_estimator(
    logprior_fn: Callable[[Position], Any], loglikelihood_fn: Callable[[Position, Data], Any], data_size: int
) -> Callable[[Position, tuple[Data, jax.Array]], Position]:
    """Build an unbiased estimator of the gradient of the log-posterior, for weighted minibatches.

    It takes the place of ``blackjax.sgmcmc.gradients.grad_estimator``, with the same arguments. Its minibatch is a pair
    ``(data, weights)``, as `minibatch` returns.

    Parameters
    ----------
    logprior_fn : callable
        Log-density of the prior: a function of the position.
    loglikelihood_fn : callable
        Log-likelihood of one example: a function of the position and of the example's data.
    data_size : int
        Number of examples in the whole dataset.

    Examples
    --------
    >>> estimate = grad_estimator(lambda x: -0.5 * x**2, lambda x, y: -0.5 * (y - x) ** 2, 4)
    >>> data = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.5])
    >>> float(estimate(0.0, data))  # 4 * (0.5 * 1 + 1.5 * 2) / 2
    7.0
    """

    def logdensity(position: Position, weighted: tuple[Data, jax.Array]) -> Any:
        data, weights = weighted
        logs = jax.vmap(loglikelihood_fn, in_axes=(None, 0))(position, data)
        return logprior_fn(position) + data_size * jnp.mean(weights * logs)

    gradient: Callable[[Position, tuple[Data, jax.Array]], Position] = jax.grad(logdensity)
    return gradient


def example_norms(
    loglikelihood_fn: Callable[[Position, Data], Any],
) -> Callable[[Position, tuple[Data, jax.Array]], jax.Array]:
    """Build a function that returns the norm of each example's gradient, to be reported by ``sampler.update``.

    Parameters
    ----------
    loglikelihood_fn : callable
        As for `grad_estimator`.

    Examples
    --------
    >>> norms = example_norms(lambda x, y: -0.5 * (y - x) ** 2)
    >>> norms(0.0, (jnp.array([1.0, -2.0]), jnp.ones(2))).tolist()
    [1.0, 2.0]
    """

    def norm(position: Position, row: Data) -> jax.Array:
        parts = jax.tree.leaves(jax.grad(loglikelihood_fn)(position, row))
        return jnp.sqrt(sum((part**2).sum() for part in parts))

    return lambda position, weighted: jax.vmap(norm, in_axes=(None, 0))(position, weighted[0])
