"""
A sampler of your own
=====================

A sampler needs two methods: one that returns the probabilities, and one that draws. A third receives norms, a fourth
declares the arrays that a saved state must contain. This one remembers a decaying average of each example's norms, in
place of the last norm as `avare.Avare` does.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

import avare
from avare.state import Field


class Averaged(avare.Sampler):
    """Draw in proportion to the average norm of each example, mixed with uniform draws."""

    with_replacement_only = True

    def __init__(self, n: int, batch_size: int = 32, *, decay: float = 0.7, seed: int | None = None) -> None:
        super().__init__(n, batch_size, replacement=True, seed=seed)
        self.decay = decay
        self.average = np.zeros(n)

    def compute_probabilities(self) -> NDArray[np.float64]:
        total = self.average.sum()
        learned = self.average / total if total > 0.0 else np.full(self.n, 1.0 / self.n)
        return 0.8 * learned + 0.2 / self.n

    def draw(self, size: int) -> avare.Batch:
        p = self.compute_probabilities()
        indices = self.generator.choice(self.n, size, p=p)
        return avare.Batch(indices, avare.batch_weights(p[indices], replacement=True), p[indices])

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self.average[indices] += (1.0 - self.decay) * (norms - self.average[indices])

    def fields(self) -> dict[str, Field]:
        """Declare what `state_dict` must save, besides the arguments."""
        return {"average": Field(np.float64, (self.n,), at_least=0.0)}


# %%
# That is all. It draws unbiased batches, counts its gain, and runs in the solvers beside the others. Here each norm is
# noise around a level that differs from example to example. The first draws compile kernels, off the clock.

rng = np.random.default_rng(0)
n, steps = 2_000, 1_500
levels = rng.lognormal(0, 1.2, n)
noises = {"steady norms": 0.05, "noisy norms": 1.0}
kinds = {"Uniform": avare.Uniform, "Avare": avare.Avare, "Averaged": Averaged}

for kind in kinds.values():
    first = kind(n, batch_size=32, seed=0)
    first.update(first.sample().indices, np.ones(32))
    first.sample()

figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.4), sharey=True, layout="constrained")
final, seconds = {}, dict.fromkeys(kinds, 0.0)
for axis, (title, noise) in zip(axes, noises.items(), strict=True):
    expected = levels * np.exp(noise**2)  # the root of the mean square
    for name, kind in kinds.items():
        sampler = kind(n, batch_size=32, seed=0)
        errors = []
        for step in range(steps):
            norms = levels * rng.lognormal(0, noise, n)
            start = time.process_time()
            batch = sampler.sample()
            sampler.update(batch.indices, norms[batch.indices])
            seconds[name] += time.process_time() - start
            if step % 50 == 49:
                errors.append(avare.diagnostics.relative_error(expected, sampler.probabilities()))
        axis.semilogy(np.arange(50, steps + 1, 50), errors, label=name)
        final[title, name] = errors[-1]
    axis.set(title=title, xlabel="Steps")
axes[0].set_ylabel("Variance above the least, relative")
axes[0].legend()

# %%
# With steady norms the last one says it all, and the plain memory of `Avare` is better: an average reacts late. With
# noisy norms averaging pays in variance. In seconds it costs: each draw of this sampler is O(n), and the last lines
# show how much longer than a uniform draw it takes already with two thousand examples. With many more, or with
# gradients that take less time than that, uniform draws are ahead; a kernel would make a draw constant (see "Add a
# sampler" in the guide for contributors).

for title in noises:
    print(title, {name: round(float(final[title, name]), 2) for name in kinds})
for name in kinds:
    print(f"{name}: {1e6 * seconds[name] / (len(noises) * steps):.0f} microseconds for a draw and an update")
