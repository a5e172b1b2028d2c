"""Draw from a posterior with BlackJAX's SGLD and batches drawn by importance.

A linear regression with a few very long rows. Its posterior is known, and printed beside the draws'.
"""

import argparse

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import avare
import avare.jax


def make_data(n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Make rows of very different lengths, and targets."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 3)) * generator.lognormal(0.0, 1.2, (n, 1))
    return X, X @ [1.0, -2.0, 0.5] + generator.normal(size=n)


def logprior(position: jax.Array) -> jax.Array:
    """A standard normal prior."""
    return -0.5 * (position**2).sum()


def loglikelihood(position: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The log-likelihood of one example."""
    return -0.5 * (row[1] - row[0] @ position) ** 2


def run(name: str, steps: int, step_size: float) -> tuple[np.ndarray, float]:
    """Return the draws of a chain, without its first fifth, and the sampler's gain."""
    data = make_data()
    n = len(data[1])
    sampler = avare.samplers.build(name, n, 32, lasting_floor=True, seed=0)
    sgld = blackjax.sgld(avare.jax.grad_estimator(logprior, loglikelihood, n))
    step, norms = jax.jit(sgld.step), jax.jit(avare.jax.example_norms(loglikelihood))
    position, draws = jnp.zeros(3), []
    for key in jax.random.split(jax.random.key(0), steps):
        batch = sampler.sample()
        weighted = avare.jax.minibatch(data, batch, n)
        sampler.update(batch.indices, np.asarray(norms(position, weighted)))
        position = step(key, position, weighted, step_size)
        draws.append(np.asarray(position))
    return np.stack(draws[steps // 5 :]), sampler.gain


def main() -> None:
    """Compare both samplers with the exact posterior."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--step-size", type=float, default=1e-5)
    arguments = parser.parse_args()
    X, _ = make_data()
    exact = np.sqrt(np.diag(np.linalg.inv(X.T @ X + np.eye(3))))
    for name in ("Uniform", "Avare"):
        draws, gain = run(name, arguments.steps, arguments.step_size)
        print(f"{name}: standard deviations {(draws.std(axis=0) / exact).round(2)} of the exact ones, gain {gain:.2f}")


if __name__ == "__main__":
    main()
