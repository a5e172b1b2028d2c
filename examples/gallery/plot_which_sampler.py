"""
Which sampler when: diagnose your data
======================================

Importance sampling can gain much or nothing. `avare.experiments.diagnose` makes short runs on your data and says
what to expect, before you change any code; on the command line it is ``avare diagnose mine.csv --target y``. Here are
two tables of the same size: in one the rows have widely different lengths, in the other they are alike.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import avare
from avare.experiments import diagnose, obtain

rng = np.random.default_rng(0)
n, d = 5_000, 100
truth = rng.normal(size=d)
uneven = rng.normal(size=(n, d)) * rng.lognormal(0.0, 0.7, (n, 1))
even = np.sign(rng.normal(size=(n, d)))
tables = {
    "uneven rows": (uneven, uneven @ truth + rng.normal(size=n)),
    "even rows": (even, even @ truth + np.sign(rng.normal(size=n))),
}

# %%
# First the diagnosis, then what it predicts: five runs of SGD with each sampler, with step sizes that are found by
# themselves.

figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained")
reached = {}
for axis, (name, (X, y)) in zip(axes, tables.items(), strict=True):
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(d)])
    data, loss = obtain(frame.assign(y=y), target="y")
    found = diagnose(data, loss, batch_size=32)
    print(f"{name}. {found.words}\n")

    problem = avare.problems.get(loss)(data.X, data.y, l2=1.0)
    problem.minimize(tolerance=1e-6)
    curves = {}
    for kind in (avare.Uniform, avare.Avare):
        runs = [avare.sgd(problem, kind(problem.n, 32, seed=seed), epochs=20) for seed in range(6)][1:]
        traces = [(run.trace.epoch, run.trace.seconds, run.trace.suboptimality) for run in runs]  # the first compiled
        curves[kind.__name__] = epoch, seconds, above = np.median(traces, axis=0)
        axis.semilogy(epoch[1:], above[1:], label=kind.__name__)
    (epochs, seconds, goal), (epoch, second, above) = curves["Uniform"], curves["Avare"]
    if (above <= goal[-1]).any():
        at = np.argmax(above <= goal[-1])
        reached[name] = (
            f"after {epoch[at] / epochs[-1]:.2f} of its epochs and {second[at] / seconds[-1]:.2f} of its seconds"
        )
    else:
        reached[name] = f"not within {second[-1] / seconds[-1]:.2f} of its seconds"
    axis.set(title=f"{name}: predicted “{found.verdict}”", xlabel="Epochs")
axes[0].set_ylabel("Objective above its least value")
axes[0].legend()

# %%
# Where the rows are uneven, use `avare.Avare` for steps that fall, and `avare.Calibrated` for steps that stay large, as
# in nets. Where they are alike, keep uniform batches: draws by norm cost time, and the noise of what they remember can
# even lose some epochs. In seconds the gain is smaller than in epochs, because a step takes longer; with rows as short
# as these, it can be gone.

for name, words in reached.items():
    print(f"{name}: Avare reaches the final objective of Uniform {words}")
