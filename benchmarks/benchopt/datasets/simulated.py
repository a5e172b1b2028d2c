"""Rows of uneven lengths and two classes."""

from typing import Any

import numpy as np

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Generated data, dense."""

    name = "Simulated"
    parameters = {"n_samples, n_features": [(5_000, 20)]}  # noqa: RUF012  # as benchopt wants it

    def get_data(self) -> dict[str, Any]:
        """Return X, and y of -1 and 1."""
        generator = np.random.default_rng(0)
        X = generator.normal(size=(self.n_samples, self.n_features))
        X *= generator.lognormal(0.0, 1.0, (self.n_samples, 1))
        y = np.where(X[:, 0] - X[:, 1] + generator.logistic(size=self.n_samples) > 0.0, 1, -1)
        return {"X": X, "y": y}
