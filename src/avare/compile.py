"""``python -m avare.compile``: compile the kernels that most programs need first, for example in a container's build.

Numba compiles a kernel when it is first called, and keeps it in a folder for the next process: ``NUMBA_CACHE_DIR``, or
the package's own ``__pycache__``. This command calls the kernels of the default samplers, of `avare.sklearn`, of the
loader, of `avare.sgd` and `avare.sghmc`, and of the command ``avare diagnose`` on small data, and prints how long each
took. What needs a package that is not installed is left out.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["main"]

_ROWS, _COLUMNS, _WIDE = 2000, 5, 200


def _samplers() -> None:
    import avare

    for kind in (avare.Calibrated, avare.Avare, avare.Passes, avare.Uniform):
        sampler = kind(_ROWS, 32, seed=0)
        batch = sampler.sample()
        sampler.update(batch.indices, np.ones(len(batch)))


def _data() -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Return rows, and targets by the name of a loss."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(_ROWS, _COLUMNS))
    score = X[:, 0] + generator.normal(size=_ROWS)
    return X, {"least_squares": score, "logistic": score > 0.0, "softmax": np.digitize(score, [-1.0, 1.0])}


def _linear_models() -> None:
    from scipy import sparse

    from avare.sklearn import AvareClassifier, AvareRegressor

    X, targets = _data()
    wide = sparse.random(_ROWS, _WIDE, density=0.05, format="csr", random_state=0)
    for data in (X, X.astype(np.float32), wide):
        AvareClassifier().fit(data, targets["logistic"])
        AvareClassifier().fit(data, targets["softmax"])
        AvareRegressor().fit(data, targets["least_squares"])


def _loader() -> None:
    from avare.torch import ImportanceLoader

    loader = ImportanceLoader([np.zeros(1, dtype=np.float32)] * _ROWS, batch_size=32)
    _, index, _ = next(iter(loader))
    loader.update(index, np.ones(len(index)))


def _solvers() -> None:
    import avare

    X, targets = _data()
    for loss in ("least_squares", "logistic"):
        problem = avare.problems.get(loss)(X, targets[loss])
        avare.sgd(problem, avare.Avare(_ROWS, 32, seed=0), steps=1)
        avare.sghmc(problem, steps=1000, thin=10, seed=0)


def _diagnosis() -> None:
    from avare.experiments import diagnose
    from avare.experiments.data import Data

    X, targets = _data()
    for loss in targets:
        diagnose(Data("", X, targets[loss], ""), loss, epochs=1, runs=2)


PARTS: dict[str, Callable[[], None]] = {
    "samplers": _samplers,
    "linear models": _linear_models,
    "loader": _loader,
    "solvers": _solvers,
    "avare diagnose": _diagnosis,
}


def main() -> int:
    """Compile all kernels, print the seconds of each part, and return the exit code.

    >>> from avare import compile
    >>> compile.PARTS = {}  # in place of samplers, linear models and all others
    >>> compile.main()
    0
    """
    for name, call in PARTS.items():
        started = time.perf_counter()
        try:
            call()
        except ImportError as error:
            print(f"{name}: left out ({error})")
        else:
            print(f"{name}: {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    logging.getLogger("avare").setLevel(logging.ERROR)  # that kernels are compiled is no news here
    sys.exit(main())
