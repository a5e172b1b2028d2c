"""Should I use this? The possible gain on given data, found in seconds."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import diagnostics, problems
from avare.experiments.content import Table
from avare.experiments.data import Data
from avare.experiments.descent import caution_of, descent_spec, problem_of, sampler_of, step_size_of
from avare.experiments.facts import facts_of
from avare.experiments.runs import interrupts_at_once
from avare.solvers import Progress, sgd

_MOST_NUMBERS = 20_000_000  # in X; of larger data some rows are drawn, so that it takes seconds
_TOLERANCE = 1e-4  # of the optimum, relative to the gradient at 0: enough for a few digits of the gain
_LITTLE, _MUCH = 1.2, 2.0
_SAMPLER = "Avare"  # of the short run


@dataclass(frozen=True, slots=True)
class DataDiagnosis:
    """The possible gain on a dataset."""

    dataset: str
    loss: str
    n: int
    rows: int  # examples looked at
    dim: int  # coefficients
    epochs: list[int]  # of a short run with Avare
    gains: list[float]  # of the best distribution over uniform draws, as a factor on the gradient's second moment
    realised: list[float]  # the same of Avare's distribution
    gain_at_optimum: float
    smoothness_ratio: float  # largest over mean smoothness: what fixed importance sampling can gain, at most

    @property
    def verdict(self) -> str:
        """The answer: "yes", "a little" or "no"."""
        return "no" if self.gain_at_optimum < _LITTLE else "a little" if self.gain_at_optimum < _MUCH else "yes"

    @property
    def words(self) -> str:
        """The answer in a few sentences."""
        gain, last = self.gain_at_optimum, self.realised[-1]
        if self.verdict == "no":
            return (
                f"No: near the optimum all gradients have about the same norm. The best sampler would divide their "
                f"second moment by {gain:.2f} only; uniform minibatches are as good."
            )
        ending = "it costs little to try." if self.verdict == "a little" else "it pays in long runs."
        return (
            f"{self.verdict.capitalize()}: near the optimum the best distribution divides the second moment of the "
            f"gradient by {gain:.2f}. If the noise of minibatches limits progress, as it does late in training with "
            f"decreasing steps, expect Uniform's accuracy after about 1/{gain:.1f} of the steps. Early in training, "
            f"and with full batches, the gain is smaller. After {self.epochs[-1]} epochs {_SAMPLER} has realised a "
            f"gain of {last:.2f} of the possible {self.gains[-1]:.2f}. A draw costs microseconds: {ending}"
        )

    def parts(self) -> list[str | Table]:
        """Return what the command prints."""
        part = "" if self.rows == self.n else f", of which {self.rows:,} were looked at"
        along = zip(self.epochs, self.gains, self.realised, strict=True)
        rows: list[dict[str, Any]] = [{"at": f"epoch {epoch}", "gain": gain, "own": own} for epoch, gain, own in along]
        rows.append({"at": "optimum", "gain": self.gain_at_optimum, "own": ""})
        return [
            f"{self.dataset}: {self.n:,} examples{part}, {self.loss}, {self.dim:,} coefficients",
            Table.of("", f"at; gain|possible gain|number; own|realised by {_SAMPLER}|number", rows),
            f"Smoothness, largest over mean: {self.smoothness_ratio:.2f}",
            self.words,
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, the verdict and the words."""
        return {**asdict(self), "verdict": self.verdict, "words": self.words}


def diagnose_data(
    data: Data,
    loss: str,
    *,
    l2: float = 1.0,
    batch_size: int = 128,
    epochs: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> DataDiagnosis:
    """Find the possible gain on a dataset, in seconds.

    Parameters
    ----------
    data, loss
        As `obtain` returns them. Of large data some rows are drawn, with at least two of each class, or all it has; the
        l2 term is scaled with them.
    l2, batch_size, epochs, seed
        Of the one l2 term of the whole sum; draws per step; epochs of a short run; and the seed of all draws.
    say
        Called with a few words about each part of the work.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> found = diagnose_data(*obtain("synthetic"), batch_size=1)
    >>> found.verdict, round(found.gain_at_optimum, 1)
    ('a little', 1.7)
    """
    l2 = validation.number("l2", l2, at_least=0.0)
    epochs = validation.integer("epochs", epochs, at_least=1)
    generator = np.random.default_rng(seed)
    X, y, n = data.X, data.y, len(data)
    stored = X.nnz if hasattr(X, "nnz") else X.size
    rows = n if stored <= _MOST_NUMBERS else min(n, max(1000, int(n * (_MOST_NUMBERS / stored))))
    if rows < n:
        say(f"drawing {rows:,} of {n:,} rows")
        chosen = np.sort(generator.choice(n, size=rows, replace=False))
        if problems.get(loss).target != "numbers":
            chosen = _with_all_classes(chosen, y, generator)
        X, y, rows = X[chosen], y[chosen], len(chosen)
    size = validation.integer("batch_size", batch_size, at_least=1)
    settings: dict[str, Any] = {"seed": seed, "epochs": epochs, "batch_size": size, "l2": l2 * rows / n}
    spec = descent_spec("compare", data, loss, _SAMPLER, steps="decreasing", **settings)
    problem = problem_of(spec, X, y)
    spec["caution"] = caution_of(problem, X, spec["batch_size"])
    gains: list[float] = []
    realised: list[float] = []

    def look(progress: Progress) -> None:
        norms = problem.norms(progress.x)
        gains.append(float(diagnostics.gain(norms)))
        error = float(diagnostics.relative_error(norms, progress.sampler.probabilities()))
        realised.append(gains[-1] / (1.0 + error))
        say(f"epoch {len(gains) - 1} of {epochs}: possible gain {gains[-1]:.2f}")

    with interrupts_at_once():
        sgd(problem, sampler_of(spec, problem), step_size_of(spec, problem), epochs=epochs, callback=look)
    say("searching for the optimum")
    facts = facts_of(problem, _TOLERANCE)
    ends = (facts["gain_at_optimum"], facts["smoothness_ratio"])
    return DataDiagnosis(data.name, loss, n, rows, facts["dim"], list(range(len(gains))), gains, realised, *ends)


def _with_all_classes(chosen: NDArray[np.int64], y: NDArray[Any], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows, sorted, with more so that each class has two, or all it has. O(n log n)."""
    others = np.delete(np.arange(len(y)), chosen)
    order = np.concatenate([chosen, generator.permutation(others)])
    first = np.unique(y[order], return_index=True)[1]  # where each class first occurs
    rest = np.delete(order, first)
    second = np.unique(y[rest], return_index=True)[1]
    return np.unique(np.concatenate([chosen, order[first], rest[second]]))
