"""Random posteriors of linear models: whether `sghmc` and `sgld` with their defaults give them, or warn.

Twelve families of data that are hard for chains, each with random sizes, priors and coefficients. The reference does
not use the library: a grid for two coordinates at most, otherwise importance sampling whose proposal adapts to the
posterior, or, if its weights vary too much, Hamiltonian Monte Carlo with 64 chains. A chain fails if a standard
deviation is wrong by more than 30 % or a mean by more than half a standard deviation, and no warning says so. A good
chain (10 % and 0.2) must not warn.

One posterior of each family is also given to NUTS by BlackJAX: that is the table of docs/sampling.md.

The rows of a run are kept in a file as they come: the same command resumes it, `--again` starts over.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import avare
from avare.diagnostics import convergence
from harness import save, table, where

Array = NDArray[np.float64]
SOLVERS: dict[str, Callable[..., Any]] = {"sghmc": avare.sghmc, "sgld": avare.sgld}
BAD_SD, BAD_MEAN = 0.3, 0.5
GOOD_SD, GOOD_MEAN = 0.1, 0.2
TUNED = "0 to 199 and 1000 to 1199"
HELD_OUT = 20_000
"""The first of the seeds that were not looked at before; those above were used to write the solvers."""
_LEAST = 3000  # effective draws of a reference by importance sampling
_DRAWS, _REFITS = 30_000, 6
_CHAINS, _ITERATIONS = 64, 1500
_ROWS = Path(__file__).parents[1] / "build" / "random_posteriors.jsonl"
_PAGE, _MARK = Path(__file__).parents[1] / "docs" / "sampling.md", "<!-- made by benchmarks/random_posteriors.py -->"
_BETWEEN = """The same script runs both solvers with their defaults on random posteriors of these kinds, of seeds that
were not looked at before. Wrong is a standard deviation by more than 30 % or a mean by more than half a standard
deviation; good is within 10 % and 0.2."""
_WARM, _NUTS = 500, 500  # draws of each of four chains
_TABLE, _FEW = 3000, 1000  # the first seed of the table, which is of the first family, and its most examples


class Posterior(NamedTuple):
    """A model and its data; the last column of `rows` is 1 if there is a bias."""

    kind: str
    rows: Array
    y: Array
    l2: Array
    """One number per coordinate."""
    problem: Any

    def energy(self, x: Array) -> tuple[Array, Array]:
        """Return the negative logarithm of the density and its gradient at each row of x."""
        classes = len(self.problem.classes) if self.kind == "Softmax" else 1
        outputs = np.einsum("nj,akj->ank", self.rows, x.reshape(len(x), classes, -1), optimize=True)
        value, slope = losses(np, self.kind, outputs, self.y)
        gradient = np.einsum("ank,nj->akj", slope, self.rows, optimize=True).reshape(x.shape)
        return value.sum(axis=1) + 0.5 * (self.l2 * x**2).sum(axis=1), gradient + self.l2 * x


def losses(xp: Any, kind: str, outputs: Any, y: Any) -> tuple[Any, Any]:
    """Return the losses and their slopes, for outputs of shape (points, rows, classes)."""
    if kind == "Softmax":
        largest = outputs.max(axis=2, keepdims=True)
        shares = xp.exp(outputs - largest)
        total = shares.sum(axis=2, keepdims=True)
        chosen = xp.eye(outputs.shape[2])[y.astype(int)]
        return (largest + xp.log(total))[:, :, 0] - (chosen * outputs).sum(axis=2), shares / total - chosen
    z = outputs[:, :, 0]
    if kind == "Logistic":
        value, slope = xp.logaddexp(0.0, -y * z), -y / (1.0 + xp.exp(xp.minimum(y * z, 500.0)))
    elif kind == "LeastSquares":
        value, slope = 0.5 * (z - y) ** 2, z - y
    elif kind == "Huber":
        far = xp.abs(z - y)
        value, slope = xp.where(far <= 1.0, 0.5 * far**2, far - 0.5), xp.clip(z - y, -1.0, 1.0)
    else:  # SmoothedHinge, gamma = 1
        short = xp.maximum(1.0 - y * z, 0.0)
        value, slope = xp.where(short <= 1.0, 0.5 * short**2, short - 0.5), -y * xp.minimum(short, 1.0)
    return value, slope[:, :, None]


# --- the families ----------------------------------------------------------------------------


def _make(kind: str, X: Array, y: Any, l2: float, bias: Any = False) -> Posterior:
    problem = getattr(avare.problems, kind)(X, y, l2=l2, bias=bias)
    rows = np.column_stack([X, np.ones(len(X))]) if bias else X
    targets = np.asarray(y, dtype=np.float64)
    if kind in ("Logistic", "SmoothedHinge"):
        targets = np.where(targets > 0.5, 1.0, -1.0)
    return Posterior(kind, rows, targets, problem.penalty.l2.copy(), problem)


def _classes(g: np.random.Generator, z: Array) -> Array:
    """Draw two classes by the logistic law; both occur."""
    y = (g.random(len(z)) < 1.0 / (1.0 + np.exp(-z))).astype(np.float64)
    y[np.argmax(z)], y[np.argmin(z)] = 1.0, 0.0
    return y


def _size(g: np.random.Generator, low: float, high: float) -> int:
    return int(np.exp(g.uniform(np.log(low), np.log(high + 1))))


def _weak(g: np.random.Generator, low: float, high: float) -> float:
    return float(10.0 ** g.uniform(low, high))


def plain(g: np.random.Generator) -> Posterior:
    """Logistic regression with independent columns."""
    n, d = _size(g, 100, 5000), _size(g, 1, 15)
    X = g.normal(size=(n, d))
    return _make("Logistic", X, _classes(g, X @ g.normal(size=d)), _weak(g, -2, 1))


def dummies(g: np.random.Generator) -> Posterior:
    """Dummy columns with an intercept: only the prior tells them apart."""
    n, d = _size(g, 300, 20_000), _size(g, 3, 12)
    k = g.integers(0, d, n)
    return _make("Logistic", np.eye(d)[k], _classes(g, g.normal(size=d)[k]), _weak(g, -2.5, 0), bias=True)


def rare_events(g: np.random.Generator) -> Posterior:
    """One to three positives in a hundred, and an intercept."""
    n, d = _size(g, 500, 20_000), _size(g, 1, 6)
    X = g.normal(size=(n, d))
    y = _classes(g, X @ g.normal(size=d) * 0.7 - g.uniform(3.5, 5.0))
    return _make("Logistic", X, y, _weak(g, -2, 0), bias=True)


def collinear(g: np.random.Generator) -> Posterior:
    """Two columns that are nearly the same."""
    n, d = _size(g, 200, 5000), _size(g, 2, 8)
    X = g.normal(size=(n, d))
    X[:, -1] = X[:, 0] + _weak(g, -4, -1) * g.normal(size=n)
    return _make("Logistic", X, _classes(g, X @ g.normal(size=d) * 0.7), _weak(g, -3, 0))


def more_columns_than_rows(g: np.random.Generator) -> Posterior:
    """More columns than rows."""
    n = _size(g, 10, 40)
    X = g.normal(size=(n, int(n * g.uniform(1.1, 2.0))))
    kind = str(g.choice(["Logistic", "LeastSquares"]))
    z = X[:, :3] @ g.normal(size=3)
    y = _classes(g, z) if kind == "Logistic" else z + g.normal(size=n)
    return _make(kind, X, y, _weak(g, -1, 1))


def nearly_separable(g: np.random.Generator) -> Posterior:
    """Classes that a line separates, but for a few examples or none."""
    n, d = _size(g, 40, 1000), _size(g, 1, 4)
    X = g.normal(size=(n, d))
    y = (X @ g.normal(size=d) > 0).astype(np.float64)
    wrong = g.integers(0, n, g.integers(0, 3))
    y[wrong] = 1.0 - y[wrong]
    y[:2] = (0.0, 1.0) if y[0] == y.mean() else y[:2]
    return _make("Logistic", X, y, _weak(g, -4, -1))


def heavy_rows(g: np.random.Generator) -> Posterior:
    """A few rows that are a hundred times as long as most."""
    n, d = _size(g, 300, 10_000), _size(g, 1, 10)
    X = g.normal(size=(n, d)) * g.lognormal(0.0, 1.5, (n, 1))
    kind = str(g.choice(["Logistic", "LeastSquares", "Huber"]))
    z = X @ g.normal(size=d)
    return _make(kind, X, _classes(g, z) if kind == "Logistic" else z + g.standard_t(2, size=n), _weak(g, -2, 1))


def regression(g: np.random.Generator) -> Posterior:
    """Least squares with correlated columns of any scale."""
    n, d = _size(g, 50, 10_000), _size(g, 1, 20)
    X = g.normal(size=(n, d)) @ g.normal(size=(d, d)) * 10.0 ** g.uniform(-2, 2, d)
    return _make("LeastSquares", X, X @ g.normal(size=d) + g.normal(size=n), _weak(g, -2, 1))


def robust(g: np.random.Generator) -> Posterior:
    """Huber regression with outliers and a free intercept."""
    n, d = _size(g, 20, 5000), _size(g, 1, 8)
    X = g.normal(size=(n, d))
    return _make("Huber", X, X @ g.normal(size=d) + 3.0 * g.standard_t(1.5, size=n), _weak(g, -2, 0), bias="free")


def margins(g: np.random.Generator) -> Posterior:
    """A smoothed hinge, whose curvature jumps."""
    n, d = _size(g, 30, 3000), _size(g, 1, 8)
    X = g.normal(size=(n, d))
    return _make("SmoothedHinge", X, _classes(g, 2.0 * X @ g.normal(size=d)), _weak(g, -2, 1), bias=True)


def several_classes(g: np.random.Generator) -> Posterior:
    """Softmax regression, three or four classes."""
    n, d, k = _size(g, 100, 3000), _size(g, 1, 6), int(g.integers(3, 5))
    X = g.normal(size=(n, d))
    y = (X @ g.normal(size=(d, k)) + g.gumbel(size=(n, k))).argmax(axis=1)
    y[:k] = np.arange(k)
    return _make("Softmax", X, y, _weak(g, -2, 1), bias=True)


def few_examples(g: np.random.Generator) -> Posterior:
    """A handful of examples, so that the posterior is skewed."""
    n, d = _size(g, 4, 30), _size(g, 1, 5)
    X = g.normal(size=(n, d)) * 10.0 ** g.uniform(-1, 1, d)
    return _make("Logistic", X, _classes(g, X @ g.normal(size=d)), _weak(g, -2, 0), bias=bool(g.integers(2)))


FAMILIES: dict[str, Callable[[np.random.Generator], Posterior]] = {
    each.__name__.replace("_", " "): each
    for each in (
        plain,
        dummies,
        rare_events,
        collinear,
        more_columns_than_rows,
        nearly_separable,
        heavy_rows,
        regression,
        robust,
        margins,
        several_classes,
        few_examples,
    )
}


# --- the reference -----------------------------------------------------------------------------


class Reference(NamedTuple):
    """The exact means and standard deviations, or nearly so."""

    mean: Array
    sd: Array
    by: str
    draws: Array
    """For the coverage of intervals; with equal weights."""


def reference(posterior: Posterior, seed: int = 0) -> Reference:
    """Integrate over the posterior."""
    g = np.random.default_rng([77, seed])
    mode = posterior.problem.minimize()
    found = _importance(posterior, mode, g)
    if len(mode) <= 2:
        return _grid(posterior, *_moments(*found), g)
    return _chosen(found, g) if _effective(found[1]) >= _LEAST else _hamiltonian(posterior, *found, g)


def _effective(weights: Array) -> float:
    return float(1.0 / (weights**2).sum())


def _moments(points: Array, weights: Array) -> tuple[Array, Array]:
    mean = weights @ points
    return mean, (points - mean).T @ ((points - mean) * weights[:, None])


def _chosen(found: tuple[Array, Array], g: np.random.Generator) -> Reference:
    mean, covariance = _moments(*found)
    draws = found[0][g.choice(len(found[1]), 4000, p=found[1])]
    return Reference(mean, np.sqrt(np.diag(covariance)), "importance sampling", draws)


def _energies(posterior: Posterior, points: Array) -> Array:
    step = max(1, 4_000_000 // len(posterior.rows))
    return np.concatenate([posterior.energy(points[k : k + step])[0] for k in range(0, len(points), step)])


def _importance(posterior: Posterior, mode: Array, g: np.random.Generator) -> tuple[Array, Array]:
    """Draw from Student's law, whose place and shape follow the weighted draws; return the last draws and weights."""
    d, few = len(mode), 5.0
    h = np.maximum(1e-5 * (1.0 + np.abs(mode)), 1e-7)
    shifted = [posterior.energy(np.stack([mode + e, mode - e]))[1] for e in np.diag(h)]
    curvature = np.stack([(up - down) / (2.0 * step) for (up, down), step in zip(shifted, h, strict=True)])
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    centre, covariance = mode, (vectors / np.maximum(values, 1e-12 * values[-1])) @ vectors.T
    draws = int(np.clip(1e9 / (len(posterior.rows) * d), 3 * _LEAST, _DRAWS))
    for _ in range(_REFITS):
        root = np.linalg.cholesky(covariance + 1e-14 * np.diag(np.diag(covariance)))
        z = g.standard_normal((draws, d)) / np.sqrt(g.chisquare(few, draws) / few)[:, None]
        points = centre + z @ root.T
        logarithms = 0.5 * (few + d) * np.log1p((z**2).sum(axis=1) / few) - _energies(posterior, points)
        weights = np.exp(logarithms - logarithms.max())
        weights /= weights.sum()
        blunt = np.sqrt(weights) if _effective(weights) < 200.0 else weights
        if _effective(weights) > 0.5 * draws and draws >= 2 * _LEAST:
            break
        centre, covariance = _moments(points, blunt / blunt.sum())
    return points, weights


def _grid(posterior: Posterior, mean: Array, covariance: Array, g: np.random.Generator) -> Reference:
    """Sum over a grid along the principal directions, which moves to where the mass is."""
    fine = 241 if len(posterior.rows) <= 2000 else 61  # with many examples it is nearly normal
    for _ in range(2):
        values, vectors = np.linalg.eigh(covariance)
        lines = [np.linspace(-9.0, 9.0, 4 * fine if len(mean) == 1 else fine) * np.sqrt(v) for v in values]
        points = mean + np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(mean)) @ vectors.T
        energies = _energies(posterior, points)
        weights = np.exp(energies.min() - energies)
        weights /= weights.sum()
        mean, covariance = _moments(points, weights)
    draws = points[g.choice(len(weights), 4000, p=weights)]
    return Reference(mean, np.sqrt(np.diag(covariance)), "grid", draws)


def _hamiltonian(posterior: Posterior, points: Array, weights: Array, g: np.random.Generator) -> Reference:
    """Run Metropolis-adjusted chains in parallel, in the metric of the importance sampling, then in their own."""
    _, covariance = _moments(points, weights)
    x = points[g.choice(len(weights), _CHAINS, p=weights)]
    size, kept = 0.3, list[Array]()
    for iteration in range(2 * _ITERATIONS):
        if iteration in (0, _ITERATIONS // 4, _ITERATIONS // 2, _ITERATIONS):
            if kept:
                covariance = np.cov(np.concatenate(kept[len(kept) // 2 :]).T)
            root, kept = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(covariance))), []
        v = g.standard_normal(x.shape)
        energy, gradient = posterior.energy(x)
        before, y, h = energy + 0.5 * (v**2).sum(axis=1), x, size * g.uniform(0.6, 1.0)
        for _ in range(int(g.integers(1, 1 + min(24, int(3.0 / size))))):
            v = v - 0.5 * h * gradient @ root
            y = y + h * v @ root.T
            energy, gradient = posterior.energy(y)
            v = v - 0.5 * h * gradient @ root
        accepted = np.log(g.random(len(x))) < before - energy - 0.5 * (v**2).sum(axis=1)
        x = np.where(accepted[:, None], y, x)
        if iteration < _ITERATIONS:
            size = float(np.clip(size * np.exp(0.1 * (accepted.mean() - 0.8)), 1e-3, 1.5))
        kept.append(x)
    draws = np.stack(kept)
    spread = draws.mean(axis=0).std(axis=0) / draws.std(axis=(0, 1))
    every = draws.reshape(-1, x.shape[1])
    chosen = every[g.choice(len(every), 4000)]
    return Reference(every.mean(axis=0), every.std(axis=0), f"HMC, {spread.max():.2f}", chosen)


# --- the judgement ------------------------------------------------------------------------------


def judged(posterior: Posterior, exact: Reference, solver: str, seed: int) -> dict[str, Any]:
    """Run one solver with its defaults, and compare."""
    started, began = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = SOLVERS[solver](posterior.problem, seed=seed)
    seconds, processor = time.perf_counter() - started, time.process_time() - began
    if not len(chain.step_sizes):
        return {"sd": np.inf, "mean": np.inf, "warnings": chain.warnings, "seconds": seconds, "ess": 0.0}
    low, high = chain.quantile(0.05), chain.quantile(0.95)
    inside = (exact.draws >= low) & (exact.draws <= high)
    ratio = chain.std() / exact.sd
    return {
        "sd": float(ratio[np.argmax(np.abs(np.log(ratio)))]),
        "mean": float(np.abs((chain.mean() - exact.mean) / exact.sd).max()),
        "coverage": float(inside.mean()),
        "warnings": chain.warnings,
        "seconds": seconds,
        "processor": processor,
        "ess": float(chain.noise.ess.min()),
        "r_hat": float(chain.noise.r_hat.max()),
        "step_size": float(chain.step_size),
        "widening": float(np.abs(chain.noise.widening).max()),
        "shift": float(np.abs(chain.noise.shift).max()),
        "errors": [float(chain.noise.widening_error.max()), float(chain.noise.shift_error.max())],
    }


def is_bad(found: dict[str, Any]) -> bool:
    """Whether a standard deviation or a mean is wrong."""
    return bool(not 1.0 - BAD_SD <= found["sd"] <= 1.0 + BAD_SD or found["mean"] > BAD_MEAN)


def is_good(found: dict[str, Any]) -> bool:
    """Whether all are right, so that a warning would be a false alarm."""
    return bool(abs(found["sd"] - 1.0) <= GOOD_SD and found["mean"] <= GOOD_MEAN)


def posterior_of(seed: int) -> tuple[str, Posterior]:
    """Return the family and the posterior of a seed."""
    family = list(FAMILIES)[seed % len(FAMILIES)]
    return family, FAMILIES[family](np.random.default_rng([2026, seed]))


def trial(seed: int, solvers: Iterable[str] = SOLVERS) -> list[dict[str, Any]]:
    """Judge some solvers on the posterior of a seed."""
    family, posterior = posterior_of(seed)
    exact = reference(posterior, seed)
    about = {"seed": seed, "family": family, "kind": posterior.kind, "n": len(posterior.y), "dim": len(exact.mean)}
    about |= {"l2": float(posterior.l2[0]), "reference": exact.by}
    return [{**about, "solver": solver, **judged(posterior, exact, solver, seed)} for solver in solvers]


# --- next to NUTS --------------------------------------------------------------------------------


def nuts(posterior: Posterior, seed: int) -> tuple[Array, float]:
    """Return the draws of four chains of NUTS with a dense metric (chains x draws x dim), and processor seconds."""
    import blackjax
    import jax

    jax.config.update("jax_enable_x64", True)
    rows, y, l2 = posterior.rows, posterior.y, posterior.l2
    classes = len(posterior.problem.classes) if posterior.kind == "Softmax" else 1

    def density(x: Any) -> Any:
        outputs = (rows @ x.reshape(classes, -1).T)[None]
        return -losses(jax.numpy, posterior.kind, outputs, y)[0].sum() - 0.5 * (l2 * x**2).sum()

    def chain(key: Any, start: Any) -> Any:
        first, second = jax.random.split(key)
        warm = blackjax.window_adaptation(blackjax.nuts, density, is_mass_matrix_diagonal=False)
        (state, found), _ = warm.run(first, start, _WARM)
        step = blackjax.nuts(density, **found).step
        return jax.lax.scan(lambda s, k: (step(k, s)[0],) * 2, state, jax.random.split(second, _NUTS))[1].position

    starts = np.tile(posterior.problem.minimize(), (4, 1))
    arguments = (jax.random.split(jax.random.key(seed), 4), starts)
    run = jax.jit(jax.vmap(chain)).lower(*arguments).compile()
    started = time.process_time()
    draws = np.asarray(run(*arguments).block_until_ready())
    seconds = time.process_time() - started
    return draws, seconds


def table_seeds() -> list[int]:
    """Return a seed for each family, whose posterior has few examples: NUTS uses all of them in each step."""
    seeds = []
    for first in range(_TABLE, _TABLE + len(FAMILIES)):
        later = range(first, first + 100 * len(FAMILIES), len(FAMILIES))
        seeds.append(next(seed for seed in later if len(posterior_of(seed)[1].y) <= _FEW))
    return seeds


def compared(seed: int) -> list[dict[str, Any]]:
    """Compare `sghmc` and NUTS on the posterior of a seed."""
    row = trial(seed, ["sghmc"])[0]
    posterior = posterior_of(seed)[1]
    exact = reference(posterior, seed)
    row["processor"] = judged(posterior, exact, "sghmc", seed)["processor"]  # compiled now
    draws, seconds = nuts(posterior, seed)
    flat = draws.reshape(-1, draws.shape[2])
    ratio = flat.std(axis=0) / exact.sd
    inside = (exact.draws >= np.quantile(flat, 0.05, axis=0)) & (exact.draws <= np.quantile(flat, 0.95, axis=0))
    ess = np.minimum(convergence(draws)[1], convergence((draws - flat.mean(axis=0)) ** 2)[1])
    row["nuts"] = {"sd": float(ratio[np.argmax(np.abs(np.log(ratio)))]), "coverage": float(inside.mean())}
    row["nuts"] |= {"ess": float(ess.min()), "processor": seconds}
    return [row]


# --- what is kept ----------------------------------------------------------------------------------


def rates(rows: list[dict[str, Any]]) -> list[str]:
    """Return how many posteriors there are, how many are bad without and with a warning, and the false alarms."""
    bad, good = [row for row in rows if is_bad(row)], [row for row in rows if is_good(row)]
    silent = sum(not row["warnings"] for row in bad)
    errors = [abs(row["sd"] - 1.0) for row in rows]
    return [
        str(len(rows)),
        str(silent),
        str(len(bad) - silent),
        f"{sum(bool(row['warnings']) for row in good)} of {len(good)}",
        f"{np.median(errors):.1%}",
        f"{max(errors):.1%}",
        f"{np.median([row['mean'] for row in rows]):.2f}",
        f"{np.median([row['seconds'] for row in rows]):.1f}",
    ]


def comparison(result: dict[str, Any]) -> str:
    """Return the table for docs/sampling.md."""
    heads = ["posterior", "model", "n", "dim", "sd ratio", "NUTS", "90 % covers", "NUTS", "ESS per second", "NUTS"]
    lines = []
    for row in result["compared"]:
        other = row["nuts"]
        speeds = (row["ess"] / row["processor"], other["ess"] / other["processor"])
        about = [row["family"], row["kind"], str(row["n"]), str(row["dim"])]
        ratios = [f"{each['sd']:.2f}" for each in (row, other)] + [f"{each['coverage']:.1%}" for each in (row, other)]
        lines.append([*about, *ratios, *(f"{speed:,.0f}" for speed in speeds)])
    return table(heads, lines)


def block(result: dict[str, Any]) -> str:
    """Return both tables of docs/sampling.md."""
    heads = ["solver", "posteriors", "wrong without a warning", "wrong with a warning", "good with a warning"]
    lines = [[f"`{name}`", *rates([row for row in result["rows"] if row["solver"] == name])[:4]] for name in SOLVERS]
    return f"{comparison(result)}\n\n{_BETWEEN}\n\n{table(heads, lines)}"


def write_page(result: dict[str, Any]) -> None:
    """Put the tables into docs/sampling.md, between its two marks."""
    before, _, rest = _PAGE.read_text().partition(_MARK)
    after = rest.partition(_MARK)[2]
    _PAGE.write_text(f"{before}{_MARK}\n\n{block(result)}\n\n{_MARK}{after}")


def report(result: dict[str, Any]) -> str:
    """Return the tables."""
    rows, lines = result["rows"], []
    for solver in SOLVERS:
        some = [row for row in rows if row["solver"] == solver]
        lines += [[solver, name, *rates([row for row in some if row["family"] == name])] for name in FAMILIES]
        lines.append([solver, "**all**", *rates(some)])
    heads = ["solver", "posteriors", "number", "wrong, silent", "wrong, warned", "good, warned", "sd, median error"]
    heads += ["sd, largest error", "mean, median error", "seconds"]
    count = len({row["seed"] for row in rows})
    by = Counter(row["reference"].split(",")[0] for row in rows[:: len(SOLVERS)])
    text = (
        f"Defaults on {count} posteriors of seeds {rows[0]['seed']} to {rows[-1]['seed']}, not looked at before; the "
    )
    text += f"solvers were tuned on seeds {TUNED}. References: {', '.join(f'{by[k]} by {k}' for k in sorted(by))}. "
    text += (
        "Wrong: a standard deviation by more than 30 % or a mean by more than 0.5 standard deviations. Good: within "
    )
    text += "10 % and 0.2. Errors are those of the worst coordinate; seconds are of a shared machine.\n\n"
    text += table(heads, lines) + "\n\nPosteriors next to NUTS (BlackJAX, four chains, dense metric, "
    text += f"{_WARM} + {_NUTS} draws), both compiled before, seconds of the processor:\n\n"
    return text + comparison(result)


def line(row: dict[str, Any]) -> str:
    """Return one row in words."""
    word = "WRONG, SILENT" if is_bad(row) and not row["warnings"] else "wrong" if is_bad(row) else ""
    word = "FALSE ALARM" if is_good(row) and row["warnings"] else word
    about = " ".join(f"{key}={row[key]}" for key in ("seed", "family", "kind", "n", "dim", "l2", "solver"))
    found = f"sd {row['sd']:.2f} mean {row['mean']:.2f} ess {row['ess']:.0f} {row['seconds']:.1f} s"
    return f"{about}: {found} ({row['reference']}) {word} {'; '.join(row['warnings'])}"


def rows_of(
    seeds: list[int], file: Path, measure: Callable[[int], list[dict[str, Any]]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure the posteriors of some seeds; rows that a file holds already are taken from there, others added to it."""
    kept = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    place, rows = kept[0] if kept else where(), kept[1:]
    if not kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(place) + "\n")
    done = {row["seed"] for row in rows}
    for seed in seeds:
        if seed not in done:
            found = measure(seed)
            print("\n".join(map(line, found)), flush=True)
            with file.open("a") as out:
                out.write("".join(json.dumps(row) + "\n" for row in found))
            rows += found
    return place, sorted((row for row in rows if row["seed"] in seeds), key=lambda row: seeds.index(row["seed"]))


def main() -> None:
    """Measure and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=HELD_OUT, help="the first seed")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", choices=list(FAMILIES))
    parser.add_argument("--rows", type=Path, default=_ROWS, help="where rows are kept until all are there")
    parser.add_argument("--again", action="store_true", help="do not resume")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    nuts_rows = arguments.rows.with_suffix(".nuts.jsonl")
    for file in (arguments.rows, nuts_rows) if arguments.again else ():
        file.unlink(missing_ok=True)
    every = range(arguments.first, arguments.first + arguments.count)
    seeds = [seed for seed in every if arguments.only in (None, list(FAMILIES)[seed % len(FAMILIES)])]
    place, rows = rows_of(seeds, arguments.rows, trial)
    if not arguments.no_save:
        result = {"where": place, "rows": rows, "compared": rows_of(table_seeds(), nuts_rows, compared)[1]}
        save("random_posteriors", result, report(result))
        write_page(result)


if __name__ == "__main__":
    main()
