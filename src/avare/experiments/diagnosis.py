"""Should I use this? What a sampler is expected to save on given data, found in seconds."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import diagnostics, problems
from avare.experiments.content import Table
from avare.experiments.convergence import BASELINE
from avare.experiments.data import Data
from avare.experiments.descent import AUTO, descent_spec, problem_of, sampler_of
from avare.experiments.facts import doubt_of_optimum, facts_of
from avare.experiments.limits import separate, words_of_limits
from avare.experiments.preparation import with_all_classes
from avare.experiments.records import number
from avare.experiments.runs import interrupts_at_once
from avare.experiments.store import Spec
from avare.experiments.verdict import ALIKE
from avare.problems import Linear, ToleranceWarning
from avare.solvers import Progress, sgd

_MOST_NUMBERS = 20_000_000  # in X; of larger data some rows are drawn, so that it takes seconds
_TOLERANCE = 1e-5  # of the optimum, relative to the gradient at 0
_MUCH = 2.0
_SAMPLER = "Avare"  # compared with the baseline
_SHORT = 4  # a pilot run has a quarter of the epochs
_FEWEST, _MOST, _NUMBERS = 4, 8, 64  # pilot runs: more if there are few coefficients, whose noise varies more
_DOUBT = 2.0  # a factor that is not known better than this is not reported
_STEEPEST = 8.0  # power of t by which distance falls


@dataclass(frozen=True, slots=True)
class DataDiagnosis:
    """What to expect on a dataset.

    >>> found = DataDiagnosis(
    ...     "mine", "logistic", 1000, 1000, 5, [1], [4.0], [3.0], gain_at_optimum=4.5, smoothness_ratio=2.0,
    ...     budget=20, noise=0.1, distance=0.01, factor=2.5,
    ... )
    >>> found.verdict
    'yes'
    """

    dataset: str
    loss: str
    n: int
    rows: int  # examples looked at
    dim: int  # coefficients
    epochs: list[int]  # of a pilot run with Avare
    gains: list[float]  # of the best distribution over uniform draws, as a factor on the gradient's second moment
    realised: list[float]  # the same of Avare's distribution
    gain_at_optimum: float
    smoothness_ratio: float  # largest over mean smoothness: what fixed importance sampling can gain, at most
    budget: int  # epochs of the runs that the next three are about
    noise: float  # that noise adds to Uniform's objective at its end
    distance: float  # that the distance to the optimum adds
    factor: float  # how much sooner Avare is expected where Uniform ends; NaN if unknown
    doubt: str = ""  # if the optimum was not found

    @property
    def verdict(self) -> str:
        """The answer: "yes", "a little", "no" or "cannot tell"."""
        if math.isnan(self.factor):
            return "cannot tell"
        return "no" if self.factor < ALIKE else "a little" if self.factor < _MUCH else "yes"

    @property
    def words(self) -> str:
        """The answer in a few sentences."""
        limits = words_of_limits({"noise": self.noise, "distance": self.distance})
        possible = (
            f"Near the optimum the best distribution divides the second moment of the gradient by "
            f"{self.gain_at_optimum:.2f}."
        )
        start = {
            "cannot tell": "Cannot tell: the pilot runs differ too much, or the optimum is not known well enough. "
            "Run avare compare.",
            "no": f"No: after {self.budget} epochs expect no difference.",
        }.get(
            self.verdict,
            f"{self.verdict.capitalize()}: expect {_SAMPLER} about {self.factor:.1f} times sooner where {BASELINE} is "
            f"after {self.budget} epochs.",
        )
        return " ".join([start, limits, possible, *([self.doubt] if self.doubt else [])])

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
        """Return all fields, the verdict and the words; None for an unknown factor."""
        return {**asdict(self), "factor": number(self.factor), "verdict": self.verdict, "words": self.words}


def diagnose_data(
    data: Data,
    loss: str,
    *,
    l2: float = 1.0,
    batch_size: int = 128,
    epochs: int = 20,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> DataDiagnosis:
    """Find what to expect of a comparison on a dataset, in seconds.

    A few pilot runs of Uniform and of Avare, of a quarter of the epochs, are taken apart into noise and distance. Noise
    falls as 1/t from there on, distance by the power of t by which it fell in the second half of the pilots.

    Parameters
    ----------
    data, loss
        As `obtain` and then `prepared` return them. Of large data some rows are drawn, with at least two of each class,
        or all it has; the l2 term is scaled with them.
    l2, batch_size, epochs, seed
        Of the one l2 term of the whole sum; draws per step; epochs of the runs to predict; and the seed of all draws.
    say
        Called with a few words about each part of the work.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> found = diagnose_data(*obtain("synthetic"), batch_size=4)
    >>> round(found.gain_at_optimum, 1), found.verdict in ("yes", "a little", "no", "cannot tell")
    (1.7, True)
    """
    l2 = validation.number("l2", l2, at_least=0.0)
    epochs = validation.integer("epochs", epochs, at_least=1)
    size = validation.integer("batch_size", batch_size, at_least=1)
    generator = np.random.default_rng(seed)
    n = len(data)
    X, y = data.X[:n], data.y[:n]
    stored = X.nnz if hasattr(X, "nnz") else X.size
    rows = n if stored <= _MOST_NUMBERS else min(n, max(1000, int(n * (_MOST_NUMBERS / stored))))
    if rows < n:
        say(f"drawing {rows:,} of {n:,} rows")
        chosen = np.sort(generator.choice(n, size=rows, replace=False))
        if problems.get(loss).target != "numbers":
            chosen = with_all_classes(chosen, y, generator)
        X, y, rows = X[chosen], y[chosen], len(chosen)
    short = math.ceil(epochs / _SHORT)
    settings: dict[str, Any] = {"epochs": short, "batch_size": size, "l2": l2 * rows / n, "steps": AUTO, "seed": seed}
    whole = replace(data, X=X, y=y, held_out=0)
    specs = {name: descent_spec("compare", whole, loss, name, **settings) for name in (BASELINE, _SAMPLER)}
    problem = problem_of(specs[BASELINE], X, y)
    say("searching for the optimum")
    with interrupts_at_once(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        facts = facts_of(problem, _TOLERANCE)
    gains: list[float] = []
    realised: list[float] = []

    def look(progress: Progress) -> None:
        norms = problem.norms(progress.x)
        gains.append(float(diagnostics.gain(norms)))
        error = float(diagnostics.relative_error(norms, progress.sampler.probabilities()))
        realised.append(gains[-1] / (1.0 + error))
        say(f"epoch {len(gains) - 1} of a pilot run: possible gain {gains[-1]:.2f}")

    runs = min(_MOST, _FEWEST + _NUMBERS // problem.dim)
    with interrupts_at_once():
        sgd(problem, sampler_of(specs[_SAMPLER], problem), AUTO, epochs=short, callback=look)
        pilots = [_pilots(problem, spec, range(seed + 1, seed + 1 + runs), say) for spec in specs.values()]
    noise, distance, factor = _expected(problem, pilots, facts["optimum"], epochs / short)
    less = [[np.delete(each, k, axis=0) for each in pilots] for k in range(runs)]
    others = np.log([_expected(problem, each, facts["optimum"], epochs / short)[2] for each in less])
    if 2.0 * math.sqrt((runs - 1.0) * float(np.var(others))) > math.log(_DOUBT):  # the jackknife's deviation
        factor = math.nan
    ends = (facts["gain_at_optimum"], facts["smoothness_ratio"], epochs, noise, distance, factor)
    doubt = doubt_of_optimum(specs[BASELINE], facts)
    epochs_seen = list(range(len(gains)))
    return DataDiagnosis(data.name, loss, n, rows, facts["dim"], epochs_seen, gains, realised, *ends, doubt)


def _pilots(problem: Linear, spec: Spec, seeds: Iterable[int], say: Callable[[str], None]) -> NDArray[np.float64]:
    """Return where runs are at half of their steps and at the end: runs x 2 x dim."""
    found = []
    steps = spec["epochs"] * max(1, problem.n // spec["batch_size"])
    for seed in seeds:
        say(f"pilot run of {spec['sampler']}, seed {seed}")
        places: list[NDArray[np.float64]] = []

        def look(progress: Progress, places: list[NDArray[np.float64]] = places) -> None:
            places.append(progress.average.copy())

        sampler, looks = sampler_of({**spec, "seed": seed}, problem), [steps // 2, steps]
        sgd(problem, sampler, AUTO, steps=steps, evaluate=looks, callback=look)
        found.append(places[-2:])
    return np.array(found)


def _expected(
    problem: Linear, pilots: Sequence[NDArray[np.float64]], optimum: float, times: float
) -> tuple[float, float, float]:
    """Return the baseline's noise and distance after a multiple of the pilots' steps, and the factor to expect.

    Noise falls as 1/t, distance by the power by which it fell in the second half of the pilots.
    """
    found = [[separate(problem, list(ends[:, k]), optimum) for k in range(2)] for ends in pilots]
    noises = [noise for _, (noise, _) in found]
    before, after = (math.sqrt(found[0][k][1] * found[1][k][1]) for k in range(2))  # distance: no sampler changes it
    power = min(math.log2(before / after), _STEEPEST) if before > after > 0.0 else 0.0

    def parts(place: int, t: float) -> tuple[float, float]:  # t in units of the pilots' steps
        return noises[place] / t, after / t**power

    noise, distance = parts(0, times)
    if not noise + distance > 0.0:
        return 0.0, 0.0, 1.0  # both are at the optimum
    low, high = times / 1e4, times * 1e4
    for _ in range(60):  # the time at which the sampler has the same suboptimality, by bisection
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sum(parts(1, middle)) > noise + distance else (low, middle)
    return noise, distance, times / high
