"""
Ten lines of NumPy
==================

Least squares by stochastic gradients. The rows differ widely in length, so a few of them have most of the gradient. The
loop below is the same for uniform draws and for draws by gradient norm: only the sampler changes.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import avare

rng = np.random.default_rng(0)
n = 20_000
X = rng.normal(size=(n, 5)) * rng.lognormal(0, 1, (n, 1))
y = X @ np.arange(5.0) + rng.normal(size=n)
best = np.linalg.lstsq(X, y, rcond=None)[0]


def descend(sampler: avare.Sampler) -> tuple[list[float], list[float]]:
    """Return the processor seconds and the distance to the solution, after each hundred steps."""
    x, seconds, distances = np.zeros(5), [], []
    start = time.process_time()
    for step in range(3_000):
        batch = sampler.sample()
        A, residuals = X[batch.indices], X[batch.indices] @ x - y[batch.indices]
        x -= 5e-4 / (1_000 + step) * A.T @ (batch.weights * residuals)
        sampler.update(batch.indices, np.abs(residuals) * np.linalg.norm(A, axis=1))
        if step % 100 == 99:
            seconds.append(time.process_time() - start)
            distances.append(float(np.linalg.norm(x - best)))
    return seconds, distances


# %%
# Seven runs of each, with the same step sizes, after one that compiles the kernels.

found = {}
for kind in (avare.Uniform, avare.Avare):
    runs = [descend(kind(n, batch_size=64, seed=seed)) for seed in range(8)][1:]
    found[kind.__name__] = np.median(np.array(runs), axis=0)

figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for name, (seconds, distances) in found.items():
    axis.semilogy(seconds, distances, label=name)
axis.set(xlabel="Processor seconds", ylabel="Distance to the solution", title="Median of seven runs")
axis.legend()

# %%
# A step with draws by norm takes longer: the draw costs more, and so does the update. It pays here because the estimate
# varies so much less. With rows of equal length there is nothing to gain, and uniform draws are the better choice.

(slow, final), (fast, distances) = found["Uniform"], found["Avare"]
reached = int(np.argmax(distances <= final[-1]))
print(f"A step takes {fast[-1] / slow[-1]:.2f} times as long. The final distance of uniform draws is reached")
print(f"after {(reached + 1) / 30:.0%} of their steps and {fast[reached] / slow[-1]:.0%} of their seconds.")
