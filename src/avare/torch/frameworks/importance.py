"""The options of a loader, without the data: what every framework takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from torch.utils.data import DataLoader, default_collate

from avare._randomness import Seed
from avare.samplers import Sampler
from avare.torch.loading.loader import ImportanceLoader
from avare.torch.loading.measures import ACCELERATOR
from avare.torch.loading.ranks import Mode
from avare.torch.loading.second_stage import Score
from avare.torch.loading.weighted_batches import check_dataset

_OF_WORKERS = (
    "num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How to draw batches: the options of `ImportanceLoader`, without the data.

    `avare.torch.transformers.ImportanceTrainer` and `avare.torch.lightning.ImportanceCallback` take one; in a plain
    loop call `loader`.

    Parameters
    ----------
    sampler, sampler_options, replacement, seed, distributed, cost_ratio
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
    cost_ratio: float | None = None

    @classmethod
    def checked(cls, importance: Any) -> Self:
        """Return the options that a framework was given, by default ``Importance()``."""
        if not isinstance(importance, cls | None):
            raise TypeError(f"importance is of type {type(importance).__name__}: must be an avare.torch.Importance")
        return importance or cls()

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
