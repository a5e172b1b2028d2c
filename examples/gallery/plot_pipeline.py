"""
A classifier in a pipeline, with an elastic net
===============================================

An analyst has columns of different scales, a text column, weights for the rows, and wants a sparse model. In
scikit-learn that is ``LogisticRegression(solver="saga", l1_ratio=...)``: its other fast solvers have no l1 penalty.
`AvareClassifier` minimises the same objective, in the same pipeline.
"""

import time
import warnings
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from avare.sklearn import AvareClassifier

rng = np.random.default_rng(0)
N = 40_000
frame = pd.DataFrame(rng.lognormal(0.0, 1.0, (N, 20)), columns=[f"amount {k}" for k in range(20)])
frame["place"] = rng.choice(["shop", "web", "phone"], N, p=[0.6, 0.35, 0.05])
logit = 0.8 * frame["amount 0"] - 0.5 * frame["amount 1"] + 2.0 * (frame["place"] == "phone") - 1.0
y = rng.random(N) < 1.0 / (1.0 + np.exp(-logit))
weights = rng.lognormal(0.0, 1.5, N)  # what each row stands for: some count for hundreds of others
weights /= weights.mean()

columns = make_column_transformer(
    (OneHotEncoder(drop="first"), ["place"]), remainder=StandardScaler(), sparse_threshold=0.0
)
x = columns.fit_transform(frame)
PENALTY: dict[str, Any] = {"C": 0.003, "l1_ratio": 0.5}


def objective(coefficients: np.ndarray, intercept: float) -> float:
    """Return what all solvers minimise, divided by the number of rows."""
    losses = np.logaddexp(0.0, -np.where(y, 1.0, -1.0) * (x @ coefficients + intercept))
    penalty = 0.5 * np.abs(coefficients).sum() + 0.25 * coefficients @ coefficients
    return float((weights @ losses + penalty / PENALTY["C"]) / N)


# %%
# In the pipeline it is used as any classifier of scikit-learn. The first fit compiles kernels, and keeps them.

pipeline = make_pipeline(columns, AvareClassifier(**PENALTY, random_state=0))
pipeline.fit(frame, y, avareclassifier__sample_weight=weights)
kept = np.count_nonzero(pipeline[-1].coef_)
print(f"{pipeline[-1].n_iter_} epochs, {kept} of {pipeline[-1].coef_.size} coefficients are not 0")

# %%
# Both solvers with more and more epochs, from the beginning each time; three seeds, processor seconds. The reference
# has a tolerance a hundred times smaller.

warnings.simplefilter("ignore", ConvergenceWarning)


def classifier(name: str, epochs: int, seed: int) -> Any:
    """Return a classifier that makes that many passes over the data."""
    limits: dict[str, Any] = {"tol": 1e-12, "max_iter": epochs, "random_state": seed}
    if name == "AvareClassifier":
        return AvareClassifier(**PENALTY, **limits)
    return LogisticRegression(**PENALTY, **limits, solver="saga")


best = AvareClassifier(**PENALTY, tol=1e-9, max_iter=2_000, random_state=9).fit(x, y, sample_weight=weights)
least = objective(best.coef_[0], best.intercept_[0])
figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
reached = {}
for name in ("LogisticRegression, saga", "AvareClassifier"):
    points = []
    for epochs in (1, 2, 4, 8, 16, 32, 64):
        runs = []
        for seed in range(3):
            start = time.process_time()
            model = classifier(name, epochs, seed).fit(x, y, sample_weight=weights)
            seconds = time.process_time() - start
            runs.append((seconds, max(objective(model.coef_[0], model.intercept_[0]) - least, 1e-12)))
        points.append(np.median(runs, axis=0))
    seconds, above = np.array(points).T
    axis.semilogy(seconds, above, "o-", label=name)
    close = np.flatnonzero(above <= 1e-6)
    reached[name] = f"{seconds[close[0]]:.2f} s" if close.size else f"not within {seconds[-1]:.1f} s"
axis.set(xlabel="processor seconds of the fit", ylabel="objective above the best", ylim=(1e-10, None))
axis.legend()

# %%
# scikit-learn's saga takes its steps from the longest row and ignores the weights, so that heavy rows cost it about ten
# times the seconds. `AvareClassifier` takes its steps from the weighted sum, and draws the rows whose slopes change.
# With rows of equal weight the difference is much smaller; and without an l1 penalty ``solver="lbfgs"`` is the one to
# beat: see the page on linear models.

for name, text in reached.items():
    print(f"{name}: within 1e-6 of the best after {text}")
