"""UpperBound: score a pool of examples with the model, and draw the batch from the pool."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare._state import Field, State, generator_to_text, read
from avare.torch.batch_sampler import InUpdate, Values, check_in_update
from avare.torch.epoch import Cursor
from avare.torch.indexed import Collate, Fetched, Pairs, as_triple, check_dataset
from avare.torch.states import check_arguments, with_arrays

_FORMAT = 1  # of the state; raise it when the meaning of a field changes
_FIELDS = ("epoch", "position", "tau", "told", "index", "generator")
Loaded = tuple[Any, Pairs]


class UpperBoundLoader:
    r"""Draw batches by importance from a pool that the model scores (Katharopoulos & Fleuret, 2018).

    While inactive, a batch of m is drawn uniformly, with weights 1. While active, a pool of B is drawn
    uniformly and scored, and m of the pool are drawn with replacement,

    .. math:: g_i = s_i / \textstyle\sum_{k} s_k, \qquad w_i = 1 / (B g_i).

    It is active as long as :math:`\tau` is above (B + 3m) / (3m), where drawing m of B is worth the
    forward pass over B: :math:`\tau \leftarrow a \tau + (1 - a) \sqrt{B \sum g^2}`, from the scores
    of the pool, or from the reported norms of a uniform batch.

    Batches are ``(batch, index, weight)``, as those of `ImportanceLoader`, and so is the training loop:
    the mean over the batch of ``weight * loss`` is an unbiased estimate of the mean loss over the dataset.
    The loader remembers nothing about examples, so nothing becomes stale; it pays with a forward pass over
    the pool at each step.

    The pool is scored when its batch is asked for, so nothing is loaded ahead, and there are no worker
    processes. With several processes, give each a different seed.

    Cost per step: while active, a forward pass over B examples. Memory: none per example.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    score
        A function that gets a batch, as ``collate_fn`` makes it, and returns a score for each example: a
        bound on its gradient norm, up to a common factor. It runs under ``no_grad``. For example
        ``lambda batch: output_norms(model(batch[0]), batch[1])``. An example with score 0 is not drawn.
    batch_size
        m; every batch is full.
    pool_size
        B, at least m; by default 3 m, or n if that is less.
    smoothing
        a, in [0, 1).
    threshold
        The loader is active while tau is above it; by default (B + 3m) / (3m). 0: always; inf: never.
    seed
        See `avare.Sampler`.
    batches_per_epoch
        By default ceil(n / m).
    collate_fn
        Makes a batch of a list of items, as for any ``DataLoader``.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
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
        score: Callable[[Any], Values],
        batch_size: int = 128,
        *,
        pool_size: int | None = None,
        smoothing: float = 0.9,
        threshold: float | None = None,
        seed: Seed = None,
        batches_per_epoch: int | None = None,
        collate_fn: Collate | None = None,
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
        self._cursor: Cursor[Loaded] = Cursor(self._length)
        self._tau = 0.0
        self._index = np.empty(0, dtype=np.int64)  # of the last batch
        self._learned = True  # whether tau has learned from the last batch

    @property
    def tau(self) -> float:
        """The possible gain within a pool, smoothed: the root of uniform's second moment over ours."""
        return self._tau

    @property
    def active(self) -> bool:
        """Whether the next batch is drawn by importance."""
        return self._tau > self.threshold or self.threshold == 0.0

    @property
    def gain(self) -> float:
        """Uniform's second moment over that of the next batch, estimated by the scores: tau squared, or 1."""
        return self._tau**2 if self.active else 1.0

    @property
    def epoch(self) -> int:
        """How many epochs have ended."""
        return self._cursor.epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
        """Return the batches of a new epoch or, if a state has just been loaded, the rest of its epoch."""
        return self._cursor.deliver(lambda: self._cursor.units(self._draw), as_triple)

    def update(self, index: Values, norms: Values, *, not_finite: InUpdate = "raise") -> None:
        """Report the gradient norms of the last batch; tau learns from them if the batch was uniform.

        The norms of a batch drawn from a pool, and a second report of the same batch, change nothing.

        Parameters
        ----------
        index
            The index that came with the batch.
        norms
            The same number of finite numbers, none negative; otherwise nothing changes.
        not_finite
            What to do if a norm is NaN or infinite: "raise" an error, or "skip" the whole batch.
        """
        check_in_update(not_finite)
        indices = validation.indices("index", index, len(self.dataset))
        reported = validation.real("norms", norms)
        validation.same_length("norms", len(reported), "index", len(indices))
        if not np.array_equal(indices, self._index):
            raise ValueError("index is not that of the last batch: report the norms of each batch before the next one")
        if not_finite == "skip" and not np.isfinite(reported).all():
            return
        values = validation.nonnegative("norms", reported)
        if not self._learned:
            self._smooth(_shares(values))
            self._learned = True

    def log(self, writer: Any, step: int, prefix: str = "avare") -> None:
        """Write ``tau``, ``gain`` and ``active`` (1 or 0) to a TensorBoard ``SummaryWriter``."""
        for name, value in (("tau", self.tau), ("gain", self.gain), ("active", float(self.active))):
            writer.add_scalar(f"{prefix}/{name}", value, step)

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same batches: numbers, text and a tensor."""
        return {
            "format": _FORMAT,
            **self._arguments(),
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "tau": self._tau,
            "told": self._learned,
            "index": torch.from_numpy(self._index.copy()),
            "generator": generator_to_text(self._generator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration gives the rest of its epoch.

        A state saved with different arguments, or a damaged one, is a ``ValueError``, and nothing changes.
        """
        check_arguments(state, {"format": _FORMAT, **self._arguments()}, _FIELDS)
        cursor = self._cursor.fields()
        fields = {
            "epoch": cursor["epoch"],
            "position": cursor["drawn"],
            "tau": Field(float, at_least=0.0),
            "told": Field(bool),
            "index": Field(np.int64, (None,), at_least=0, at_most=len(self.dataset) - 1),
            "generator": Field(np.random.Generator),
        }
        values = read(with_arrays({key: state[key] for key in _FIELDS}), fields)
        self._cursor.load(values["epoch"], values["position"])
        self._tau, self._learned = values["tau"], values["told"]
        self._index, self._generator = values["index"], values["generator"]

    def _arguments(self) -> State:
        """The arguments that must be the same for a state to be loaded."""
        return {
            "n": len(self.dataset),
            "batch_size": self.batch_size,
            "pool_size": self.pool_size,
            "smoothing": self.smoothing,
            "threshold": self.threshold,
            "batches_per_epoch": self._length,
        }

    def _draw(self) -> Loaded:
        before = self._generator.bit_generator.state
        try:
            return self._draw_from_a_pool() if self.active else self._draw_uniformly()
        except BaseException:
            self._generator.bit_generator.state = before  # the next attempt draws the same batch
            raise

    def _draw_uniformly(self) -> Loaded:
        drawn = self._fetch(self.batch_size)
        batch = drawn.collated(self.collate_fn)
        self._index, self._learned = drawn.pairs.indices.copy(), False
        return batch, drawn.pairs

    def _draw_from_a_pool(self) -> Loaded:
        pool = self._fetch(self.pool_size)
        shares = _shares(self._scores(pool.collated(self.collate_fn)))
        places = self._generator.choice(self.pool_size, size=self.batch_size, p=shares)
        weights = (1.0 / (self.pool_size * shares[places])).astype(np.float32)
        batch = pool.collated(self.collate_fn, places)  # from the same items that were scored
        self._smooth(shares)
        self._index, self._learned = pool.pairs.indices[places], True
        return batch, Pairs(self._index.copy(), weights)

    def _fetch(self, size: int) -> Fetched:
        """Distinct examples; every set of this size has the same probability."""
        drawn = self._generator.choice(len(self.dataset), size=size, replace=False, shuffle=False)
        return Fetched(self.dataset, Pairs(drawn.astype(np.int64), np.ones(size, dtype=np.float32)))

    def _scores(self, batch: Any) -> NDArray[np.float64]:
        with torch.no_grad():
            found = self.score(batch)
        scores = validation.nonnegative("score(batch)", found)
        if len(scores) != self.pool_size:
            raise ValueError(f"score(batch) has length {len(scores)}: must have {self.pool_size}, one for each example")
        return scores

    def _smooth(self, shares: NDArray[np.float64]) -> None:
        found = math.sqrt(len(shares) * float(np.sum(shares**2)))
        self._tau = self.smoothing * self._tau + (1.0 - self.smoothing) * found


def _shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores divided by their sum; all equal if all scores are 0."""
    largest = scores.max(initial=0.0)
    if largest == 0.0:
        return np.full(len(scores), 1.0 / max(len(scores), 1))
    scaled = scores / largest  # so that the sum does not overflow
    shares: NDArray[np.float64] = scaled / scaled.sum()
    return shares
