"""The loader: a ``DataLoader`` that draws batches by importance and returns them with weights."""

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers import Sampler
from avare.state import State
from avare.torch.batch_sampler import AvareBatchSampler, InUpdate, Score, Values
from avare.torch.cursor import Cursor
from avare.torch.distributed import Mode
from avare.torch.pool import ACCELERATOR, Pool, ScoreMode, Timed
from avare.torch.pool_sizes import AutomaticSize, PoolSize
from avare.torch.stream import StreamBatches, collate_block
from avare.torch.weighted_batches import Collate, Indexed, IndexedCollate, as_triple, check_dataset

_NOT_OURS: dict[str, tuple[tuple[Any, ...], str]] = {  # options of DataLoader, with the values that change nothing
    "batch_sampler": ((None,), "this loader has its own (yours fits a DataLoader with Indexed and IndexedCollate)"),
    "shuffle": ((None, True), "batches are drawn at random; for examples in order use a DataLoader"),
    "drop_last": ((None, True, False), "every batch is full, so there is none to drop"),
    "in_order": ((True,), "batches must arrive in the order of their draws, or a state could not say which come next"),
}
_NOT_OF_STREAMS: dict[str, tuple[tuple[Any, ...], str]] = {
    "batch_sampler": ((None,), "a stream is read in order"),
    "shuffle": ((None, False), "a stream is read in order; shuffle the stream itself"),
    "in_order": _NOT_OURS["in_order"],
}
_OF_WORKERS = (
    "num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers",
)  # fmt: skip


class ImportanceLoader(DataLoader[Any]):
    """A ``DataLoader`` that draws important examples more often, and returns ``(batch, index, weight)``.

    The mean over the batch of ``weight * loss`` is an unbiased estimate of the mean loss over the
    dataset; weights are 1 on average. Report the gradient norms with `update` after each step, or pass `score`:
    the loader then draws a larger pool, scores it with the present model, draws the batch from the pool, and
    remembers all scores.

    Which sampler, and how small its probabilities may become:

    - By default, `avare.Passes`: shuffled passes, thinned by remembered norms. With `score`, with
      ``replacement=True`` or with ``sampler_options`` other than ``least``, which `Passes` cannot do, the default is
      `avare.Calibrated`, which learns how far an old norm can be trusted.
    - Samplers whose smallest probability falls with the number of steps (`Calibrated` and `Avare`) get
      ``p_min = 1 / (5 n)``, a floor that lasts, unless ``sampler_options`` has ``p_min`` or ``c``: the
      step sizes of nets stay large, so that old norms become stale.
    - Draws within a batch are without replacement, if the sampler can do that.

    With workers, batches are drawn ahead: batch k is drawn just before batch k - L is returned,
    L = num_workers * prefetch_factor, whatever the speed of the workers. The weights of a batch use the
    probabilities with which it was drawn, so drawing ahead causes no bias.

    Each iteration is a new epoch. Batches that were drawn ahead and not received are then dropped. An
    iteration continues the epoch if no batch has been received since it began or a state was loaded.

    Parameters
    ----------
    dataset : Dataset
        Any map-style dataset; or, with `score`, an ``IterableDataset``: see `avare.torch.stream`. A stream has no
        memory: pools come from it in order, ``pool`` is a whole number of batches, `update` is an error, and
        `sampler`, `replacement` and `batches_per_epoch` do not apply. Each rank reads its own part.
    batch_size : int, default=128
        Per process; every batch is full.
    sampler : str or Sampler, optional
        The name of a sampler (see ``avare.samplers.names()``), or a sampler object. An object must have
        the n of the dataset and, as batch size, the whole batch of all ranks; with sharded ranks, this rank's
        number of examples and its batch size. By default "Passes" or "Calibrated": see above.
    sampler_options : dict, optional
        Other arguments of the sampler's constructor, by name: for example ``{"least": 0.3}``.
    replacement : bool, optional
        Whether an index may occur twice in a batch. By default it does not, if the sampler can do without.
    seed : int, SeedSequence, BitGenerator or Generator, optional
        See `avare.Sampler`. With replicated ranks, None becomes one seed for all of them; sharded ranks derive
        their own from a number.
    collate_fn : callable, optional
        Makes a batch of a list of items, as for any ``DataLoader``. It does not see indices and weights.
    batches_per_epoch : int, optional
        By default ceil(n / batch size), over all processes.
    endless : bool, default=False
        Whether the epoch never ends. The loader then has no length.
    distributed : {"auto", "replicated", "sharded"} or None, default="auto"
        "replicated": all ranks draw the same whole batch, and each takes its part. "sharded": each draws from its part
        of the examples. "auto": replicated if a process group is initialised. None: this process draws alone. See
        `avare.torch.distributed`.
    score : callable, optional
        Switches the second stage on: a function that gets a collated pool and returns a score for each example, its
        gradient norm or a bound, up to a common factor. For example
        ``lambda batch: output_norms(model(batch[0]), batch[1])``. It runs under ``no_grad``, in the process that
        trains, and moves the pool to its device itself.
    pool : float, "auto" or PoolSize, default="auto"
        How many batches a pool has. "auto": as many as pay, by the measured costs of scoring and training, and none
        while no pool pays. A number above 1: always this many, or all examples if they are fewer. A
        `PoolSize`: by its rule.
    score_mode : {"eval"}, optional
        "eval": all modules that are called are in evaluation mode while they score, so that dropout adds no noise and
        BatchNorm updates no statistics. By default they stay in the mode that they are in.
    cost_ratio : float, optional
        For "auto": the time to train on an example over the time that a pool takes for one, to load and score it. By
        default it is measured, and then a run cannot be repeated exactly, because times differ.
    **options
        For ``DataLoader``: num_workers, pin_memory, persistent_workers, ... ``shuffle=True`` and ``drop_last=True``
        change nothing: batches are random and full anyway. ``shuffle=False`` is an error.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.arange(6.0))
    >>> loader = ImportanceLoader(dataset, batch_size=2, seed=0)
    >>> for epoch in range(20):
    ...     for (x,), index, weight in loader:
    ...         loader.update(index, x**2)
    >>> len(loader), loader.epoch, loader.gain > 1.0
    (3, 20, True)
    """

    use_stateful_dataloader = True
    """For Accelerate, whose ``save_state`` and ``load_state`` then include a loader that it has prepared."""
    _moves_batches = False  # whether Accelerate has prepared it

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 128,
        *,
        sampler: str | Sampler | None = None,
        sampler_options: Mapping[str, Any] | None = None,
        replacement: bool | None = None,
        seed: Seed = None,
        collate_fn: Collate | None = None,
        batches_per_epoch: int | None = None,
        endless: bool = False,
        distributed: Mode = "auto",
        score: Score | None = None,
        pool: float | Literal["auto"] | PoolSize = "auto",
        score_mode: ScoreMode = None,
        cost_ratio: float | None = None,
        **options: Any,
    ) -> None:
        stage = _second_stage(score, pool, score_mode, cost_ratio)
        is_stream = isinstance(dataset, IterableDataset)
        _check_options(options, is_stream)
        own: dict[str, Any] = {"sampler": sampler, "sampler_options": sampler_options, "replacement": replacement}
        if validation.boolean("endless", endless) and batches_per_epoch is not None:
            raise ValueError(f"batches_per_epoch = {batches_per_epoch}: an endless epoch has no number of batches")
        own["batches_per_epoch"] = sys.maxsize if endless else batches_per_epoch
        self._batches: Any  # AvareBatchSampler or StreamBatches
        if is_stream:
            workers = options.get("num_workers", 0) > 0
            self._batches = StreamBatches(
                dataset,
                batch_size,
                pool=_stage_of_stream(stage, own),
                seed=seed,
                distributed=distributed,
                in_workers=workers,
            )
            options |= {"batch_size": batch_size, "collate_fn": functools.partial(collate_block, collate_fn=collate_fn)}
        else:
            check_dataset(dataset)
            self._batches = AvareBatchSampler(
                len(dataset), batch_size, seed=seed, distributed=distributed, pool=stage, **own
            )
            collate = IndexedCollate(collate_fn).apart
            options["collate_fn"] = collate if stage is None else functools.partial(collate, size=batch_size)
            options["batch_sampler"] = self._batches
            dataset = Indexed(dataset)
        super().__init__(dataset, **options)
        self._collate_of_items = collate_fn
        self._cursor: Cursor[Any] = self._batches.cursor
        self._cursor.keep = None  # this loader confirms what the consumer receives

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True: Accelerate would build another loader from the parts, and this one already knows the other ranks."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        """Note that ``prepare`` has received this loader: from now on it moves its batches."""
        self._moves_batches = True

    @property
    def importance_sampler(self) -> Sampler:
        """The avare sampler that draws."""
        return self._batches.sampler

    @property
    def gain(self) -> float:
        """Uniform's second moment over ours, estimated from the draws: see `avare.Sampler.gain`.

        With `score`, the gain of both stages, from recent scores.
        """
        return self._batches.gain

    @property
    def pool_ratio(self) -> float:
        """The size of the next pool in batches; 1 while batches come straight from the sampler."""
        return 1.0 if self._batches.pool is None else self._batches.pool.ratio

    @property
    def epoch(self) -> int:
        """How many epochs have ended."""
        return self._cursor.epoch

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        pool, complete = self._batches.pool, as_triple if self._batches.pool is None else self._complete
        is_resumed = self._cursor.position > 0 and self._cursor.latest is None
        # PyTorch draws a seed for workers; a resumed run has drawn that of this epoch before it was interrupted.
        with torch.random.fork_rng(devices=[], enabled=is_resumed):
            if isinstance(self._batches, StreamBatches):
                if hasattr(self.dataset, "set_epoch"):
                    self._iterator = None  # of persistent workers, which have copies of the stream in the last epoch
                read = functools.partial(self._batches.load, super().__iter__)
                batches = self._cursor.deliver(read, complete, lambda _: self._cursor.position)
            else:
                batches = self._cursor.deliver(super().__iter__, complete, lambda loaded: loaded[1].place)
        if pool is not None:
            batches = Timed(pool, batches)
        if not self._moves_batches:
            return batches
        from avare.torch.accelerate import Prepared

        return Prepared(batches, lambda: self._cursor.is_over)

    def _complete(self, loaded: Any) -> Any:
        pin = self.pin_memory and ACCELERATOR.is_available()
        return as_triple(self._batches.complete(loaded, self._collate_of_items, pin))

    def update(self, index: Values, norms: Values, *, not_finite: InUpdate = "raise") -> None:
        """Report the gradient norms of examples that have been drawn: see `AvareBatchSampler.update`."""
        self._batches.update(index, norms, not_finite=not_finite)

    def extend(self) -> NDArray[np.int64]:
        """Add the new examples, after the dataset has grown, and return their indices: see `AvareBatchSampler.extend`.

        They are drawn from the next epoch on, also by persistent workers, which begin again with it.
        """
        new: NDArray[np.int64] = self._batches.extend(len(self.dataset) if hasattr(self.dataset, "__len__") else 0)
        self._iterator = None  # of persistent workers, which have copies of the dataset
        return new

    def retire(self, index: Values) -> None:
        """Never draw some examples again, from the next draw on: see `AvareBatchSampler.retire`."""
        self._batches.retire(index)

    def fail(self) -> None:
        """Tell the other ranks that this one cannot report its norms: see `AvareBatchSampler.fail`."""
        self._batches.fail()

    def measures(self) -> dict[str, float]:
        """Return what `log` writes, by name. O(n), some microseconds for a million examples."""
        return self._batches.measures()

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, for code that calls it on every loader: draws do not depend on the epoch; a stream learns it."""

    def log(self, writer: Any, step: int, prefix: str = "avare") -> None:
        """Write measurements to a TensorBoard ``SummaryWriter``. O(n), some microseconds for a million examples.

        ``gain``; ``floor``, the smallest probability, if the sampler has one; ``effective_sample_size``
        of the weights of the last batch received, at most the batch size; ``waiting``, how many examples have
        been drawn and not reported since, unless scores alone are to be learned from. With `score` also
        ``pool_ratio``, ``relative_error`` and ``cost_ratio``. What is not known yet is left out.

        Parameters
        ----------
        writer : SummaryWriter
            Anything with ``add_scalar(tag, value, step)``.
        step : int
            The step to write them at.
        prefix : str, default="avare"
            The first part of the tags, before a slash.
        """
        for name, value in self.measures().items():
            writer.add_scalar(f"{prefix}/{name}", value, step)

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same batches: see `AvareBatchSampler.state_dict`.

        ``torch.save`` writes it, ``torch.load(..., weights_only=True)`` reads it.
        """
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration gives the rest of its epoch.

        The batches are exactly those without the interruption if num_workers * prefetch_factor is the
        same. A state saved with different arguments, or a damaged one, is a ``ValueError``, and nothing
        changes.
        """
        self._batches.load_state_dict(state)


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How to draw batches: the options of `ImportanceLoader`, without the data.

    `avare.torch.transformers.ImportanceTrainer` and `avare.torch.lightning.ImportanceCallback` take one; in a plain
    loop call `loader`.

    Parameters
    ----------
    sampler, sampler_options, replacement, seed, distributed, score_mode, cost_ratio
        See `ImportanceLoader`. With None as seed, the frameworks use theirs.
    pool : float, "auto" or None, default=None
        "auto", or a number of batches: see `ImportanceLoader`. None: "auto" if `score` is passed, otherwise no pool.
        `ImportanceTrainer` has a score of its own, which it uses if ``pool`` is not None.

    Examples
    --------
    >>> importance = Importance(sampler="Avare", seed=0)
    >>> loader = importance.loader(["ada", "bo", "cy", "dee"], 2)
    >>> len(loader), loader.importance_sampler.batch_size
    (2, 2)
    """

    sampler: str | Sampler | None = None
    sampler_options: Mapping[str, Any] | None = None
    replacement: bool | None = None
    seed: Seed = None
    distributed: Mode = "auto"
    pool: float | Literal["auto"] | None = None
    score_mode: ScoreMode = None
    cost_ratio: float | None = None

    def loader(
        self, dataset: Any, batch_size: int, *, score: Score | None = None, seed: Seed = None, **options: Any
    ) -> ImportanceLoader:
        """Make a loader with these options.

        Parameters
        ----------
        dataset, batch_size, score
            See `ImportanceLoader`.
        seed
            Used if these options have none, and no sampler object.
        **options
            For the loader: collate_fn, num_workers, ...
        """
        own = {**vars(self), "score": score, **options}
        if self.pool is None:
            own["pool"] = "auto"
        if self.seed is None and not isinstance(self.sampler, Sampler):
            own["seed"] = seed
        return ImportanceLoader(dataset, batch_size, **own)

    def loader_like(self, plain: Any, batch_size: int | None, score: Score | None, seed: Seed) -> ImportanceLoader:
        """Make a loader with these options over the data of a plain ``DataLoader``, with its workers.

        Parameters
        ----------
        plain
            Gives dataset, collate function and workers. Shuffling and samplers do not apply.
        batch_size, score, seed
            See `loader`.
        """
        if not isinstance(plain, DataLoader):
            raise TypeError(f"the train loader is of type {type(plain).__name__}: must be one torch DataLoader")
        if batch_size is None:
            raise ValueError("the train loader has no batch_size: make it with batch_size= and without batch_sampler=")
        check_dataset(plain.dataset)
        collate_fn = None if plain.collate_fn is default_collate else plain.collate_fn
        options = {name: getattr(plain, name) for name in _OF_WORKERS}
        options["pin_memory"] = plain.pin_memory and ACCELERATOR.is_available()
        return self.loader(plain.dataset, batch_size, score=score, seed=seed, collate_fn=collate_fn, **options)


def weighted_mean(loss: Tensor, weight: Tensor) -> Tensor:
    """Return the loss to train on: the mean over the batch of weight times loss. O(batch size).

    It estimates the mean loss over the dataset, without bias. It is 0 for an empty batch. If you divide the loss of an
    example by the number of its targets, use ``.clamp(min=1)``: an example without targets then has a loss of 0, and
    not NaN.

    Parameters
    ----------
    loss : Tensor
        The loss of each example, of shape (batch,), as with ``reduction="none"``.
    weight : Tensor
        The weights that came with the batch, on any device.

    Examples
    --------
    >>> import torch
    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 1.5]))
    tensor(2.5000)
    """
    for name, values in (("loss", loss), ("weight", weight)):
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} is of type {type(values).__name__}: must be a tensor")
    if loss.ndim != 1 or loss.shape != weight.shape:
        raise ValueError(
            f"loss has shape {tuple(loss.shape)}, weight has {tuple(weight.shape)}: both must be (batch,), a loss for "
            'each example, as with reduction="none"'
        )
    return (weight.to(loss) * loss).sum() / max(len(loss), 1)


def _second_stage(score: Score | None, pool: Any, mode: ScoreMode, cost_ratio: float | None) -> Pool | None:
    """Return the second stage of the arguments; None without a score."""
    if score is None:
        given = ("pool", pool, "auto"), ("score_mode", mode, None), ("cost_ratio", cost_ratio, None)
        for name, value, default in given:
            if value != default:
                raise ValueError(f"{name} = {value!r}: needs score, a function that scores the examples of a pool")
        return None
    if isinstance(pool, PoolSize):
        size = pool
    elif isinstance(pool, str):
        if pool != "auto":
            raise ValueError(f"pool = {pool!r}: must be 'auto' or a number of batches")
        size = AutomaticSize()
    else:
        size = PoolSize(validation.number("pool", pool, above=1.0))
    if cost_ratio is not None and not isinstance(size, AutomaticSize):
        raise ValueError(f"cost_ratio = {cost_ratio!r}: is for pool='auto' only")
    return Pool(score, size, cost_ratio, mode)


def _stage_of_stream(stage: Pool | None, own: dict[str, Any]) -> Pool:
    """Return the second stage, or raise an error for arguments that a stream cannot have, or lacks."""
    if stage is None:
        raise ValueError("score = None: a stream needs score, a function that scores the examples of a pool")
    for name, value in own.items():
        if value is not None:
            raise ValueError(f"{name} = {value!r}: a stream is read in order, so nothing is drawn; leave it out")
    return stage


def _check_options(options: dict[str, Any], is_stream: bool) -> None:
    """Raise an error for options of ``DataLoader`` that this loader cannot have, and say why."""
    for name, (allowed, reason) in (_NOT_OF_STREAMS if is_stream else _NOT_OURS).items():
        value = options.pop(name, allowed[0])
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: {reason}; leave it out")
