"""``update`` with one number for the batch. See `laws` for the enumeration."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare
import avare.torch as avt
from laws import ordered_samples

N, SIZE = 6, 2


def trained(sampler: str, steps: int = 9) -> avt.ImportanceLoader:
    """A loader that has received the mean of x² over each of some batches."""
    loader = avt.ImportanceLoader(TensorDataset(torch.arange(float(N))), SIZE, sampler=sampler, seed=3)
    while steps > 0:
        for (x,), index, _ in loader:
            loader.update(index, (1.0 + x**2).mean())
            steps -= 1
    return loader


@pytest.mark.parametrize("sampler", ["Calibrated", "Avare"])
def test_the_weighted_mean_is_unbiased(sampler: str) -> None:
    # By enumeration of all batches: the loader's weights are those of the probabilities that the number has changed.
    loader = trained(sampler)
    p = loader.importance_sampler.probabilities()
    assert p.max() > 1.2 * p.min()  # it has learned something
    values = np.array([3.0, -1.0, 0.5, 7.0, 2.0, 11.0])
    mean = 0.0
    for batch, chance in ordered_samples(p, SIZE, replacement=False):
        weights = avare.batch_weights(p[list(batch)], replacement=False)
        mean += chance * (weights * values[list(batch)]).sum() / N
    assert mean == pytest.approx(values.mean(), rel=1e-12)
    for _, index, weight in loader:
        expected = SIZE * avare.batch_weights(p[index.numpy()], replacement=False) / N
        assert np.allclose(weight, expected, rtol=1e-6)
        break


@pytest.mark.parametrize("sampler", ["Calibrated", "Avare", "Passes"])
@pytest.mark.parametrize("number", [7.5, torch.tensor(7.5, requires_grad=True), np.float32(7.5), torch.tensor(15 / 2)])
def test_remembered_norms_move_halfway(sampler: str, number: Any) -> None:
    loader = avt.ImportanceLoader(TensorDataset(torch.arange(4.0)), 4, sampler=sampler, seed=0)
    _, index, _ = next(iter(loader))
    loader.update(index, number)  # nothing is remembered yet
    memory = loader.importance_sampler
    assert memory.norms().tolist() == [7.5] * 4
    loader.update(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    loader.update(torch.arange(4), number)  # their mean is 2.5, so that half of the way is twice the norm
    assert np.allclose(memory.norms(np.array([3, 0])), [8.0, 2.0], rtol=1e-6)
    loader.update(torch.arange(4), 0.0)
    assert np.allclose(memory.norms(), [1.0, 2.0, 3.0, 4.0], rtol=1e-6)


def test_samplers_without_a_memory_take_the_number_for_each() -> None:
    loaders = [avt.ImportanceLoader(TensorDataset(torch.arange(8.0)), 4, sampler="Mabs", seed=0) for _ in range(2)]
    for one, each in ((True, loaders[0]), (False, loaders[1])):
        for _, index, _ in each:
            each.update(index, 3.0 if one else torch.full((4,), 3.0))
    p = [each.importance_sampler.probabilities().tolist() for each in loaders]
    assert p[0] == p[1]


@pytest.mark.parametrize("number", [-0.5, math.nan, math.inf, torch.tensor(math.nan)])
def test_refuses_a_bad_number_and_changes_nothing(number: Any) -> None:
    loader = trained("Calibrated")
    (_, index, _), before = next(iter(loader)), loader.importance_sampler.probabilities()
    with pytest.raises(ValueError, match=r"norms\[0\] = (-0.5|nan|inf): must be finite and not negative"):
        loader.update(index, number)
    if not math.isfinite(number):
        loader.update(index, number, not_finite="skip")
    assert loader.importance_sampler.probabilities().tolist() == before.tolist()


def test_refuses_what_is_not_a_number() -> None:
    loader = trained("Calibrated")
    _, index, _ = next(iter(loader))
    with pytest.raises(TypeError, match="norms has dtype"):
        loader.update(index, "3")
    with pytest.raises(ValueError, match=r"index\[0\] = 9"):
        loader.update([9], 1.0)
