"""The posteriors of the experiment: their data, and long chains on all data to compare with."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.data import Data, Place, digest, obtain
from avare.experiments.sgd_runs import problem_of
from avare.experiments.store import Record, Spec, numbers
from avare.problems import Linear

_LEAPS, _STEPS = 4, (0.3, 0.5)  # of a reference chain: about a quarter of a turn, where the posterior is about normal
_CHAINS = 4
_WARM_UP = 0.1  # of the draws, on top of them
GRID = np.linspace(0.0, 1.0, 81)
"""The levels at which quantiles of the reference are stored."""


@dataclass(frozen=True, slots=True)
class Model:
    """A posterior: its data, loss and prior, and the number of reference draws."""

    title: str
    data: Callable[[Place], tuple[Any, NDArray[Any]]]
    """Loads or generates rows and targets; from a folder, if it has one."""
    loss: str
    l2: float
    draws: int
    """Of all reference chains together."""
    bias: bool = False
    held_out: float = 0.1
    """Share of the rows for the test."""

    def load(self, name: str, folder: Place) -> Data:
        """Return the data, in an order that is drawn once."""
        X, y = self.data(folder)
        order = np.random.default_rng(0).permutation(len(y))
        X, y = np.ascontiguousarray(X[order]), y[order]
        return Data(name, X, y, digest(X, y), held_out=int(self.held_out * len(y)), bias=self.bias)


def _ijcnn1(folder: Place) -> tuple[Any, NDArray[Any]]:
    data, _ = obtain("ijcnn1", folder=folder)
    X = data.X.toarray() if hasattr(data.X, "toarray") else data.X
    return X, data.y


def _parity(folder: Place) -> tuple[Any, NDArray[Any]]:
    """20,000 digits, odd or even, by the means of 2 x 2 pixels."""
    data, _ = obtain("mnist", folder=folder)
    images = np.asarray(data.X, dtype=np.float32)[:20_000].reshape(-1, 14, 2, 14, 2)
    return images.mean(axis=(2, 4)).reshape(-1, 196), data.y[:20_000] % 2


def _heavy(folder: Place) -> tuple[Any, NDArray[Any]]:
    """A regression whose rows have very different lengths, with heavy-tailed residuals."""
    generator = np.random.default_rng(1)
    X = generator.normal(size=(20_000, 10)) * generator.lognormal(0.0, 1.0, (20_000, 1))
    return X, X @ generator.normal(size=10) + generator.standard_t(2, size=20_000)


def _rare(folder: Place) -> tuple[Any, NDArray[Any]]:
    """A million examples with 20 columns, of which one in a thousand is positive."""
    generator = np.random.default_rng(2)
    X = generator.normal(size=(1_000_000, 20)).astype(np.float32)
    scores = X @ (0.5 * generator.normal(size=20))
    low, high = -30.0, 0.0
    while high - low > 1e-6:  # the intercept with which one in a thousand is positive
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.mean(1.0 / (1.0 + np.exp(-scores - middle))) < 1e-3 else (low, middle)
    positive = generator.random(len(X)) < 1.0 / (1.0 + np.exp(-scores - low))
    return X, positive.astype(np.int64)


MODELS = {
    "ijcnn1": Model("IJCNN1, logistic", _ijcnn1, "logistic", 1.0, 3000),
    "rare": Model("Rare events, logistic", _rare, "logistic", 0.1, 600, bias=True, held_out=0.05),
    "heavy": Model("Heavy rows, Huber", _heavy, "huber", 1.0, 4000),
    "parity": Model("MNIST odd or even, logistic", _parity, "logistic", 1.0, 2000),
}
"""By name, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A posterior with its mode and its second derivative there."""

    problem: Linear
    mode: NDArray[np.float64]
    curvature: NDArray[np.float64]


_LAST: dict[tuple[Any, ...], Prepared] = {}  # of this process: runs of one model follow each other


def prepared(spec: Spec, X: Any, y: NDArray[Any]) -> Prepared:
    """Find the mode of a run's posterior; the next run of the same model gets it at once."""
    key = tuple(spec.get(name) for name in ("data_digest", "loss", "l2", "bias", "held_out"))
    if key not in _LAST:
        problem = problem_of(spec, X, y)
        mode = problem.minimize(tolerance=1e-6 * problem.n**0.5)
        _LAST.clear()
        _LAST[key] = Prepared(problem, mode, problem.hessian(mode))
    return _LAST[key]


def reference(spec: Spec, X: Any, y: NDArray[Any]) -> Record:
    """Run Hamiltonian Monte Carlo with all data: exact but for the number of draws, which the diagnostics judge."""
    began = time.process_time()
    found = prepared(spec, X, y)
    problem, mode = found.problem, found.mode
    scale = np.linalg.inv(np.linalg.cholesky(found.curvature)).T  # x = mode + scale z, with z about standard normal
    each = math.ceil(spec["draws"] / _CHAINS)
    draws = np.empty((_CHAINS, each, problem.dim))
    accepted = [
        _hamiltonian(problem, mode, scale, draws[k], np.random.default_rng([spec["seed"], k])) for k in range(_CHAINS)
    ]
    whole = draws.reshape(-1, problem.dim)
    halves = draws[:, : each // 2].reshape(-1, problem.dim), draws[:, each // 2 :].reshape(-1, problem.dim)
    seconds = time.process_time() - began
    return {
        "seconds": {"steps": seconds, "evaluation": 0.0},
        "status": "finished",
        "reference": {
            "mean": numbers(whole.mean(axis=0)),
            "sd": numbers(whole.std(axis=0)),
            "quantiles": [numbers(row) for row in np.quantile(whole, GRID, axis=0)],
        },
        "diagnostics": {
            "draws": len(whole),
            "accepted": float(np.mean(accepted)),
            "r_hat": float(_r_hat(draws).max()),
            "sd_of_halves": float(np.abs(halves[0].std(axis=0) / halves[1].std(axis=0) - 1.0).mean()),
            "test_loss": loss_on_test(spec, X, y, whole[:: max(1, len(whole) // 200)]),
        },
    }


def _hamiltonian(problem: Linear, mode: Any, scale: Any, draws: Any, generator: np.random.Generator) -> float:
    """Fill draws; return the share of accepted proposals."""
    x = mode + 1.2 * scale @ generator.standard_normal(problem.dim)
    energy, force, accepted = problem.objective(x), scale.T @ problem.gradient(x), 0
    warm_up = math.ceil(_WARM_UP * len(draws))
    for k in range(-warm_up, len(draws)):
        momentum = generator.standard_normal(problem.dim)
        step = generator.uniform(*_STEPS)
        there, pull, end = x, force, momentum
        for _ in range(_LEAPS):
            end = end - 0.5 * step * pull
            there = there + step * scale @ end
            pull = scale.T @ problem.gradient(there)
            end = end - 0.5 * step * pull
        found = problem.objective(there)
        if math.log(generator.random()) < energy - found + 0.5 * float(momentum @ momentum - end @ end):
            x, energy, force = there, found, pull
            accepted += k >= 0
        if k >= 0:
            draws[k] = x
    return accepted / len(draws)


def _r_hat(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compare the variance between the halves of all chains with that within them, per coordinate."""
    half = draws.shape[1] // 2
    parts = np.concatenate([draws[:, :half], draws[:, half : 2 * half]])
    within, between = parts.var(axis=1, ddof=1).mean(axis=0), half * parts.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((half - 1) / half + between / (half * within)))


def loss_on_test(spec: Spec, X: Any, y: NDArray[Any], draws: NDArray[np.float64]) -> float:
    """Return the mean loss of the mean prediction of draws on the rows held out: -log E exp(-loss)."""
    tested = problem_of({**spec, "held_out": 0}, X[-spec["held_out"] :], y[-spec["held_out"] :])
    total = np.zeros(tested.n)
    for x in draws:
        total += np.exp(-tested.losses_and_norms(x)[0])
    return float(-np.log(total / len(draws)).mean())
