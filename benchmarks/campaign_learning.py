"""Trials of `make campaign` for what learns: loaders with faults, linear models, posteriors."""

import contextlib
import gc
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import scipy.optimize
import scipy.sparse

import avare
import random_posteriors as posteriors
from avare.problems import Linear

_SIGMA = 6.0  # standard errors that a mean over some hundred batches may be off: batches are not quite normal
_BATCHES, _WITH_WORKERS = 500, 150
_ROUNDING = 1e-10  # of the objective of a constant model, with columns far from 0
_NEAR = 1e-8  # of it: what `minimize` promises if it does not warn


# --- loaders ---------------------------------------------------------------------------------


def loaders(generator: np.random.Generator) -> int:
    """After faults in dataset, worker, collate function, score or transfer, batches are whole and unbiased."""
    try:
        return _with_faults(generator)
    finally:
        gc.collect()  # workers end with their iterator; a later fork must not find it


def _with_faults(generator: np.random.Generator) -> int:
    import torch

    import avare.torch as avt
    import faulty

    n, size = int(generator.integers(4, 40)), int(generator.integers(1, 5))
    values = torch.from_numpy(generator.lognormal(0.0, 1.0, n))
    pool = float(generator.uniform(1.5, min(4.0, n / size))) if n >= 2 * size and generator.random() < 0.6 else None
    workers = int(generator.choice([0, 0, 0, 1, 2]))
    place = str(generator.choice(faulty.PLACES if pool else faulty.PLACES[:2]))
    transfer = bool(pool) and generator.random() < 0.2
    loaded = math.ceil(size * (pool or 1.0)) if place == "dataset" else 1  # items for a batch: some batches must arrive
    every = int(generator.integers(2, 12)) * loaded
    faults = faulty.Faults("" if transfer else place, every, values=values, at=None, batch_size=size)
    second: dict[str, Any] = {"score": faults.score, "pool": pool} if pool else {}
    name = str(generator.choice(["Avare", "Calibrated", "Passes", "Uniform"] if not pool else ["Avare", "Calibrated"]))
    about = f"n={n}, size={size}, pool={pool}, workers={workers}, {name}, {'transfer' if transfer else place}/{every}"
    loader = avt.ImportanceLoader(
        faults, size, sampler=name, seed=int(generator.integers(2**31)), collate_fn=faults.collate,
        num_workers=workers, batches_per_epoch=10**9, **second,
    )  # fmt: skip
    found, count = [], _WITH_WORKERS if workers else _BATCHES
    with failing_transfers(loader, every) if transfer else contextlib.nullcontext():
        for (rows, places), index, weight in itertools.islice(faulty.received(iter(loader)), count):
            assert index.tolist() == places.tolist(), f"{about}: a batch has other indices"
            assert rows.tolist() == values[index].tolist(), f"{about}: a batch has other rows"
            found.append(float((weight * rows).mean()))
            loader.update(index, rows)
    error = np.std(found) / math.sqrt(count)
    off = abs(np.mean(found) - float(values.mean()))
    assert off <= _SIGMA * error + 1e-9, f"{about}: the mean is off by {off / error:.1f} standard errors"
    return count


@contextlib.contextmanager
def failing_transfers(loader: Any, every: int) -> Iterator[None]:
    """Let the pinning of rows fail once in some times."""
    import torch

    import faulty
    from avare.torch.loading import loader as module

    calls = itertools.count(1)

    def pin(tensor: Any) -> Any:
        if next(calls) % every == 0:
            raise faulty.BrokenError("no memory to pin")
        return tensor

    device = mock.Mock(is_available=lambda: True)
    loader.pin_memory = True
    with mock.patch.object(module, "ACCELERATOR", device), mock.patch.object(torch.Tensor, "pin_memory", pin):
        yield


# --- linear models ----------------------------------------------------------------------------


def linear_models(generator: np.random.Generator) -> int:
    """No method finds less than what `Linear.gap` promises, and a fit without a warning is at the minimum."""
    problem, energy = extreme_problem(generator)
    scale = problem.best_constant()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = problem.minimize()
    height, gap = problem.objective(x), problem.gap(x)
    assert abs(height - energy(x)) <= 1e-9 * (abs(height) + scale), f"{problem}: objective {height}, plain {energy(x)}"
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        run = avare.saga(problem, epochs=20, tol=1e-3, evaluate="never", seed=int(generator.integers(2**31)))
        heights = [problem.objective(run.x), *searched(problem, x)]
    lowest = min(each for each in heights if math.isfinite(each))
    assert height - gap <= lowest + _ROUNDING * scale, f"{problem}: {height} with gap {gap}, but {lowest} was found"
    if not caught:
        assert height - lowest <= _NEAR * scale, f"{problem}: {height} without a warning, but {lowest} was found"
    if run.status == "converged":
        best = min(lowest, height)
        assert heights[0] - best <= (1e-6 + _ROUNDING) * scale, f"{problem}: saga stopped at {heights[0]}, not {best}"
    return 1


def searched(problem: Linear, x: Any) -> Iterator[float]:
    """Let methods of SciPy search for something lower, from x and from 0."""
    if problem.l1 > 0.0:
        return
    for start in (x, np.zeros(problem.dim)):
        for method, more in (("L-BFGS-B", {}), ("Newton-CG", {"hessp": problem.hessian_product})):
            with contextlib.suppress(ValueError, FloatingPointError):  # it went where numbers overflow
                yield float(scipy.optimize.minimize(problem.objective, start, jac=problem.gradient, method=method,
                                                    options={"maxiter": 200}, **more).fun)  # fmt: skip


def extreme_problem(generator: np.random.Generator) -> tuple[Linear, Any]:
    """Draw scales, offsets, heavy rows, rare classes, uneven weights, collinear columns and penalties."""

    def chance(share: float) -> bool:
        return bool(generator.random() < share)

    kind = str(generator.choice(["Logistic", "LeastSquares", "Huber", "SmoothedHinge", "Softmax"]))
    n, columns = int(np.exp(generator.uniform(1.5, 7.0))), int(np.exp(generator.uniform(0.0, 4.5)))
    X = generator.normal(size=(n, columns)) * np.exp(generator.normal(0.0, 3.0, columns))
    if chance(0.3):
        X *= generator.pareto(1.0, (n, 1))
    if chance(0.3):
        X = np.hstack([X, X[:, :1] + 10.0 ** generator.uniform(-8.0, -1.0) * generator.normal(size=(n, 1))])
    sparse = chance(0.3)
    if sparse:
        X *= generator.random(X.shape) < 0.2
    elif chance(0.3):
        X += np.abs(X).max() * generator.normal(size=X.shape[1])
    classes = 3 if kind == "Softmax" else 2
    y = np.zeros(n) if chance(0.3) else generator.integers(0, classes, n).astype(float)
    y[:classes] = range(classes)
    if kind in ("LeastSquares", "Huber"):
        y = generator.standard_cauchy(n) + 10.0 ** generator.uniform(0.0, 6.0)
    bias: Any = [False, True, "free"][generator.integers(3)]
    strengths = np.exp(generator.uniform(-12.0, 6.0, X.shape[1] + (bias is True)))
    weight = generator.lognormal(0.0, 2.0, n) * (generator.random(n) < 0.9) if chance(0.4) else None
    problem: Linear = getattr(avare.problems, kind)(
        scipy.sparse.csr_array(X) if sparse else X, y,
        l2=strengths if chance(0.3) else float(strengths[0]),
        l1=float(np.exp(generator.uniform(-3.0, 2.0))) if chance(0.2) else 0.0,
        sample_weight=weight, bias=bias,
    )  # fmt: skip
    rows = np.column_stack([X, np.ones(n)]) if bias else X
    targets = np.where(y > 0.5, 1.0, -1.0) if kind in ("Logistic", "SmoothedHinge") else y

    def energy(x: Any) -> float:
        """Return the objective, in plain NumPy."""
        outputs = rows @ x.reshape(problem.outputs, -1).T
        losses = posteriors.losses(np, kind, outputs[None], targets)[0][0]
        return float(
            (losses if weight is None else losses[weight > 0] * weight[weight > 0]).sum()
        ) + problem.penalty.value(x)

    return problem, energy


# --- posteriors -------------------------------------------------------------------------------


def chains(generator: np.random.Generator) -> int:
    """`sghmc` and `sgld` have the means and standard deviations of a reference, or warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = posteriors.trial(int(generator.integers(10**6, 10**9)))
    for row in rows:
        assert row["warnings"] or not posteriors.is_bad(row), posteriors.line(row)
    return len(rows)
