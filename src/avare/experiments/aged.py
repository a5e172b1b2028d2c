"""A prototype: a calibrated memory whose cells are by norm *and* by age, to see whether age helps."""

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import schedules
from avare._randomness import Seed
from avare._state import State
from avare.batch import Batch, weigh
from avare.samplers.base import Sampler

_AN_OCTAVE = 8  # cells
_LOWEST, _HIGHEST = -40, 16  # octaves
_UNSEEN, _ZERO, _FIRST = 0, 1, 2  # cells by norm: those never seen, those of norm 0, and from there on the others
_NORM_CELLS = _FIRST + (_HIGHEST - _LOWEST) * _AN_OCTAVE
_PARTS_OF_AN_EPOCH = 8  # the first age is less than this part of an epoch, each next twice as long


class Aged(Sampler):
    r"""As `Calibrated`, with cells by the norm remembered and by how long ago it was seen.

    :math:`p \propto \sqrt{v}`, floored as ever. With :math:`v_c` what is learned for a cell by norm alone, as in
    `Calibrated`, that of a cell by norm and age is
    :math:`v = (\sum n^2 + \kappa_a v_c) / (\mathrm{count} + \kappa_a)`: where ages tell nothing, it is :math:`v_c`.

    For experiments: it draws without replacement only, and O(N) at each step.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws a step.
    ages
        How many: up to an eighth of an epoch, a quarter, and so on, the last without an end. 1: cells by norm alone.
    decay, prior, p_min
        As for `Calibrated`.
    age_prior
        kappa_a.
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

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        ages: int = 6,
        decay: float = 0.999,
        prior: float = 1.0,
        age_prior: float = 10.0,
        p_min: float = 0.0,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=False, seed=seed)
        self._ages = validation.integer("ages", ages, at_least=1)
        self._decay = validation.number("decay", decay, above=0.0, at_most=1.0)
        self._prior = validation.number("prior", prior, above=0.0)
        self._age_prior = validation.number("age_prior", age_prior, above=0.0)
        self._schedule = schedules.floor(self.n, self.batch_size, p_min=p_min)
        self._by_norm = np.full(self.n, _UNSEEN, dtype=np.int64)
        self._seen_at = np.zeros(self.n, dtype=np.int64)
        self._squares = np.zeros((_NORM_CELLS, self._ages))
        self._told = np.zeros((_NORM_CELLS, self._ages))
        self._drawn: NDArray[np.float64] | None = None  # p of the next draw, if it is known

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self._steps + 1)

    def _cells(self, indices: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int64]:
        """Where examples stand now."""
        age = (self._steps - self._seen_at[indices]) * (_PARTS_OF_AN_EPOCH * self.batch_size / self.n)
        bins = np.clip(np.frexp(age)[1], 0, self._ages - 1)  # 0: below 1; then one for each doubling
        cells: NDArray[np.int64] = self._by_norm[indices] * self._ages + np.where(
            self._by_norm[indices] == _UNSEEN, 0, bins
        )
        return cells

    def _expected(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """The norm expected in each cell, of which so many examples are there."""
        octaves = _LOWEST + (np.arange(_NORM_CELLS) - _FIRST + 0.5) / _AN_OCTAVE
        remembered = np.where(np.arange(_NORM_CELLS) >= _FIRST, np.exp2(2.0 * octaves), 0.0)
        squares, told = self._squares.sum(axis=1), self._told.sum(axis=1)
        members = counts.reshape(_NORM_CELLS, self._ages).sum(axis=1)
        by_norm = (squares + self._prior * remembered) / (told + self._prior)
        seen = members[1:].sum()
        mean = float(members[1:] @ by_norm[1:]) / seen if seen else 0.0
        by_norm[_UNSEEN] = (squares[_UNSEEN] + self._prior * mean) / (told[_UNSEEN] + self._prior) if seen else 0.0
        both = (self._squares + self._age_prior * by_norm[:, None]) / (self._told + self._age_prior)
        expected: NDArray[np.float64] = np.sqrt(both.ravel() if self._ages > 1 else by_norm)
        return expected

    def _probabilities(self) -> NDArray[np.float64]:
        if self._drawn is None:
            cells = self._cells()
            counts = np.bincount(cells, minlength=_NORM_CELLS * self._ages)
            self._drawn = _floored(self._expected(counts), counts, self.floor)[cells]
        return self._drawn

    def _draw(self) -> Batch:
        p = self._probabilities()
        ends = np.cumsum(p)
        found: list[int] = []
        while len(found) < self.batch_size:  # what was drawn before is dropped: as drawing from what is left
            more = np.searchsorted(ends, self._generator.random(self.batch_size) * ends[-1], side="right")
            found = list(dict.fromkeys([*found, *np.minimum(more, self.n - 1).tolist()]))
        indices = np.array(found[: self.batch_size], dtype=np.int64)
        self._drawn = None  # with the step, all ages change
        return Batch(indices, weigh(p[indices], False), p[indices])

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        cells = self._cells(indices)
        keep = self._decay ** (len(indices) / self.batch_size)
        self._squares *= keep
        self._told *= keep
        np.add.at(self._squares.reshape(-1), cells, norms**2)
        np.add.at(self._told.reshape(-1), cells, 1.0)
        self._by_norm[indices] = _cell_of(norms)
        self._seen_at[indices] = self._steps
        self._drawn = None

    def _arguments(self) -> State:
        return {
            **super()._arguments(),
            "ages": self._ages,
            "decay": self._decay,
            "prior": self._prior,
            "age_prior": self._age_prior,
            "p_min": self._schedule.p_min,
        }

    def _state(self) -> State:
        return {
            "by_norm": self._by_norm.copy(),
            "seen_at": self._seen_at.copy(),
            "squares": self._squares.copy(),
            "told": self._told.copy(),
        }

    def _restore(self, state: State) -> None:
        self._by_norm, self._seen_at = state["by_norm"].copy(), state["seen_at"].copy()
        self._squares, self._told = state["squares"].copy(), state["told"].copy()
        self._drawn = None


def _cell_of(norms: NDArray[np.float64]) -> NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        octaves = np.log2(norms)
    cells = np.floor((np.clip(octaves, _LOWEST, _HIGHEST - 0.01) - _LOWEST) * _AN_OCTAVE).astype(np.int64) + _FIRST
    return np.where(norms > 0.0, cells, _ZERO)


def _floored(expected: NDArray[np.float64], counts: NDArray[np.int64], floor: float) -> NDArray[np.float64]:
    """Lemma 1 over cells with so many members each: the probability of a member."""
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
