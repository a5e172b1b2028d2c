"""
Ten lines of NumPy
==================

Least squares by stochastic gradients. The rows differ widely in length, so a few of them have most of the gradient. The
loop below is the same for uniform draws and for draws by gradient norm: only the sampler changes.
"""

import matplotlib.pyplot as plt
import numpy as np

import avare

rng = np.random.default_rng(0)
n = 20_000
X = rng.normal(size=(n, 5)) * rng.lognormal(0, 1, (n, 1))
y = X @ np.arange(5.0) + rng.normal(size=n)
best = np.linalg.lstsq(X, y, rcond=None)[0]


def descend(sampler: avare.Sampler) -> list[float]:
    """Return the distance to the solution after each hundred steps."""
    x, distances = np.zeros(5), []
    for step in range(3_000):
        batch = sampler.sample()
        A, residuals = X[batch.indices], X[batch.indices] @ x - y[batch.indices]
        x -= 5e-4 / (1_000 + step) * A.T @ (batch.weights * residuals)
        sampler.update(batch.indices, np.abs(residuals) * np.linalg.norm(A, axis=1))
        if step % 100 == 99:
            distances.append(float(np.linalg.norm(x - best)))
    return distances


# %%
# Five runs of each, with the same step sizes.

found = {
    sampler.__name__: np.array([descend(sampler(n, batch_size=64, seed=seed)) for seed in range(5)])
    for sampler in (avare.Uniform, avare.Avare)
}
