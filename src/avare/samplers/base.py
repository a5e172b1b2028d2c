"""The protocol that all samplers share.

A sampler draws a batch of indices with weights, and learns from the norms that it receives. A new sampler derives
from `Sampler` and defines a few methods: `draw`, `learn` and `compute_probabilities`, and `fields` if it has more to
save. With `kernels` instead of `draw` and `learn`, it brings kernels that compiled loops can use: see
`avare.samplers.kernels`. States are in `avare.samplers.stateful`, batches that wait for their norms in
`avare.samplers.pending`, the running gain in `avare.samplers.gain`, sets that change in `avare.samplers.growing`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._locks import make_lock
from avare._randomness import Seed, uniform_source
from avare.batch import Batch
from avare.samplers.gain import ratio, smooth
from avare.samplers.kernels import draw_into, learn_from, learns, step_into
from avare.samplers.pending import PendingBatches
from avare.samplers.stateful import Stateful
from avare.structures.cells import MAX_EXAMPLES

_LARGEST_BATCH = 1 << 31
SMALLEST_PROBABILITY = 1e-300
"""Below it, a weight may not be finite."""
LARGEST_NORM = 1e140
"""Samplers that sum up squares take larger norms for this, so that no square overflows."""
_FIXED = {"n", "present", "batch_size", "replacement", "capacity"}  # kernels rely on them
_GROWING = "Avare, Calibrated, Static and Uniform"


class Sampler(Stateful, ABC):
    """Draw batches of indices, with weights that make any sum over the examples unbiased.

    Several threads may use one sampler, for example one that draws ahead and one that reports the norms:
    its methods wait for each other.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int
        Number of draws per step.
    replacement : bool
        Whether an index may occur twice in a batch.
    seed : int, SeedSequence, BitGenerator, Generator or None
        Seed of the draws; None takes one from the system. A ``Generator`` is used and advanced, until a state is
        loaded.

    Examples
    --------
    >>> import avare
    >>> sampler: Sampler = avare.Uniform(10, batch_size=4, replacement=True, seed=0)  # or any other
    >>> batch = sampler.sample()
    >>> sampler.update(batch, norms=[1.0, 3.0, 2.0, 2.0])
    >>> sampler.steps, float(sampler.gain)
    (1, 1.0)
    """

    with_replacement_only: ClassVar[bool] = False
    """Whether it can only draw with replacement."""
    without_replacement_only: ClassVar[bool] = False
    """Whether it can only draw without replacement."""
    learns: ClassVar[bool] = True
    """Whether the reported norms change what it draws."""
    needs_all_norms: ClassVar[bool] = False
    """Whether it needs the norms of all examples in each step: a solver passes a function to its method ``follow``."""
    follows_path: ClassVar[bool] = False
    """Whether a solver must call its method ``move(distance)`` with the length of each step."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Required arguments of the constructor that a problem can provide: "smoothness", "components"."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Optional arguments that `samplers.build` and experiments set: "horizon", "bound", "p_min"."""
    grows: bool = False
    """Whether `append` and `retire` can change the set of examples."""
    independent: bool = True
    """Whether a batch does not depend on those before it, apart from what was learned."""

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        self.n = validation.integer("n", n, at_least=1, at_most=MAX_EXAMPLES)
        """Number of examples, with those that were retired."""
        self.present = self.n
        """Number of examples that can be drawn."""
        self.batch_size = validation.integer("batch_size", batch_size, at_least=1, at_most=_LARGEST_BATCH)
        """Number of draws per step."""
        self.replacement = validation.boolean("replacement", replacement)
        """Whether an index may occur twice in a batch."""
        if self.with_replacement_only and not self.replacement:
            raise ValueError(f"replacement = False: {type(self).__name__} draws with replacement only")
        if self.without_replacement_only and self.replacement:
            raise ValueError(f"replacement = True: {type(self).__name__} draws without replacement only")
        if not self.replacement and self.batch_size > self.n:
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {self.n} without replacement")
        self.generator = np.random.default_rng(seed)
        self.source = uniform_source(self.generator)
        self.steps = 0
        """Number of batches drawn so far."""
        self.pending = PendingBatches()
        """Drawn batches that wait for their norms; ``pending.limit`` is how many are kept."""
        self._moments = np.zeros(6)  # the sums of the gain: see `avare.samplers.gain`
        self._lock = make_lock()

    # --- draw and learn ---------------------------------------------------------------

    def sample(self, size: int | None = None) -> Batch:
        """Draw a batch and count the step.

        Parameters
        ----------
        size : int or None, default=None
            The number of draws; by default ``batch_size``. Without replacement it is at most `present`.
        """
        with self._lock:
            if size is None:
                count = self.batch_size
                self._require_enough(count)
            else:
                most = None if self.replacement else self.present
                count = validation.integer("size", size, at_least=1, at_most=most)
            batch = self.draw(count)
            if len(batch.indices) != count:
                raise ValueError(
                    f"{type(self).__name__}.draw({count}) returned {len(batch.indices)} indices: must be {count}"
                )
            self.steps += 1
            self.pending.add(batch, self.present)
            return batch

    def update(self, batch: Batch | ArrayLike, norms: ArrayLike) -> None:
        """Receive the gradient norms of some examples, and learn from them.

        If an index is repeated, samplers that remember norms keep the last one; samplers that count draws count each.

        Parameters
        ----------
        batch : Batch or array-like of int
            The batch that was drawn, immediately or later; or the indices of any examples, integers in [0, n).
            Examples that were retired since are ignored.
        norms : array-like of float
            The norm of each of them, finite and not negative. Otherwise a ``ValueError`` is raised, and nothing
            has changed.
        """
        drawn, given = (batch, batch.indices) if isinstance(batch, Batch) else (None, batch)
        indices, values = validation.indexed("norms", norms, given, self.n)
        with self._lock:
            self._count(drawn, indices, values)
            if self.present < self.n:
                kept = self.contains(indices)
                indices, values = indices[kept], values[kept]
            self.learn(indices, values)

    def step(self, batch: Batch | ArrayLike, norms: ArrayLike) -> Batch:
        """Call `update` and then `sample`, in less time: for a loop that does one after the other.

        The result is exactly the same. It saves some microseconds if the sampler learns by kernels, as `Calibrated` and
        `Avare` do, and the arrays are of int64 and float64. The methods `draw` and `learn` are then not called.

        Parameters
        ----------
        batch, norms
            See `update`.
        """
        drawn, indices = (batch, batch.indices) if isinstance(batch, Batch) else (None, batch)
        with self._lock:
            state = self.kernels
            if learns(state) and self.present == self.n and validation.are_plain(indices, norms, self.n):
                self._require_enough(self.batch_size)
                self._count(drawn, indices, norms)  # type: ignore[arg-type]  # they are arrays
                following = _empty_batch(self.batch_size)
                arrays = (following.indices, following.probabilities, following.weights)
                step_into(state, self.steps, self.source, indices, norms, *arrays)
                self.steps += 1
                self.pending.add(following, self.present)
                return following
            self.update(batch, norms)
            return self.sample()

    def drive(self, loop: Callable[[Any, int, Any, NDArray[np.float64]], int], count: int) -> int:
        """Let a compiled loop of `count` steps draw and learn; return how many it made. Other threads wait.

        It is called with `kernels`, the number of batches drawn so far, the source of random numbers, and the sums of
        `avare.samplers.gain`. If it ends early, it has also drawn the batch of the step that failed.
        """
        with self._lock:
            self._require_enough(self.batch_size)
            done = loop(self.kernels, self.steps, self.source, self._moments)
            self.steps += min(done + 1, count)
            return done

    def _count(self, batch: Batch | None, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Add the norms of a pending batch to the running gain."""
        found = self.pending.pop(batch, indices)
        if found is not None and len(found.weights) == len(norms):
            smooth(self._moments, found.present, found.weights, found.probabilities, norms)

    @property
    def gain(self) -> float:
        """Second moment of uniform sampling divided by this sampler's, estimated from the draws.

        It is a running mean over roughly the last hundred batches whose norms were reported in full, each in units of
        the norms just before it. Above 1, a batch has less variance than a uniform one; below 1, the remembered norms
        mislead. It says nothing about errors that cancel out between batches, as in the passes of `Passes`. NaN until
        `update` has received one complete batch.
        """
        with self._lock:
            return ratio(self._moments)

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw, 0 for those retired. O(N)."""
        with self._lock:
            return self.compute_probabilities()

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the remembered norms of some examples, or of all; NaN for those without one. O(1) each.

        By default all are NaN: `Avare`, `Calibrated`, `Passes` and other samplers that remember norms return theirs.
        `Avare` starts from norms of 0, and returns these.
        """
        return np.full(self.n if indices is None else len(indices), np.nan)

    # --- a set that changes -----------------------------------------------------------

    def append(self, k: int | None = None, *, norms: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add examples to the set, and return their indices: the next draw may have them. O(1) each, amortised.

        Only `Avare`, `Calibrated`, `Static` and `Uniform` can do this; others raise a ``TypeError``. New examples get
        the indices n, n + 1, ... With ``capacity``, indices start again from 0 when the set is full: a new example
        replaces the oldest one, whose norm is forgotten. The arguments ``c`` and ``p_min`` and the default of ``decay``
        are for the first n. They follow `present`, so that the floor remains the same part of 1 / `present`.

        Parameters
        ----------
        k : int or None, default=None
            The number of new examples, at least 1. Nothing is known of them, as at the start.
        norms : array-like or None, default=None
            In place of k: one norm for each. `Static` takes its constants.
        """
        raise TypeError(f"{type(self).__name__} has a fixed set of examples: {_GROWING} can append and retire")

    def retire(self, indices: ArrayLike) -> None:
        """Remove examples from the set: they are never drawn again. O(1) each.

        Batches that were drawn before may still contain them; norms reported for them are ignored. Only samplers that
        can `append` can do this.

        Parameters
        ----------
        indices : array-like of int
            Distinct indices of present examples, not all of them. Otherwise a ``ValueError`` is raised, and nothing
            has changed.
        """
        raise TypeError(f"{type(self).__name__} has a fixed set of examples: {_GROWING} can append and retire")

    def contains(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of some examples is present. O(1) each."""
        return np.ones(len(indices), dtype=bool)

    # --- what a sampler defines -------------------------------------------------------

    def draw(self, size: int) -> Batch:
        """Return the next batch, by default with `kernels`; `steps` has not been increased yet."""
        state = self.kernels
        if state is None:
            raise NotImplementedError(f"{type(self).__name__} must define draw, or kernels")
        batch = _empty_batch(size)
        draw_into(state, self.steps, self.source, batch.indices, batch.probabilities, batch.weights)
        return batch

    @abstractmethod
    def compute_probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw."""

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Learn from checked norms, by default with `kernels`; without them, ignore them."""
        state = self.kernels
        if learns(state):
            learn_from(state, indices, norms)

    @property
    def kernels(self) -> Any:
        """Return the state for the kernels that were declared by `register_kernels`; None if there are none."""
        return None

    # --- helpers ----------------------------------------------------------------------

    def _require_enough(self, size: int) -> None:
        """Raise an error if there are too few examples for a batch without replacement."""
        if size > self.present and not self.replacement:
            raise ValueError(f"batch_size = {size}: only {self.present} examples are present, and each is drawn once")

    if not TYPE_CHECKING:  # otherwise mypy would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name in _FIXED and name in vars(self):
                raise AttributeError(f"{name} = {value!r}: cannot be changed later; build another sampler")
            object.__setattr__(self, name, value)  # in less time than by super()


def _empty_batch(size: int) -> Batch:
    return Batch(np.empty(size, dtype=np.int64), np.empty(size), np.empty(size))


def one_per_example(name: str, values: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return an array of n numbers, finite and not negative; otherwise raise an error that names the argument."""
    found = validation.nonnegative(name, values)
    validation.same_length(name, len(found), "n", n)
    return found
