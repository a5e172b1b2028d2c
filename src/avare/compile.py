"""``python -m avare.compile``: compile the kernels that most programs need first, for example in a container's build.

Numba compiles a kernel when it is first called, and keeps it in a folder for the next process: ``NUMBA_CACHE_DIR``, or
the package's own ``__pycache__``. This command calls the kernels of the default samplers, of `avare.sklearn`, of the
loader, of `avare.sgd` and `avare.sghmc`, and of the command ``avare diagnose`` on small data, and prints how long each
took. Parts that need a package that is not installed are left out.
"""

import logging
import sys
import time
from collections.abc import Callable

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


def _data() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(_ROWS, _COLUMNS))
    return X, X[:, 0] + generator.normal(size=_ROWS)


def _linear_models() -> None:
    from scipy import sparse

    from avare.sklearn import AvareClassifier, AvareRegressor

    X, score = _data()
    wide = sparse.random(_ROWS, _WIDE, density=0.05, format="csr", random_state=0)
    AvareClassifier().fit(wide[:_COLUMNS], [0, 1, 0, 1, 1])  # with fewer rows than columns
    for data in (X, X.astype(np.float32), sparse.csr_matrix(X), wide, wide.toarray()):
        AvareClassifier().fit(data, score > 0.0)
        AvareClassifier().fit(data, np.digitize(score, [-1.0, 1.0]))
        AvareRegressor().fit(data, score)


def _loader() -> None:
    from avare.torch import ImportanceLoader, output_norms

    loader = ImportanceLoader([np.zeros(1, dtype=np.float32)] * _ROWS, batch_size=32)
    _, index, _ = next(iter(loader))
    loader.update(index, output_norms(index.float()[:, None].repeat(1, 3), index % 3))


def _solvers() -> None:
    import avare

    X, score = _data()
    for problem in (avare.problems.LeastSquares(X, score), avare.problems.Logistic(X, score > 0.0)):
        for kind in (avare.Avare, avare.Calibrated, avare.Uniform):
            avare.sgd(problem, kind(_ROWS, 32, seed=0), steps=1)
        avare.sghmc(problem, steps=1000, thin=10, seed=0)


def _diagnosis() -> None:
    from avare.experiments import diagnose, obtain

    diagnose(*obtain("digits"), epochs=1, runs=2)


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
