"""Weighted log-posteriors: unbiased, and refused if the likelihood is not one number per example."""

import pytest
import torch
from torch.utils.data import TensorDataset

import avare.torch as avt


def test_the_estimate_is_unbiased() -> None:
    values = torch.tensor([1.0, -2.0, 0.5, 4.0])
    mean = torch.tensor(0.3, requires_grad=True)

    def likelihood(mean: torch.Tensor, batch: tuple[torch.Tensor]) -> tuple[torch.Tensor, str]:
        return -0.5 * (batch[0] - mean) ** 2, "more"

    estimate = avt.log_posterior(lambda mean: -0.5 * 3.0 * mean**2, likelihood, 4)
    whole = (-0.5 * (values - 0.3) ** 2).sum() / 4 - 0.5 * 3.0 * 0.09 / 4
    loader = avt.ImportanceLoader(TensorDataset(values), batch_size=2, sampler="Avare", seed=0)
    found = []
    for _ in range(500):
        for batch in loader:
            value, more = estimate(mean, batch)
            assert more == "more"
            found.append(float(value.detach()))
            loader.update(batch[1], (batch[0][0] - 0.3).abs())
    # 1000 estimates of deviation at most 1.5, so five deviations of their mean are 0.24; the value is -2.5.
    assert abs(sum(found) / len(found) - float(whole)) < 0.24
    value.backward()
    assert mean.grad is not None and torch.isfinite(mean.grad)


def test_a_likelihood_of_the_whole_batch_is_refused() -> None:
    estimate = avt.log_posterior(lambda mean: mean, lambda mean, data: (data.sum(), None), 4)
    with pytest.raises(ValueError, match=r"log_likelihood returned shape \(\): must be one number per example, \(2,\)"):
        estimate(torch.tensor(0.0), (torch.ones(2), torch.arange(2), torch.ones(2)))
