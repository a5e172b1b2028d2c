"""Which sampler a loader draws with: the default, one given by its name, or an object."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from avare import _validation as validation
from avare import samplers
from avare._randomness import Seed
from avare.samplers import Calibrated, Passes, Sampler
from avare.torch.loading.ranks import Ranks

_OWN = ("n", "batch_size", "replacement", "seed")  # arguments of samplers that a loader has itself


def default_sampler(replacement: bool | None, options: Mapping[str, Any], *, has_pool: bool) -> str:
    """Return the name of the sampler if none is given: `Passes`, unless something is asked for that it cannot do.

    Its passes take no pools and no draws with replacement, and its only option is ``least``. The other choice is
    `Calibrated`; an option that neither has is a ``ValueError``.

    >>> default_sampler(None, {}, has_pool=False), default_sampler(None, {"decay": 0.99}, has_pool=False)
    ('Passes', 'Calibrated')
    """
    known = [*Passes.hyperparameters, *inspect.signature(Calibrated).parameters]
    for option in options:
        validation.choice("sampler_options", option, [each for each in known if each not in _OWN])
    fits = not has_pool and not replacement and set(options) <= set(Passes.hyperparameters)
    return (Passes if fits else Calibrated).__name__


def build_sampler(
    ranks: Ranks, sampler: str | Sampler, options: dict[str, Any], replacement: bool | None, n: int, seed: Seed
) -> Sampler:
    """Build the sampler of a name, or check the one that was passed."""
    draws = ranks.draws
    if isinstance(sampler, Sampler):
        if options or replacement is not None or seed is not None:
            raise ValueError("sampler_options, replacement and seed are for a sampler given by its name")
        for name, found, wanted in (("n", sampler.n, n), ("batch_size", sampler.batch_size, draws)):
            if found != wanted:
                raise ValueError(f"sampler has {name} = {found}: must have {wanted}, what this process draws")
        return sampler
    kind = samplers.get(validation.choice("sampler", sampler, samplers.names()))
    for need in set(kind.needs) - set(options):
        raise ValueError(f"sampler = {sampler!r} needs {need}: pass sampler_options={{{need!r}: ...}}")
    if replacement is None:
        replacement = kind.with_replacement_only
    fewest = ranks.total // ranks.world if ranks.is_sharded else n  # so that all ranks raise an error
    if not replacement and draws > fewest:
        raise ValueError(
            f"batch_size = {ranks.batch_size}: {draws} of {fewest} examples cannot be drawn without replacement; pass "
            "a smaller one, or replacement=True"
        )
    if ranks.is_sharded and isinstance(seed, int | np.integer):
        seed = np.random.SeedSequence(int(seed), spawn_key=(ranks.rank,))
    return samplers.build(sampler, n, draws, replacement=replacement, lasting_floor=True, seed=seed, **options)
