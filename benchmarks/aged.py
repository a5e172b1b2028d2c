"""Does the age of a remembered norm help? A prototype of `Calibrated` with cells by norm *and* by age.

The answer was no (docs/nets.md), so the sampler is not part of the package. This script registers it
and runs the variants of the nets experiment with it, in one process, then writes a report:
figure ``nets-age`` and table ``nets-parts``. Needs MNIST, from ``--data``, AVARE_DATA or the network.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import schedules
from avare._randomness import Seed
from avare.batch import Batch, weigh
from avare.experiments import Store
from avare.experiments.report import write
from avare.samplers import Sampler, register
from avare.state import Field, Fields, State
from avare.structures.weighted_draws import mass_left
from nets import Plan, read_plan, run_nets

VARIANTS = {
    "by norm": {"kind": "Aged", "options": {"ages": 1}},
    "by norm and age": {"kind": "Aged", "options": {"ages": 6}},
}
"""As a plan describes samplers: the same prototype with cells by norm alone, and by norm and age."""
COMPARED = "Calibrated"
_AN_OCTAVE = 8  # cells
_LOWEST, _HIGHEST = -40, 16  # octaves
_UNSEEN, _ZERO, _FIRST = 0, 1, 2  # cells by norm: never seen, norm 0, and the first of all others
_NORM_CELLS = _FIRST + (_HIGHEST - _LOWEST) * _AN_OCTAVE
_PARTS_OF_AN_EPOCH = 8  # the first age ends after an eighth of an epoch; each next one is twice as long


class Aged(Sampler):
    r"""Draw by the norm expected of examples with a similar last norm, seen about as long ago.

    :math:`p \propto \sqrt{v}`, with the floor of `Avare`. `Calibrated` learns :math:`v_c` for each cell of
    similar norms. Here each cell is split by age, and
    :math:`v = (\sum n^2 + \kappa_a v_c) / (\mathrm{count} + \kappa_a)`: if age makes no difference, v is
    :math:`v_c`.

    A prototype: it draws without replacement only, and each step costs O(N).

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws per step.
    replacement
        Must be False.
    ages
        Number of age classes: up to an eighth of an epoch, a quarter, and so on; the last one has no end.
        With 1, cells depend on the norm alone.
    decay, prior, p_min
        See `Calibrated`.
    age_prior
        kappa_a, the weight of the cell by norm alone.
    seed
        See `Sampler`.

    Examples
    --------
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> sampler = Aged(4, batch_size=2, seed=0)
    >>> for _ in range(200):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> sampler.probabilities().round(2)
    array([0.05, 0.05, 0.79, 0.11])
    """

    without_replacement_only = True
    takes = ("p_min",)

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        ages: int = 6,
        decay: float = 0.999,
        prior: float = 1.0,
        age_prior: float = 10.0,
        p_min: float = 0.0,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._ages = validation.integer("ages", ages, at_least=1)
        self._decay = validation.number("decay", decay, above=0.0, at_most=1.0)
        self._prior = validation.number("prior", prior, above=0.0)
        self._age_prior = validation.number("age_prior", age_prior, above=0.0)
        self._schedule = schedules.floor(self.n, self.batch_size, p_min=p_min)
        self._by_norm = np.full(self.n, _UNSEEN, dtype=np.int64)
        self._seen_at = np.zeros(self.n, dtype=np.int64)
        self._squares = np.zeros((_NORM_CELLS, self._ages))
        self._counts = np.zeros((_NORM_CELLS, self._ages))
        self._drawn: NDArray[np.float64] | None = None  # p of the next draw, once computed

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self.steps + 1)

    def _cells(self, indices: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int64]:
        """Return the current cell of each example."""
        age = (self.steps - self._seen_at[indices]) * (_PARTS_OF_AN_EPOCH * self.batch_size / self.n)
        bins = np.clip(np.frexp(age)[1], 0, self._ages - 1)  # 0: below 1; then one for each doubling
        cells: NDArray[np.int64] = self._by_norm[indices] * self._ages + np.where(
            self._by_norm[indices] == _UNSEEN, 0, bins
        )
        return cells

    def _expected(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the norm expected in each cell, from the number of examples in each."""
        octaves = _LOWEST + (np.arange(_NORM_CELLS) - _FIRST + 0.5) / _AN_OCTAVE
        remembered = np.where(np.arange(_NORM_CELLS) >= _FIRST, np.exp2(2.0 * octaves), 0.0)
        squares, observed = self._squares.sum(axis=1), self._counts.sum(axis=1)
        members = counts.reshape(_NORM_CELLS, self._ages).sum(axis=1)
        by_norm = (squares + self._prior * remembered) / (observed + self._prior)
        seen = members[1:].sum()
        mean = float(members[1:] @ by_norm[1:]) / seen if seen else 0.0
        by_norm[_UNSEEN] = (squares[_UNSEEN] + self._prior * mean) / (observed[_UNSEEN] + self._prior) if seen else 0.0
        both = (self._squares + self._age_prior * by_norm[:, None]) / (self._counts + self._age_prior)
        expected: NDArray[np.float64] = np.sqrt(both.ravel() if self._ages > 1 else by_norm)
        return expected

    def compute_probabilities(self) -> NDArray[np.float64]:
        if self._drawn is None:
            cells = self._cells()
            counts = np.bincount(cells, minlength=_NORM_CELLS * self._ages)
            self._drawn = _floored(self._expected(counts), counts, self.floor)[cells]
        return self._drawn

    def draw(self, size: int) -> Batch:
        p = self.compute_probabilities()
        ends = np.cumsum(p)
        found: list[int] = []
        while len(found) < size:  # repeated draws are dropped: the same law as drawing from the rest
            more = np.searchsorted(ends, self.generator.random(size) * ends[-1], side="right")
            found = list(dict.fromkeys([*found, *np.minimum(more, self.n - 1).tolist()]))
        indices = np.array(found[:size], dtype=np.int64)
        self._drawn = None  # all ages change with the step
        return Batch(indices, weigh(p[indices], False, mass_left(p, indices)), p[indices])

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        cells = self._cells(indices)
        keep = self._decay ** (len(indices) / self.batch_size)
        self._squares *= keep
        self._counts *= keep
        np.add.at(self._squares.reshape(-1), cells, norms**2)
        np.add.at(self._counts.reshape(-1), cells, 1.0)
        self._by_norm[indices] = _cell_of(norms)
        self._seen_at[indices] = self.steps
        self._drawn = None

    def arguments(self) -> State:
        return {
            **super().arguments(),
            "ages": self._ages,
            "decay": self._decay,
            "prior": self._prior,
            "age_prior": self._age_prior,
            "p_min": self._schedule.constants[-1],
        }

    def fields(self) -> Fields:
        cells = self._squares.shape
        return {
            "by_norm": Field(np.int64, (self.n,), at_least=0, at_most=cells[0] - 1),
            "seen_at": Field(np.int64, (self.n,), at_least=0),
            "squares": Field(np.float64, cells, at_least=0.0),
            "counts": Field(np.float64, cells, at_least=0.0),
            "drawn": None,
        }

    def restore(self, values: State) -> None:
        super().restore(values)
        self._drawn = None


def _cell_of(norms: NDArray[np.float64]) -> NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        octaves = np.log2(norms)
    cells = np.floor((np.clip(octaves, _LOWEST, _HIGHEST - 0.01) - _LOWEST) * _AN_OCTAVE).astype(np.int64) + _FIRST
    return np.where(norms > 0.0, cells, _ZERO)


def _floored(expected: NDArray[np.float64], counts: NDArray[np.int64], floor: float) -> NDArray[np.float64]:
    """Apply Lemma 1 to cells with the given numbers of members; return the probability of a member."""
    n = int(counts.sum())
    used = counts > 0
    if expected[used].max() == 0.0 or floor * n >= 1.0:
        return np.full(len(expected), 1.0 / n)
    threshold, more = -1.0, 0.0
    while more > threshold:  # Newton's method from below
        threshold = more
        above = used & (expected > threshold)
        more = floor * float(counts[above] @ expected[above]) / (1.0 - floor * float(counts[used & ~above].sum()))
    mass = np.maximum(expected, threshold)
    return mass / float(counts @ np.where(used, mass, 0.0))


# --- the experiment -------------------------------------------------------------------------


def variant_plan(*, quick: bool = False) -> Plan:
    """Return the nets plan, reduced to `Calibrated`, and to the variants that depend on age."""
    plan = read_plan(quick=quick)
    parts = {**plan.wanted["parts"], "samplers": ["calibrated", *VARIANTS]}
    return dataclasses.replace(
        plan,
        samplers={**plan.samplers, **VARIANTS},
        wanted={
            **plan.wanted,
            "samplers": [COMPARED],
            "optimisers": [parts["optimiser"]],
            "models": {name: plan.models[name] for name in parts["models"]},
            "parts": parts,
        },
    )


def main() -> None:
    """Run the variants and write their report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--out", type=Path, default=Path("results/aged"), help="folder for results and report")
    parser.add_argument("--quick", action="store_true", help="a small version")
    arguments = parser.parse_args()
    register()(Aged)
    run_nets(Store(arguments.out / "runs"), plan=variant_plan(quick=arguments.quick), folder=arguments.data)
    print(write(arguments.out / "runs", arguments.out / "report"))


if __name__ == "__main__":
    main()
