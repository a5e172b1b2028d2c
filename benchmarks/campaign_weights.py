"""Trials of `campaign.py` on weights that change: their law at any scale, interleaved passes, and epochs of streams."""

import gc
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

import avare.torch as avt
from avare.replay import Prioritized
from laws import FALSE_ALARM, chi_square

DRAWS = 4000


def some_weights(generator: np.random.Generator) -> Any:
    """A few weights of any size: all alike, one huge or tiny, some 0, some subnormal."""
    n, centre = int(generator.integers(2, 6)), generator.uniform(-323.0, 300.0)
    exponents = np.clip(
        centre + generator.uniform(0.0, generator.choice([0.0, 2.0, 40.0])) * generator.random(n), -323, 305
    )
    if generator.random() < 0.3:
        exponents[0] = generator.choice([-323.0, -289.0, 0.0, 305.0])
    weights = 10.0**exponents * (generator.random(n) > 0.2)
    weights[-1] = max(weights[-1], 5e-324)
    return weights


def law_of(kept: Any, size: int, replacement: bool) -> dict[tuple[int, ...], float]:
    """The chance of each ordered batch of one or two, from the sums of what is left: shares of the total may be 0."""
    law: dict[tuple[int, ...], float] = {}
    for sample in itertools.product(np.flatnonzero(kept).tolist(), repeat=size):
        chance, left = 1.0, kept.copy()
        for index in sample:
            chance *= left[index] / math.fsum(left) if left[index] else 0.0
            if not replacement:
                left[index] = 0.0
        if chance > 0.0:
            law[sample] = chance
    return law


def weights(generator: np.random.Generator) -> int:
    """Draws follow weights of any size, with and without replacement."""
    given = some_weights(generator)
    replacement, seed = bool(generator.random() < 0.5), int(generator.integers(2**31))
    size = min(2, int(np.count_nonzero(given)))
    law = law_of(given, size, replacement)
    buffer = Prioritized(len(given), alpha=1.0, replacement=replacement, seed=seed)
    buffer.extend(given)
    sampler = avt.WeightedSampler(given, size, replacement, seed=seed)
    found = [
        [tuple(buffer.sample(size)[0].tolist()) for _ in range(DRAWS)],
        [tuple(sampler) for _ in range(DRAWS)],
    ]
    for draws in found:
        rare = {sample for sample, each in law.items() if each * DRAWS < 5.0}
        common = [sample for sample in draws if sample not in rare]
        if sum(law[sample] for sample in rare) * DRAWS < 5.0:  # too few for chi-square: more than 40 is 1 in 10^20
            assert len(draws) - len(common) <= 40, f"{given.tolist()}: rare batches {len(draws) - len(common)} times"
            draws = common
        chance = chi_square(draws, {key: each for key, each in law.items() if draws is not common or key not in rare})
        assert chance > FALSE_ALARM, f"{given.tolist()}, replacement={replacement}: p-value {chance}"
    return DRAWS * len(found)


def passes(generator: np.random.Generator) -> int:
    """Whatever the order in which iterators of one sampler are asked, a pass that ends is complete, or says why not."""
    n, replacement = int(generator.integers(2, 600)), bool(generator.random() < 0.3)
    sampler = avt.WeightedSampler(np.ones(n), replacement=replacement, seed=int(generator.integers(2**31)))
    iterators: list[tuple[Any, list[int]]] = [(iter(sampler), []) for _ in range(int(generator.integers(2, 4)))]
    count = 0
    while iterators:
        place = int(generator.integers(len(iterators)))
        indices, drawn = iterators[place]
        for _ in range(int(generator.integers(1, n + 2))):
            count += 1
            try:
                drawn.append(next(indices))
                continue
            except StopIteration:
                assert len(drawn) == n and (replacement or len(set(drawn)) == n), f"n={n}: {len(set(drawn))} distinct"
            except RuntimeError:
                assert len(drawn) < n, f"n={n}: an error after a complete pass"
            del iterators[place]
            break
    return count


class Numbered(IterableDataset[Any]):  # type: ignore[misc]  # mypy skips torch
    """A stream whose values are its epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[float]:
        return iter([float(self.epoch)] * 12)


def epochs(generator: np.random.Generator) -> int:
    """``set_epoch`` reaches a stream in every epoch, in workers that persist too, after a break and after a resume."""
    workers = int(generator.choice([0, 1, 2]))
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0 and generator.random() < 0.7}

    def make() -> avt.ImportanceLoader:
        return avt.ImportanceLoader(Numbered(), 2, score=lambda batch: batch + 1.0, pool=2, seed=0, **options)

    loader, count = make(), 0
    for _ in range(4):
        if generator.random() < 0.3:
            state, loader = loader.state_dict(), make()
            loader.load_state_dict(state)
        stop = int(generator.integers(1, 9))
        for place, (batch, _, _) in enumerate(loader):
            assert batch.min() == batch.max() == loader.epoch, f"{options}: epoch {loader.epoch}, {batch.tolist()}"
            count += 1
            if place == stop:
                break
    del loader
    gc.collect()  # workers end with their iterator
    return count
