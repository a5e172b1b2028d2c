"""One setting of the experiment: chains of one method, and what they say of the posterior as they continue."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import avare
from avare.diagnostics import kernel_stein, polynomial_stein
from avare.experiments.store import Record, Spec, numbers
from avare.problems import Linear
from avare.samplers import Sampler
from avare.solvers import ConvergenceWarning
from avare.solvers.chains import build_estimator
from avare.solvers.metric import diagonal
from avare.solvers.tuning import POINTS, expected_norms, points_around
from sampling.models import loss_on_test, prepared

METHODS: dict[str, Callable[..., Any]] = {"sgld": avare.sgld, "sghmc": avare.sghmc}
SHARES = {"sgld": {"none": 0.01, "mode": 0.1, "saga": 0.1}, "sghmc": {"none": 0.05, "mode": 0.25, "saga": 0.25}}
"""Step sizes that all samplers share, in units of the largest curvature (its root for "sghmc"), by control."""
CHECKPOINTS = (0.1, 0.2, 0.5, 1.0)
"""When the draws so far are summarised, as shares of the steps; the first fifth of them is left out."""
LEVELS = (0.05, 0.25, 0.75, 0.95)
_BY_HESSIAN = ("Preferential",)
_MEASURED = {"sgld": 0.0, "sghmc": 0.032}  # gradients to measure the noise with, as a share of those of the steps
_FIRST = 0.2
_KEPT = 1000  # draws per chain
_STEIN, _STEIN_BATCH, _PREDICTIONS = 500, 256, 200


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "Uniform": lambda n, m, norms, scores, seed: avare.Uniform(n, m, seed=seed),
    "Reshuffled": lambda n, m, norms, scores, seed: avare.Uniform(n, m, reshuffle=True, seed=seed),
    "Preferential": lambda n, m, norms, scores, seed: avare.Static(n, m, smoothness=scores, uniform=0.01, seed=seed),
    "Static": lambda n, m, norms, scores, seed: avare.Static(n, m, smoothness=norms, uniform=0.1, seed=seed),
    "Avare": lambda n, m, norms, scores, seed: avare.Avare(n, m, p_min=1 / (5 * n), initial_norms=norms, seed=seed),
    "Calibrated": lambda n, m, norms, scores, seed: avare.Calibrated(n, m, initial_norms=norms, seed=seed),
}
"""How each is built from the norms that are expected near the mode, and from the scores of preferential subsampling."""


def run_setting(spec: Spec, X: Any, y: NDArray[Any]) -> Record:
    """Run the chains of a setting, one after another, and summarise them together."""
    began = time.process_time()
    found = prepared(spec, X, y)
    problem, mode, curvature = found.problem, found.mode, found.curvature
    scale = 1.0 / np.diag(curvature)
    size = spec["step"]
    if isinstance(size, float):  # in units of the largest curvature
        root = np.sqrt(scale)
        largest = float(np.linalg.eigvalsh(root[:, None] * curvature * root)[-1])
        size *= largest ** {"sgld": -1.0, "sghmc": -0.5}[spec["method"]]
    points = points_around(problem, mode, diagonal(scale), POINTS)
    norms = expected_norms(problem, spec["control"], mode, points)
    scores = norms
    if spec["sampler"] in _BY_HESSIAN and spec["control"] != "none":
        scores = _scores(problem, mode, curvature)
    thin = max(1, spec["steps"] // _KEPT)
    draws, status, chain, taken = [], "finished", None, []
    for seed in range(spec["chains"]):
        sampler = SAMPLERS[spec["sampler"]](problem.n, spec["batch_size"], norms, scores, seed)
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the reference chain judges the draws
            chain = METHODS[spec["method"]](
                problem,
                sampler,
                size,
                control=mode if spec["control"] == "mode" else spec["control"],
                precondition=scale,
                steps=spec["steps"],
                thin=thin,
                start=mode,
                seed=seed,
                chains=1,
            )
        taken.append(time.process_time() - started)
        if chain.status != "finished":
            status = chain.status
            break
        size = chain.step_size  # the same for all chains
        draws.append(chain.draws[0])
    if status != "finished" or chain is None:
        return {"seconds": {"steps": sum(taken), "evaluation": 0.0}, "status": status}
    whole = np.stack(draws)
    passes = {"none": 0, "mode": 1, "saga": 1}[spec["control"]] * problem.n  # for the table
    each = spec["batch_size"] * (1.0 + _MEASURED[spec["method"]])
    evaluations = [passes + share * spec["steps"] * each for share in CHECKPOINTS]
    total, typical = sum(taken), float(np.median(taken))  # the first may have compiled
    return {
        "seconds": {"steps": total, "evaluation": time.process_time() - began - total},
        "status": status,
        "size": float(size),
        "trace": {"evaluations": evaluations, "seconds": [share * typical for share in CHECKPOINTS]},
        "moments": [_moments(whole, share) for share in CHECKPOINTS],
        "wider": _median(chain.noise.widening),
        **_quality(spec, X, y, problem, mode, whole),
    }


def _scores(problem: Linear, mode: Any, curvature: Any) -> NDArray[np.float64]:
    """The fixed scores of preferential subsampling: the norms of differences, by the whole second derivative."""
    factor = np.linalg.inv(np.linalg.cholesky(curvature)).T
    spread = np.zeros(problem.n)
    for column in factor.T:  # sqrt(a_i . S a_i), one column of a root of S at a time
        spread += problem.rows(centred=False).outputs(problem.coefficients(column))[:, 0] ** 2
    return np.asarray(problem.survey(mode).curvatures * problem.lengths * np.sqrt(spread))


def _moments(draws: NDArray[np.float64], share: float) -> dict[str, Any]:
    until = round(share * draws.shape[1])
    part = draws[:, int(_FIRST * until) : until].reshape(-1, draws.shape[2])
    return {
        "mean": numbers(part.mean(axis=0)),
        "sd": numbers(part.std(axis=0)),
        "quantiles": [numbers(row) for row in np.quantile(part, LEVELS, axis=0)],
    }


def _quality(
    spec: Spec, X: Any, y: NDArray[Any], problem: Linear, mode: Any, draws: NDArray[np.float64]
) -> dict[str, float]:
    """Stein discrepancies, from gradients of batches with control at the mode, and the loss on rows held out."""
    late = draws[:, int(_FIRST * draws.shape[1]) :].reshape(-1, problem.dim)
    some = late[np.linspace(0, len(late) - 1, _STEIN).astype(int)]
    size = min(_STEIN_BATCH, problem.n)
    estimator, sampler = (
        build_estimator(problem, "mode", mode.copy(), size, mode),
        avare.Uniform(problem.n, size, seed=0),
    )
    gradients = np.empty_like(some)
    for x, gradient in zip(some, gradients, strict=True):
        batch = sampler.sample()
        gradient[:] = estimator.at(x, batch.indices, batch.weights)[0] + problem.penalty.l2 * x
    return {
        "kernel_stein": float(kernel_stein(some, gradients)),
        "polynomial_stein": float(polynomial_stein(some, gradients)),
        "test_loss": loss_on_test(spec, X, y, late[np.linspace(0, len(late) - 1, _PREDICTIONS).astype(int)]),
    }


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values))
