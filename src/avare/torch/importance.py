"""The options of importance sampling, once for all frameworks; and the weighted loss of a batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from avare._randomness import Seed
from avare.samplers import Sampler
from avare.torch.batch_sampler import DEFAULT_SAMPLER, Values
from avare.torch.distributed import Mode
from avare.torch.loader import ImportanceLoader
from avare.torch.pool import ScoreMode


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How to draw batches: the options of `ImportanceLoader`, without the data.

    `avare.torch.transformers.ImportanceTrainer` and `avare.torch.lightning.ImportanceCallback` take one; in a plain
    loop call `loader`.

    Parameters
    ----------
    sampler, sampler_options, replacement, seed, distributed, score_mode, cost_ratio
        See `ImportanceLoader`. With None as seed, the frameworks use theirs.
    pool
        "auto", or a number of batches: see `ImportanceLoader`. None never draws a pool: batches come straight from the
        sampler.

    Examples
    --------
    >>> importance = Importance(sampler="Avare", seed=0)
    >>> loader = importance.loader(["ada", "bo", "cy", "dee"], 2)
    >>> len(loader), loader.importance_sampler.batch_size
    (2, 2)
    """

    sampler: str | Sampler = DEFAULT_SAMPLER
    sampler_options: Mapping[str, Any] | None = None
    replacement: bool | None = None
    seed: Seed = None
    distributed: Mode = "auto"
    pool: float | Literal["auto"] | None = "auto"
    score_mode: ScoreMode = None
    cost_ratio: float | None = None

    def loader(
        self, dataset: Any, batch_size: int, *, score: Callable[[Any], Values] | None = None, **options: Any
    ) -> ImportanceLoader:
        """Make a loader with these options.

        Parameters
        ----------
        dataset, batch_size, score
            See `ImportanceLoader`. Without a pool, `score` is not used.
        **options
            For the loader: collate_fn, num_workers, ...
        """
        if self.pool is not None:
            options |= {"score": score, "pool": self.pool}
            options |= {"score_mode": self.score_mode, "cost_ratio": self.cost_ratio}
        given = isinstance(self.sampler, Sampler)
        return ImportanceLoader(
            dataset,
            batch_size,
            sampler=self.sampler,
            sampler_options=self.sampler_options,
            replacement=self.replacement,
            distributed=self.distributed,
            **{"seed": self.seed if not given else None, **options},
        )


def weighted_mean(loss: Tensor, weight: Tensor) -> Tensor:
    """Return the loss to train on: the mean over the batch of weight times loss. O(batch size).

    It estimates the mean loss over the dataset, without bias.

    Parameters
    ----------
    loss
        The loss of each example, of shape (batch,), as with ``reduction="none"``.
    weight
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
    return (weight.to(loss) * loss).mean()
