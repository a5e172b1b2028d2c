"""UpperBound: a pool of examples is scored by the model itself, and the batch drawn from it."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import TensorDataset, default_collate

from avare import _validation as validation
from avare._randomness import Seed
from avare._state import State, generator_from_text, generator_to_text
from avare.torch.batch_sampler import as_array
from avare.torch.indexed import Fetched, Pairs, check_dataset

_FORMAT = 1  # of the state; to be raised when its meaning changes
_FIELDS = ("epoch", "position", "tau", "told", "index", "generator")


class UpperBoundLoader:
    r"""Batches drawn by importance from a pool that the model scores (Katharopoulos & Fleuret, 2018).

    While switched off, a batch of m is drawn uniformly, with weights 1. While switched on, a pool of
    B is drawn uniformly and scored, and of it m with replacement,

    .. math:: g_i = s_i / \textstyle\sum_{k} s_k, \qquad w_i = 1 / (B g_i).

    It is on as long as :math:`\tau` is above (B + 3m) / (3m), where drawing m from B is worth the
    forward pass over B: :math:`\tau \leftarrow a \tau + (1 - a) \sqrt{B \sum g^2}`, from the pool, or
    from the norms told of a uniform batch.

    Batches are ``(batch, index, weight)``, as those of `ImportanceLoader`, and the loop around them
    is the same: the mean over the batch of ``weight * loss`` is an unbiased estimate of the mean loss
    over the dataset. Nothing is remembered of an example, so that nothing is ever out of date; the
    price is a forward pass over the pool at each step.

    The pool is scored when its batch is asked for, so nothing is loaded ahead, and no worker
    processes are used. With several processes, give each its own seed.

    Cost a step: while switched on, a forward pass over B examples. Memory: none an example.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    score
        Is given a batch, as ``collate_fn`` makes it, and gives a score for each example of it, under
        ``no_grad``: a bound on its gradient norm, up to a common factor; say
        ``lambda batch: output_norms(model(batch[0]), batch[1])``. An example with score 0 is not drawn.
    batch_size
        m; every batch is full.
    pool_size
        B, at least m; by default 3 m, or n if that is less.
    smoothing
        a, in [0, 1).
    threshold
        Above which it is switched on; by default (B + 3m) / (3m). 0: always; inf: never.
    seed
        See `avare.Sampler`.
    batches_per_epoch
        By default ceil(n / m).
    collate_fn
        Makes a batch of a list of items, as for any ``DataLoader``.

    Examples
    --------
    >>> dataset = TensorDataset(torch.arange(60.0))
    >>> loader = UpperBoundLoader(dataset, lambda batch: batch[0] ** 16, batch_size=6, seed=0)
    >>> for epoch in range(3):
    ...     for (x,), index, weight in loader:
    ...         loader.update(index, x**16)
    >>> len(loader), loader.epoch, loader.active, 2.0 < loader.tau < 3.0
    (10, 3, True, True)

    References
    ----------
    A. Katharopoulos, F. Fleuret. Not All Samples Are Created Equal: Deep Learning with Importance
    Sampling. ICML 2018.
    """

    def __init__(
        self,
        dataset: Any,
        score: Callable[[Any], ArrayLike | torch.Tensor],
        batch_size: int = 128,
        *,
        pool_size: int | None = None,
        smoothing: float = 0.9,
        threshold: float | None = None,
        seed: Seed = None,
        batches_per_epoch: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        check_dataset(dataset)
        if not callable(score):
            raise TypeError(f"score is of type {type(score).__name__}: must be a function of a batch")
        n = validation.integer("n", len(dataset), at_least=1)
        self.batch_size = validation.integer("batch_size", batch_size, at_least=1, at_most=n)
        pool_size = min(3 * self.batch_size, n) if pool_size is None else pool_size
        self.pool_size = validation.integer("pool_size", pool_size, at_least=self.batch_size, at_most=n)
        self.smoothing = validation.number("smoothing", smoothing, at_least=0.0)
        if self.smoothing >= 1.0:
            raise ValueError(f"smoothing = {self.smoothing}: must be below 1")
        if threshold is None:
            threshold = (self.pool_size + 3 * self.batch_size) / (3 * self.batch_size)
        elif threshold != math.inf:
            threshold = validation.number("threshold", threshold, at_least=0.0)
        self.threshold = float(threshold)
        length = -(-n // self.batch_size) if batches_per_epoch is None else batches_per_epoch
        self._length = validation.integer("batches_per_epoch", length, at_least=1)
        self.dataset, self.score, self.collate_fn = dataset, score, collate_fn
        self._generator = np.random.default_rng(seed)
        self._tau = 0.0
        self._epoch = 0
        self._position = 0  # batches handed out, in this epoch
        self._index = np.empty(0, dtype=np.int64)  # of the batch handed out last
        self._told = True  # whether tau knows of it
        self._taken = False  # whether the iteration at hand has given a batch
        self._iteration = 0

    @property
    def tau(self) -> float:
        """How much there is to gain within a pool, smoothed: the root of uniform's second moment over ours."""
        return self._tau

    @property
    def active(self) -> bool:
        """Whether the next batch is drawn by importance."""
        return self._tau > self.threshold or self.threshold == 0.0

    @property
    def gain(self) -> float:
        """Uniform's second moment over that of the next batch, as far as the scores tell: tau squared, or 1."""
        return self._tau**2 if self.active else 1.0

    @property
    def epoch(self) -> int:
        """How many epochs came before this one."""
        return self._epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
        """The batches of a new epoch; or, if a state has just been loaded, the rest of its epoch."""
        if self._taken:
            self._finish()
        self._iteration += 1
        return self._batches(self._iteration)

    def update(
        self,
        index: ArrayLike | torch.Tensor,
        norms: ArrayLike | torch.Tensor,
        *,
        not_finite: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Tell the gradient norms of the batch handed out last; tau learns from them if it was uniform.

        Told again, or of a batch that was drawn from a pool, they change nothing.

        Parameters
        ----------
        index
            As it came with the batch.
        norms
            As many finite numbers, none negative; otherwise nothing has changed.
        not_finite
            What to do with norms that are nan or infinite: "raise" an error, or "skip" a batch with one of them.
        """
        if not_finite not in ("raise", "skip"):
            raise ValueError(f"not_finite = {not_finite!r}: must be 'raise' or 'skip'")
        indices = validation.indices("index", as_array(index), len(self.dataset))
        told = validation.real("norms", as_array(norms))
        validation.same_length("norms", len(told), "index", len(indices))
        if not np.array_equal(indices, self._index):
            raise ValueError("index is not that of the batch handed out last")
        if not_finite == "skip" and not np.isfinite(told).all():
            return
        values = validation.nonnegative("norms", told)
        if not self._told:
            self._smooth(_shares(values))
            self._told = True

    def log(self, writer: Any, step: int, prefix: str = "avare") -> None:
        """Write ``tau``, ``gain`` and ``active`` (1 or 0) to a TensorBoard ``SummaryWriter``."""
        for name, value in (("tau", self.tau), ("gain", self.gain), ("active", float(self.active))):
            writer.add_scalar(f"{prefix}/{name}", value, step)

    def state_dict(self) -> State:
        """All it takes to go on with the very same batches: numbers, text and a tensor."""
        return {
            "format": _FORMAT,
            **self._arguments(),
            "epoch": self._epoch,
            "position": self._position,
            "tau": self._tau,
            "told": self._told,
            "index": torch.from_numpy(self._index.copy()),
            "generator": generator_to_text(self._generator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next iteration gives the rest of its epoch.

        A state of other arguments or a damaged one is a ``ValueError``, and nothing has changed.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state is of type {type(state).__name__}: must be a mapping, as state_dict() gives")
        expected = {"format": _FORMAT, **self._arguments()}
        for key in (*expected, *_FIELDS):
            if key not in state:
                raise ValueError(f"state lacks {key!r}: it is damaged, or not a loader's state")
        for key, own in expected.items():
            if state[key] != own:
                raise ValueError(f"state[{key!r}] = {state[key]!r}: this loader has {own!r}")
        epoch = validation.integer("state['epoch']", state["epoch"], at_least=0)
        position = validation.integer("state['position']", state["position"], at_least=0, at_most=self._length)
        tau = validation.number("state['tau']", state["tau"], at_least=0.0)
        told = validation.boolean("state['told']", state["told"])
        index = validation.indices("state['index']", as_array(state["index"]), len(self.dataset)).copy()
        try:
            generator = generator_from_text(state["generator"])
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError("state['generator'] is no state of a generator: it is damaged") from None
        self._epoch, self._position, self._tau, self._told = epoch, position, tau, told
        self._index, self._generator = index, generator
        self._taken = False
        self._iteration += 1

    def _arguments(self) -> State:
        """What must be the same for a state to be loaded."""
        return {
            "n": len(self.dataset),
            "batch_size": self.batch_size,
            "pool_size": self.pool_size,
            "smoothing": self.smoothing,
            "threshold": self.threshold,
            "batches_per_epoch": self._length,
        }

    def _batches(self, iteration: int) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
        while iteration == self._iteration:
            if self._position >= self._length:
                self._finish()
                return
            batch, pairs = self._draw()
            self._position += 1
            self._taken = True
            yield batch, *pairs.tensors()
        raise RuntimeError("another iteration has begun, or a state was loaded: this one cannot go on")

    def _finish(self) -> None:
        self._epoch += 1
        self._position = 0
        self._taken = False

    def _draw(self) -> tuple[Any, Pairs]:
        before = self._generator.bit_generator.state
        try:
            return self._draw_from_a_pool() if self.active else self._draw_uniformly()
        except BaseException:
            self._generator.bit_generator.state = before  # asked again, it is the same batch
            raise

    def _draw_uniformly(self) -> tuple[Any, Pairs]:
        drawn = self._fetch(self.batch_size)
        batch = self._collate(drawn, np.arange(self.batch_size))
        self._index, self._told = drawn.pairs.indices.copy(), False
        return batch, drawn.pairs

    def _draw_from_a_pool(self) -> tuple[Any, Pairs]:
        pool = self._fetch(self.pool_size)
        shares = _shares(self._scores(self._collate(pool, np.arange(self.pool_size))))
        places = self._generator.choice(self.pool_size, size=self.batch_size, p=shares)
        weights = (1.0 / (self.pool_size * shares[places])).astype(np.float32)
        batch = self._collate(pool, places)
        self._smooth(shares)
        self._index, self._told = pool.pairs.indices[places], True
        return batch, Pairs(self._index.copy(), weights)

    def _fetch(self, size: int) -> Fetched:
        """Distinct examples, each set of this size as likely as any other."""
        drawn = self._generator.choice(len(self.dataset), size=size, replace=False, shuffle=False)
        return Fetched(self.dataset, Pairs(drawn.astype(np.int64), np.ones(size, dtype=np.float32)))

    def _scores(self, batch: Any) -> NDArray[np.float64]:
        with torch.no_grad():
            found = self.score(batch)
        scores = validation.nonnegative("score(batch)", as_array(found))
        if len(scores) != self.pool_size:
            raise ValueError(f"score(batch) has length {len(scores)}: must have {self.pool_size}, one for each example")
        return scores

    def _collate(self, pool: Fetched, places: NDArray[np.int64]) -> Any:
        """A batch of some of the pool, of the very items that were scored."""
        if self.collate_fn is None and type(self.dataset) is TensorDataset:
            rows = torch.from_numpy(pool.pairs.indices[places])
            return [tensor[rows] for tensor in self.dataset.tensors]
        items = pool.items()
        return (self.collate_fn or default_collate)([items[place] for place in places])

    def _smooth(self, shares: NDArray[np.float64]) -> None:
        found = math.sqrt(len(shares) * float(np.sum(shares**2)))
        self._tau = self.smoothing * self._tau + (1.0 - self.smoothing) * found


def _shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores divided by their sum; all alike where all are 0."""
    largest = scores.max(initial=0.0)
    if largest == 0.0:
        return np.full(len(scores), 1.0 / max(len(scores), 1))
    scaled = scores / largest  # so that no sum leaves float64's range
    shares: NDArray[np.float64] = scaled / scaled.sum()
    return shares
