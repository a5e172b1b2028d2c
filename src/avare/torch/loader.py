"""The loader: a ``DataLoader`` that draws batches by importance and returns them with weights."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Sampler as TorchSampler

from avare import _validation as validation
from avare._randomness import Seed
from avare._state import State
from avare.samplers import Sampler
from avare.torch.batch_sampler import DEFAULT_SAMPLER, AvareBatchSampler, InUpdate, Values
from avare.torch.distributed import Mode
from avare.torch.indexed import Collate, Indexed, IndexedCollate, as_triple, check_dataset
from avare.torch.pool import Automatic, Pool, Rule, ScoreMode, Timed

_NOT_OURS: dict[str, tuple[bool | None, str]] = {  # options of DataLoader, with the value that changes nothing
    "batch_sampler": (None, "this loader has its own (yours fits a DataLoader with Indexed and IndexedCollate)"),
    "shuffle": (False, "batches are drawn at random anyway"),
    "drop_last": (False, "every batch is full, so there is none to drop"),
    "in_order": (True, "batches must arrive in the order of their draws, or a state could not say which come next"),
}


class ImportanceLoader(DataLoader[Any]):
    """A ``DataLoader`` that draws important examples more often, and returns ``(batch, index, weight)``.

    The mean over the batch of ``weight * loss`` is an unbiased estimate of the mean loss over the
    dataset; weights are 1 on average. Report the gradient norms with `update` after each step, or pass `score`:
    the loader then draws a larger pool, scores it with the present model, draws the batch from the pool, and
    remembers all scores. See `avare.torch.pool`.

    Which sampler, and how small its probabilities may become:

    - The default sampler is `avare.Calibrated`, which learns how far an old norm can be trusted.
    - Samplers whose smallest probability falls with the number of steps (`Calibrated` and `Avare`) get
      ``p_min = 1 / (5 n)``, a floor that lasts, unless ``sampler_options`` has ``p_min`` or ``c``: the
      step sizes of nets stay large, so that old norms become stale.
    - Draws within a batch are without replacement, if the sampler can do that.

    With workers, batches are drawn ahead: batch k is drawn just before batch k - L is returned,
    L = num_workers * prefetch_factor, whatever the speed of the workers. The weights of a batch use the
    probabilities with which it was drawn, so drawing ahead causes no bias.

    Each iteration is a new epoch. Batches that were drawn ahead and not received are then dropped. An
    iteration continues the epoch if no batch has been received since it began or a state was loaded: see
    `avare.torch.epoch`.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    batch_size
        Per process; every batch is full.
    sampler
        The name of a sampler (see ``avare.samplers.names()``), or a sampler object. An object must have
        the n and the batch size that this process draws: with replicated ranks, the whole batch of all
        of them; with sharded ranks, this rank's number of examples.
    sampler_options
        Other arguments of the sampler's constructor, by name: for example ``{"decay": 0.99}``.
    replacement
        Whether an index may occur twice in a batch. By default it does not, if the sampler can do without.
    seed
        See `avare.Sampler`. With replicated ranks, None becomes one seed for all of them; with sharded
        ranks, an integer becomes a different seed for each.
    collate_fn
        Makes a batch of a list of items, as for any ``DataLoader``. It does not see indices and weights.
    batches_per_epoch
        By default ceil(n / batch size), over all processes.
    endless
        Whether the first epoch never ends.
    distributed
        "replicated", "sharded", None, or "auto": replicated if a process group is initialised. See
        `avare.torch.distributed`.
    process_group
        By default the whole world.
    score
        Switches the second stage on: a function that gets a collated pool and returns a score for each example, its
        gradient norm or a bound, up to a common factor. For example
        ``lambda batch: output_norms(model(batch[0]), batch[1])``. It runs under ``no_grad``, in the process that
        trains; it moves the pool to its device itself.
    pool
        How many batches a pool has. "auto": as many as pay, by the measured costs of scoring and training, and none
        while no pool pays. A number above 1: always this many.
    score_mode
        "eval": modules are in evaluation mode while they score. None: in the mode that they are in.
    cost_ratio
        For "auto": the time to train on an example over the time that a pool takes for one, to load and score it. By
        default it is measured, and then a run cannot be repeated exactly, because times differ.
    **options
        For ``DataLoader``: num_workers, pin_memory, persistent_workers, ...

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
        sampler: str | Sampler = DEFAULT_SAMPLER,
        sampler_options: Mapping[str, Any] | None = None,
        replacement: bool | None = None,
        seed: Seed = None,
        collate_fn: Collate | None = None,
        batches_per_epoch: int | None = None,
        endless: bool = False,
        distributed: Mode = "auto",
        process_group: Any = None,
        score: Callable[[Any], Values] | None = None,
        pool: float | Literal["auto"] | Rule = "auto",
        score_mode: ScoreMode = None,
        cost_ratio: float | None = None,
        **options: Any,
    ) -> None:
        check_dataset(dataset)
        _check_options(sampler, options)
        stage = _second_stage(score, pool, score_mode, cost_ratio)
        batches = AvareBatchSampler(
            len(dataset),
            batch_size,
            sampler=sampler,
            sampler_options=sampler_options,
            replacement=replacement,
            seed=seed,
            batches_per_epoch=batches_per_epoch,
            endless=endless,
            distributed=distributed,
            process_group=process_group,
            pool=stage,
        )
        collate = IndexedCollate(collate_fn)
        super().__init__(
            Indexed(dataset),
            batch_sampler=batches,
            collate_fn=collate.apart if stage is None else functools.partial(collate.for_pools, batch_size),
            **options,
        )
        self._batches = batches
        self._collate_of_items = collate_fn
        self._cursor = batches.cursor
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
        """The avare sampler that draws: over all examples, or over this rank's part of them."""
        return self._batches.sampler

    @property
    def gain(self) -> float:
        """Uniform's second moment over ours, estimated from the draws: see `avare.Sampler.gain`.

        With `score`, that of both stages, from recent scores.
        """
        return self._batches.gain

    @property
    def pool_ratio(self) -> float:
        """The size of the next pool in batches; 1 while batches come straight from the sampler."""
        return self._batches.pool_ratio

    @property
    def relative_error(self) -> float:
        """How far the sampler's distribution is from the best: its cost over the least, minus 1, from recent scores.

        NaN without `score`.
        """
        return self._batches.relative_error

    @property
    def cost_ratio(self) -> float:
        """The time to train on an example over the time that a pool takes for one; NaN until it is known."""
        return self._batches.cost_ratio

    @property
    def epoch(self) -> int:
        """How many epochs have ended."""
        return self._cursor.epoch

    @property
    def waiting(self) -> int:
        """How many examples have been drawn, and their norms not reported since."""
        return self._batches.waiting

    def __iter__(self) -> Iterator[Any]:
        pool, load = self._batches.pool, super().__iter__
        if pool is None:
            batches = self._cursor.deliver(load, as_triple)
        else:
            batches = self._cursor.deliver(lambda: Timed(pool, load()), self._complete)
        if not self._moves_batches:
            return batches
        from avare.torch.accelerate import Prepared

        return Prepared(batches, lambda: self._cursor.is_over)

    def _complete(self, loaded: Any) -> Any:
        pin = self.pin_memory and torch.cuda.is_available()
        triple = as_triple(self._batches.complete(loaded, self._collate_of_items, pin))
        cast(Pool, self._batches.pool).returns()
        return triple

    def update(self, index: Values, norms: Values, *, not_finite: InUpdate = "raise") -> None:
        """Report the gradient norms of examples that have been drawn: see `AvareBatchSampler.update`."""
        self._batches.update(index, norms, not_finite=not_finite)

    def fail(self) -> None:
        """Tell the other replicated ranks that this one cannot report its norms: see `AvareBatchSampler.fail`."""
        self._batches.fail()

    def measures(self) -> dict[str, float]:
        """Return what `log` writes, by name. O(batch size)."""
        return {name: value for name, value in self._batches.measures().items() if not math.isnan(value)}

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: draws do not depend on the epoch. For code that calls it on every loader."""

    def log(self, writer: Any, step: int, prefix: str = "avare") -> None:
        """Write measurements to a TensorBoard ``SummaryWriter``. O(batch size).

        ``gain``; ``floor``, the smallest probability, if the sampler has one; ``effective_sample_size``
        of the weights of the last batch received, at most the batch size; ``age``, how many steps ago the
        remembered norms were computed, on average over the last batch drawn, without examples whose last
        draw is not reported; ``lag``, the mean number of steps between draw and update, over the last
        batch reported; ``waiting``, how many examples have been drawn and not reported since. With `score`
        also ``pool_ratio``, ``relative_error`` and ``cost_ratio``. What is not known yet is left out.

        Parameters
        ----------
        writer
            Anything with ``add_scalar(tag, value, step)``.
        step
            The step to write them at.
        prefix
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


def _second_stage(
    score: Callable[[Any], Values] | None, pool: Any, score_mode: ScoreMode, cost_ratio: float | None
) -> Pool | None:
    """Return the second stage of the arguments; None without a score."""
    if score is None:
        for name, value, default in (
            ("pool", pool, "auto"),
            ("score_mode", score_mode, None),
            ("cost_ratio", cost_ratio, None),
        ):
            if value != default:
                raise ValueError(f"{name} = {value!r}: needs score, a function that scores the examples of a pool")
        return None
    if isinstance(pool, str) and pool != "auto":
        raise ValueError(f"pool = {pool!r}: must be 'auto' or a number of batches")
    if isinstance(pool, str):
        rule: Rule = Automatic()
    else:
        rule = pool if isinstance(pool, Rule) else Rule(validation.number("pool", pool, above=1.0))
    if cost_ratio is not None and not isinstance(rule, Automatic):
        raise ValueError(f"cost_ratio = {cost_ratio!r}: is for pool='auto' only")
    return Pool(score, score_mode, rule, cost_ratio)


def _check_options(sampler: Any, options: dict[str, Any]) -> None:
    """Raise an error for options of ``DataLoader`` that this loader cannot have, and say why."""
    if isinstance(sampler, TorchSampler):
        raise TypeError(
            f"sampler is of type {type(sampler).__name__}, one of torch's: must be the name of an avare sampler, or an "
            "avare sampler; processes share the draws by distributed=, and Lightning needs "
            "use_distributed_sampler=False"
        )
    for name, (allowed, reason) in _NOT_OURS.items():
        value = options.pop(name, None)
        if value is not None and value != allowed:
            raise ValueError(f"{name} = {value!r}: {reason}; leave it out")
