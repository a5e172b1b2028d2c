"""The loader: a ``DataLoader`` that draws batches by importance and returns them with weights."""

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers import Sampler
from avare.state import State
from avare.torch.loading.batch_sampler import AvareBatchSampler, InUpdate, Values
from avare.torch.loading.measures import ACCELERATOR, Timed
from avare.torch.loading.pool_sizes import PoolSize
from avare.torch.loading.ranks import Mode
from avare.torch.loading.second_stage import Score, StageOptions
from avare.torch.loading.stream import StreamBatches, collate_block
from avare.torch.loading.weighted_batches import Collate, Indexed, check_dataset, collate_draws, take_rows

_NOT_OURS: dict[str, tuple[tuple[Any, ...], str]] = {  # options of DataLoader, with the values that change nothing
    "batch_sampler": ((None,), "this loader has its own; for your own, draw with a sampler such as avare.Passes"),
    "shuffle": ((None, True), "batches are drawn at random; for examples in order use a DataLoader"),
    "drop_last": ((None, True, False), "every batch is full, so there is none to drop"),
    "in_order": ((True,), "batches must arrive in the order of their draws, or a state could not say which come next"),
}
_NOT_OF_STREAMS: dict[str, tuple[tuple[Any, ...], str]] = {
    "batch_sampler": ((None,), "a stream is read in order"),
    "shuffle": ((None, False), "a stream is read in order; shuffle the stream itself"),
    "in_order": _NOT_OURS["in_order"],
}


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
    - The smallest probability of `Calibrated` and `Avare` falls with the number of steps. Here they get
      ``p_min = 1 / (5 n)``, a floor that lasts, unless ``sampler_options`` has ``p_min`` or ``c``. The
      step sizes of nets stay large, so old norms become stale.
    - Draws within a batch are without replacement, if the sampler can do that.

    With workers, batches are prefetched: batch k is drawn just before batch k - L is returned,
    L = num_workers * prefetch_factor, whatever the speed of the workers. The weights of a batch use the
    probabilities with which it was drawn, so drawing ahead causes no bias.

    Each iteration is a new epoch. Batches that were prefetched and not received are then dropped. An
    iteration continues the epoch if no batch has been received since it began or a state was loaded.

    Parameters
    ----------
    dataset : Dataset
        Any map-style dataset; or, with `score`, an ``IterableDataset``: see `avare.torch.loading.stream`. A stream has
        no memory: pools come from it in order, ``pool`` is a whole number of batches, `update` is an error, and
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
        `avare.torch.loading.ranks`.
    score : callable, optional
        Switches the second stage on: a function that gets a collated pool and returns a score for each example, its
        gradient norm or a bound, up to a common factor. For example
        ``lambda batch: output_norms(model(batch[0]), batch[1])``. It runs under ``no_grad``, in the process that
        trains, and moves the pool to its device itself. Modules stay in their mode: call ``eval`` and ``train`` in the
        function if dropout should add no noise, and BatchNorm update no statistics.
    pool : float, "auto" or PoolSize, default="auto"
        How many batches a pool has. "auto": as many as pay, by the measured costs of scoring and training, and none
        while no pool pays. A number above 1: always this many, or all examples if they are fewer. A
        `PoolSize`: by its rule.
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
    _is_accelerate_prepared = True
    """Accelerate's ``prepare`` asks for it, and then builds no other loader from the parts: this one already knows the
    other ranks. It sets the same attribute of the object, which from then on moves its batches."""

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
        cost_ratio: float | None = None,
        **options: Any,
    ) -> None:
        stage = StageOptions.read(score, pool, cost_ratio)
        is_stream = isinstance(dataset, IterableDataset)
        _check_options(options, is_stream)
        own: dict[str, Any] = {"sampler": sampler, "sampler_options": sampler_options, "replacement": replacement}
        if validation.boolean("endless", endless) and batches_per_epoch is not None:
            raise ValueError(f"batches_per_epoch = {batches_per_epoch}: an endless epoch has no number of batches")
        own["batches_per_epoch"] = sys.maxsize if endless else batches_per_epoch
        self._source: AvareBatchSampler | StreamBatches
        if is_stream:
            common: dict[str, Any] = {"seed": seed, "distributed": distributed}
            in_workers = options.get("num_workers", 0) > 0
            of_stream = _stage_of_stream(stage, own)
            self._source = StreamBatches(dataset, batch_size, stage=of_stream, in_workers=in_workers, **common)
            options |= {"batch_size": batch_size, "collate_fn": functools.partial(collate_block, collate_fn=collate_fn)}
        else:
            check_dataset(dataset)
            self._source = AvareBatchSampler(
                len(dataset), batch_size, seed=seed, distributed=distributed, stage=stage, **own
            )
            size = None if stage is None else batch_size
            options["collate_fn"] = functools.partial(collate_draws, collate_fn=collate_fn, size=size)
            options["batch_sampler"] = self._source
            dataset = Indexed(dataset)
        super().__init__(dataset, **options)
        self._collate_of_items = collate_fn
        self._renews_workers = is_stream and hasattr(dataset, "set_epoch")

    @property
    def importance_sampler(self) -> Sampler:
        """The avare sampler that draws."""
        if isinstance(self._source, StreamBatches):
            raise AttributeError("a stream has no sampler: its examples arrive in order")
        return self._source.sampler

    @property
    def gain(self) -> float:
        """Uniform's second moment over ours, estimated from the draws: see `avare.Sampler.gain`.

        With `score`, the gain of both stages, from recent scores.
        """
        return self._source.gain

    @property
    def pool_ratio(self) -> float:
        """The size of the next pool in batches; 1 while batches come straight from the sampler."""
        return 1.0 if self._source.stage is None else self._source.stage.ratio

    @property
    def epoch(self) -> int:
        """How many epochs have ended."""
        return self._source.cursor.epoch

    @property
    def received(self) -> int:
        """How many batches of this epoch have been received."""
        return self._source.cursor.position

    @property
    def is_over(self) -> bool:
        """Whether all batches of this epoch have been received."""
        return self._source.cursor.is_over

    def finish_epoch(self) -> None:
        """End the epoch: prefetched batches are dropped, and the next iteration is a new epoch."""
        self._source.cursor.finish()

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        cursor, stage = self._source.cursor, self._source.stage
        pin = self.pin_memory and ACCELERATOR.is_available()
        take = functools.partial(take_rows, collate_fn=self._collate_of_items, pin=pin)
        is_resumed = cursor.position > 0 and cursor.latest is None
        # PyTorch draws a seed for workers; a resumed run has drawn that of this epoch before it was interrupted.
        with torch.random.fork_rng(devices=[], enabled=is_resumed):
            batches = self._source.deliver(self._read, take)
        if stage is not None:
            batches = Timed(stage.measured, batches)
        if "_is_accelerate_prepared" not in vars(self):
            return batches
        from avare.torch.accelerate import Prepared

        return Prepared(batches, lambda: self.is_over)

    def _read(self) -> Iterator[Any]:
        """Begin to load units."""
        if self._renews_workers:
            self._iterator = None  # of persistent workers, which have copies of the stream in an earlier epoch
        return super().__iter__()

    @property
    def _remembering(self) -> AvareBatchSampler:
        """The source, which remembers norms."""
        if isinstance(self._source, StreamBatches):
            raise TypeError(
                "a stream has no memory: update, fail, extend and retire do not apply; score= finds the norms"
            )
        return self._source

    def update(self, index: Values, norms: Values, *, not_finite: InUpdate = "raise") -> None:
        """Report the gradient norms of examples that have been drawn.

        All ranks must call it, each with its own part of the batch: their norms are gathered.

        Parameters
        ----------
        index : Tensor or array
            The index that came with the batch, at once or later; tensors may be on any device. An
            example that was never drawn is a ``ValueError``.
        norms : Tensor, array or float
            The same number of finite numbers, none negative; otherwise nothing changes. Tensors are
            detached. Or one number: the mean over these examples of their norms or losses, without their weights.
            The remembered norm h of each is then multiplied by ``(1 + number / mean of h) / 2``, the means being over
            these examples. One without a remembered norm gets the number. `gain` is then an estimate from these.
        not_finite : {"raise", "skip"}, default="raise"
            What to do if a norm is NaN or infinite: "raise" an error, on all ranks, or "skip"
            that example, whose remembered norm does not change.
        """
        self._remembering.update(index, norms, not_finite=not_finite)

    def extend(self) -> NDArray[np.int64]:
        """Add the new examples, after the dataset has grown, and return their indices. O(n) bytes are copied.

        They are drawn from the next epoch on, also by persistent workers, which begin again with it: in the present
        one, workers may have copies of the dataset as it was. By default an epoch then has
        ceil(present examples / batch size) batches. All ranks must call it with datasets of the same length, after the
        same batch. Nothing is known of the new examples, as at the start.
        """
        new: NDArray[np.int64] = self._remembering.extend(len(self.dataset) if hasattr(self.dataset, "__len__") else 0)
        self._iterator = None  # of persistent workers, which have copies of the dataset
        return new

    def retire(self, index: Values) -> None:
        """Never draw some examples again, from the next draw on: see `avare.Sampler.retire`.

        Prefetched batches may still contain them. All ranks must call it with the same index, after the same
        batch.
        """
        self._remembering.retire(index)

    def fail(self) -> None:
        """Send a failure marker, so that the other ranks raise an error from `update` instead of hanging.

        Call it on a rank that has received a batch and, because of an error, will not call `update` for it. Nothing
        changes on any rank.
        """
        self._remembering.ranks.refuse()

    def measures(self) -> dict[str, float]:
        """Return measurements by name, without those that are not known yet. O(n), microseconds for a million examples.

        - ``gain``: see `gain`.
        - ``floor``: the smallest probability, if the sampler has one.
        - ``effective_sample_size``: of the weights of the last batch received, at most the batch size.
        - ``waiting``: how many examples have been drawn and not reported since, unless only scores are reported.
        - With `score` also ``pool_ratio``, ``relative_error`` and ``cost_ratio``.
        """
        return self._source.measures()

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, for code that calls it on every loader: draws do not depend on the epoch; a stream learns it."""

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same batches: numbers, text and tensors.

        ``torch.save`` writes it, ``torch.load(..., weights_only=True)`` reads it. It is the same on all replicated
        ranks, and any number of them with the same whole batch may load it. Each sharded rank has its own, and so has
        each rank of a stream.
        """
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration gives the rest of its epoch.

        The batches are exactly those without the interruption if num_workers * prefetch_factor is the
        same. A state saved with different arguments, or a damaged one, is a ``ValueError``, and nothing
        changes.
        """
        self._source.load_state_dict(state)


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


def _stage_of_stream(stage: StageOptions | None, own: dict[str, Any]) -> StageOptions:
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
