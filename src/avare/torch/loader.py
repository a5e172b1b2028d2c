"""The loader: a ``DataLoader`` whose batches are drawn by importance and come with weights."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Self

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader
from torch.utils.data import Sampler as TorchSampler

from avare._randomness import Seed
from avare._state import State
from avare.samplers import Sampler
from avare.torch.batch_sampler import AvareBatchSampler
from avare.torch.distributed import Mode
from avare.torch.indexed import Indexed, IndexedCollate, check_dataset


class ImportanceLoader(DataLoader[Any]):
    """A ``DataLoader`` that draws the examples that matter more often, and gives ``(batch, index, weight)``.

    The mean over the batch of ``weight * loss`` is an unbiased estimate of the mean loss over the
    dataset; weights are about 1. Tell the gradient norms with `update`, after each step.

    With workers, batches are drawn ahead: batch k is drawn just before batch k - L is handed out,
    L = num_workers * prefetch_factor, whatever the speed of the workers. A batch's weights are of
    the probabilities that it was drawn with, so that nothing is biased by that.

    A new iteration is a new epoch. Batches that were drawn ahead and not received are then dropped.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    batch_size
        Of each process; every batch is full.
    sampler
        The name of a sampler (see ``avare.samplers.names()``), or one: see `AvareBatchSampler`. By
        default `avare.Calibrated`, which knows how far norms seen many large steps ago can be trusted.
    sampler_options
        What else the sampler's constructor is to be given, by name: say ``{"decay": 0.99}``. `Avare`
        and `Calibrated` get a lasting floor of 1 / (5n): see `AvareBatchSampler`.
    replacement
        Whether an index may come twice in a batch; by default not, if the sampler can do without.
    seed
        See `avare.Sampler`.
    batches_per_epoch
        By default ceil(n / batch size), over all processes.
    endless
        Whether the first epoch never ends.
    distributed
        "replicated", "sharded", None, or "auto": replicated where a process group has been
        initialised. See `avare.torch.distributed`.
    process_group
        By default the whole world.
    collate_fn
        Makes a batch of a list of items, as for any ``DataLoader``: indices and weights go past it.
    **options
        For ``DataLoader``: num_workers, pin_memory, persistent_workers, ...

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.arange(6.0))
    >>> loader = ImportanceLoader(dataset, batch_size=2, seed=0)
    >>> for epoch in range(20):
    ...     for (x,), index, weight in loader:
    ...         loader.update(index, x**2)
    >>> len(loader), loader.epoch, loader.gain > 1.0
    (3, 20, True)
    """

    # Accelerate would build another loader of the parts; this one already knows of the other ranks.
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 128,
        *,
        sampler: str | Sampler = "Calibrated",
        sampler_options: Mapping[str, Any] | None = None,
        replacement: bool | None = None,
        seed: Seed = None,
        batches_per_epoch: int | None = None,
        endless: bool = False,
        distributed: Mode = "auto",
        process_group: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        check_dataset(dataset)
        _check_options(sampler, options)
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
        )
        super().__init__(
            Indexed(dataset), batch_sampler=batches, collate_fn=IndexedCollate(collate_fn).apart, **options
        )
        batches.expect_receipts()
        self._batches = batches
        self._received_any = False  # by the iteration at hand
        self._latest = 0  # the number of the last iteration that was asked for

    @property
    def importance_sampler(self) -> Sampler:
        """The avare sampler that draws: over all examples, or over this rank's part of them."""
        return self._batches.sampler

    @property
    def gain(self) -> float:
        """Uniform's second moment over ours, estimated from the draws: see `avare.Sampler.gain`."""
        return self._batches.sampler.gain

    @property
    def epoch(self) -> int:
        """How many epochs came before this one."""
        return self._batches.epoch

    @property
    def waiting(self) -> int:
        """How many examples have been drawn, and their norms not told since."""
        return self._batches.waiting

    def __iter__(self) -> Iterator[Any]:
        if not self._received_any:
            if not self._batches.endless and self._batches.position >= len(self._batches):
                self._batches.finish()  # the state was saved with the last batch of an epoch: nothing is left of it
                return iter(())
            self._batches.go_on()  # nothing was taken since it was last asked for: the same batches again
        self._received_any = False
        self._latest += 1
        return _Handover(self, super().__iter__())

    def update(
        self,
        index: ArrayLike | torch.Tensor,
        norms: ArrayLike | torch.Tensor,
        *,
        not_finite: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Tell the gradient norms of examples that have been drawn: see `AvareBatchSampler.update`."""
        self._batches.update(index, norms, not_finite=not_finite)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: draws do not depend on the epoch. For those who call it on every loader."""

    def log(self, writer: Any, step: int, prefix: str = "avare") -> None:
        """Write what there is to watch to a TensorBoard ``SummaryWriter``. O(batch size).

        ``gain``; ``floor``, the smallest probability, where the sampler has one;
        ``effective_sample_size`` of the weights of the last batch received, at most its size;
        ``age`` of the norms, the mean steps since the draw that they are of, over the examples of
        the last batch drawn whose last draw was told; ``lag``, the mean steps between draw and
        update, over the last batch told; ``waiting``, how many examples have been drawn and not
        told since. What is not known is left out.

        Parameters
        ----------
        writer
            Anything with ``add_scalar(tag, value, step)``.
        step
            The step to write them at.
        prefix
            Of the tags, before a slash.
        """
        for name, value in self._batches.measures().items():
            if not math.isnan(value):
                writer.add_scalar(f"{prefix}/{name}", value, step)

    def state_dict(self) -> State:
        """All it takes to go on with the very same batches: see `AvareBatchSampler.state_dict`.

        ``torch.save`` writes it, ``torch.load(..., weights_only=True)`` reads it.
        """
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next iteration gives the rest of its epoch.

        Batches are the very same as without the stop if num_workers * prefetch_factor is the same.
        A state of other arguments or a damaged one is a ``ValueError``, and nothing has changed.
        """
        self._batches.load_state_dict(state)
        self._received_any = False
        self._latest += 1


class _Handover:
    """The batches of an iteration, each noted as received when it is handed out; none is kept."""

    def __init__(self, loader: ImportanceLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._sampler = loader.batch_sampler
        self._batches = batches
        self._number = loader._latest
        self._iteration: int | None = None  # of the sampler, once it has begun
        self._is_over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        # Before anything is taken: persistent workers hand out the batches of the last iteration to all.
        if self._number != self._loader._latest or self._iteration not in (None, self._sampler.iteration):
            raise RuntimeError("another iteration has begun, or a state was loaded: this one cannot go on")
        try:
            batch, pairs = next(self._batches)
        except StopIteration:
            self._is_over = True
            self._loader._received_any = False
            self._sampler.finish()
            raise
        self._iteration = self._sampler.iteration
        self._sampler.receive()
        self._loader._received_any = True
        return batch, *pairs.tensors()


def _check_options(sampler: Any, options: dict[str, Any]) -> None:
    """Refuse what a ``DataLoader`` can do and this one cannot, and say why."""
    if isinstance(sampler, TorchSampler):
        raise TypeError(
            f"sampler is of type {type(sampler).__name__}, one of torch's: must be the name of an avare sampler or one "
            "of them; processes share the draws by distributed=, and Lightning needs use_distributed_sampler=False"
        )
    if options.get("batch_sampler") is not None:
        raise ValueError(
            "batch_sampler is given: this loader has its own; for one of yours build a DataLoader from Indexed, "
            "AvareBatchSampler and IndexedCollate"
        )
    if options.get("shuffle"):
        raise ValueError("shuffle = True: batches are drawn at random anyway; leave it out")
    if options.get("drop_last"):
        raise ValueError("drop_last = True: there is no last batch to drop, for every batch is full; leave it out")
    if options.get("in_order", True) is not True:
        raise ValueError(
            f"in_order = {options['in_order']!r}: batches must come as they were drawn, or a state could not say which "
            "are still to come"
        )
    for name in ("batch_sampler", "shuffle", "drop_last", "in_order"):  # older versions do not know the last
        options.pop(name, None)
