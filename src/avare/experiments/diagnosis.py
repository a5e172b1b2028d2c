"""Should one use it? What there is to gain on given data, found quickly."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import diagnostics
from avare.experiments.data import REGRESSION, Data, Loss
from avare.experiments.paper.plan import options_of
from avare.experiments.runs import (
    caution_of,
    descent_spec,
    facts_of,
    interrupts_at_once,
    problem_of,
    sampler_of,
    step_size_of,
)
from avare.solvers import Progress, sgd

_MOST_NUMBERS = 20_000_000  # in X; rows are drawn from more, so that it takes seconds
_TOLERANCE = 1e-4  # of the gradient at 0: the gain is then known to a few digits
_LITTLE, _MUCH = 1.2, 2.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What there is to gain.

    Parameters
    ----------
    dataset, loss
        Of what.
    n, rows, dim
        Examples there are, examples looked at, and coefficients.
    epochs, gains, realised
        Along a short run with Avare: what the best distribution would gain over uniform draws, as a
        factor on the second moment of the gradient, and what Avare's did gain.
    gain_at_optimum
        The same where training ends.
    smoothness_ratio
        Largest over mean smoothness constant: what fixed importance sampling could gain, at most.
    """

    dataset: str
    loss: str
    n: int
    rows: int
    dim: int
    epochs: list[int]
    gains: list[float]
    realised: list[float]
    gain_at_optimum: float
    smoothness_ratio: float

    @property
    def verdict(self) -> str:
        """In a word or two: "yes", "a little" or "no"."""
        return "no" if self.gain_at_optimum < _LITTLE else "a little" if self.gain_at_optimum < _MUCH else "yes"

    @property
    def words(self) -> str:
        """What follows from it, in plain words."""
        gain, last = self.gain_at_optimum, self.realised[-1]
        if self.verdict == "no":
            return (
                f"No: near the optimum all gradients are about equally long. The best sampler there is would make "
                f"their second moment {gain:.2f} times smaller, and uniform minibatches do as well."
            )
        ending = "it costs little to try." if self.verdict == "a little" else "worth it in long runs."
        return (
            f"{self.verdict.capitalize()}: near the optimum the right draws make the second moment of the gradient "
            f"{gain:.2f} times smaller. Where the noise of minibatches limits the progress, as it does late in "
            f"training with decreasing steps, expect Uniform's accuracy after about 1/{gain:.1f} of the steps. Early "
            f"on, and with full batches, there is less to win. After {self.epochs[-1]} epochs Avare has realised a "
            f"factor {last:.2f} of the {self.gains[-1]:.2f} there were; a draw costs microseconds: {ending}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The same for a machine."""
        return {**asdict(self), "verdict": self.verdict, "words": self.words}


def diagnose(
    data: Data,
    loss: Loss,
    *,
    l2: float = 1.0,
    batch_size: int = 128,
    epochs: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Find out what there is to gain, in seconds.

    Parameters
    ----------
    data, loss
        As `obtain` gives them. Of large data some rows are drawn, of each class at least two, or all it has; the l2
        term is scaled with them.
    l2
        Of the l2 term in all, not by example.
    batch_size
        m, draws a step.
    epochs
        Of the short run.
    seed
        Of all draws.
    say
        Is told what is being done.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> found = diagnose(*obtain("synthetic"), batch_size=1)
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
        if loss not in REGRESSION:
            chosen = _with_all_classes(chosen, y, generator)
        X, y, rows = X[chosen], y[chosen], len(chosen)
    spec = descent_spec(
        "compare",
        dataset=data.name,
        data_digest=data.digest,
        loss=loss,
        steps="decreasing",
        sampler="Avare",
        options=options_of("Avare", "decreasing", rows, epochs, None),
        seed=seed,
        epochs=epochs,
        batch_size=validation.integer("batch_size", batch_size, at_least=1),
        replacement=True,
        l2=l2 * rows / n,
    )
    problem = problem_of(spec, X, y)
    spec["caution"] = caution_of(problem, X, spec["batch_size"])
    seen: list[tuple[int, float, float]] = []

    def look(progress: Progress) -> None:
        norms = problem.norms(progress.x)
        gain = float(diagnostics.gain(norms))
        error = float(diagnostics.relative_error(norms, progress.sampler.probabilities()))
        seen.append((len(seen), gain, gain / (1.0 + error)))  # it looks once an epoch
        say(f"epoch {seen[-1][0]} of {epochs}: a gain of {gain:.2f} there to be had")

    with interrupts_at_once():
        sgd(problem, sampler_of(spec, problem), step_size_of(spec, problem), epochs=epochs, callback=look)
    say("looking for the optimum")
    facts = facts_of(problem, _TOLERANCE)
    return Diagnosis(
        dataset=data.name,
        loss=loss,
        n=n,
        rows=rows,
        dim=facts["dim"],
        epochs=[each[0] for each in seen],
        gains=[each[1] for each in seen],
        realised=[each[2] for each in seen],
        gain_at_optimum=facts["gain_at_optimum"],
        smoothness_ratio=facts["smoothness_ratio"],
    )


def _with_all_classes(chosen: NDArray[np.int64], y: NDArray[Any], generator: np.random.Generator) -> NDArray[np.int64]:
    """The rows, and as many more as it takes for two of each class, or all it has. In order; O(n log n)."""
    others = np.delete(np.arange(len(y)), chosen)
    order = np.concatenate([chosen, generator.permutation(others)])
    first = np.unique(y[order], return_index=True)[1]  # of each class, where it first stands
    rest = np.delete(order, first)
    second = np.unique(y[rest], return_index=True)[1]
    return np.unique(np.concatenate([chosen, order[first], rest[second]]))
