"""Every sampler, every property."""

import copy
import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import avare
import two_stages
from avare.samplers import Sampler, get, names
from sampler_checks import Make, SamplerChecks, by_name, own_names
from sorted_norms import PaperAvare

pytestmark = pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")


def floored(n: int, batch_size: int = 128, **arguments: Any) -> Sampler:
    return avare.Avare(n, batch_size, delta=0.7, c=3.0 * n, p_min=0.4 / max(n, 1), memory=0.4, **arguments)


def averaged_passes(n: int, batch_size: int = 128, **arguments: Any) -> Sampler:
    return avare.Passes(n, batch_size, memory=0.3, **arguments)


def averaged_cells(n: int, batch_size: int = 128, **arguments: Any) -> Sampler:
    return avare.Calibrated(n, batch_size, memory=0.6, **arguments)


def unlimited(n: int, batch_size: int = 128, **arguments: Any) -> Sampler:
    return avare.Vrb(n, batch_size, **arguments)


class TestEverySampler(SamplerChecks):
    samplers: ClassVar[dict[str, Make]] = {
        **{name: by_name(name) for name in own_names()},
        "Avare on sorted norms": PaperAvare,
        "Avare with a lasting floor and averages": floored,
        "Passes with averages": averaged_passes,
        "Calibrated with averages": averaged_cells,
        "Vrb without limits": unlimited,
    }

    def law_of(self, sampler: Sampler) -> dict[tuple[int, ...], float]:
        p, size = sampler.probabilities(), sampler.batch_size
        if isinstance(sampler, avare.Stratified):
            copy.deepcopy(sampler).sample()
            twin = copy.deepcopy(sampler)
            twin.sample()
            starts = twin._groups.starts
            members = [twin._groups.order[starts[k] : starts[k + 1]].tolist() for k in range(size)]
            return {sample: math.prod(size * p[i] for i in sample) for sample in itertools.product(*members)}
        if isinstance(sampler, avare.Passes):
            begun = copy.deepcopy(sampler)
            begun.sample()
            return two_stages.thinned_law(p, int(begun._progress[1]), size)
        if isinstance(sampler, avare.Mixture):
            rows = list(zip(sampler.mixture, sampler.components, strict=True))
            return {
                sample: sum(v * math.prod(row[i] for i in sample) for v, row in rows)
                for sample in itertools.product(range(sampler.n), repeat=size)
            }
        return super().law_of(sampler)

    def weights_of(self, sampler: Sampler, p: NDArray[np.float64], indices: list[int]) -> NDArray[np.float64]:
        if isinstance(sampler, avare.Uniform):
            return np.full(len(indices), sampler.n / len(indices))
        if isinstance(sampler, avare.Stratified | avare.Passes):
            return avare.batch_weights(p[indices], replacement=True)
        return super().weights_of(sampler, p, indices)


def test_names_are_public() -> None:
    assert names() == sorted(names())
    for name in own_names():
        assert getattr(avare, name) is get(name)
    with pytest.raises(ValueError, match="name = 'Best': must be one of Avare"):
        get("Best")
