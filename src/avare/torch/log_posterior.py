"""Weighted log-posteriors, for the samplers of the package ``posteriors`` and others that differentiate a function."""

from collections.abc import Callable
from typing import Any

import torch


def log_posterior(
    log_prior: Callable[[Any], torch.Tensor],
    log_likelihood: Callable[[Any, Any], tuple[torch.Tensor, Any]],
    n: int,
) -> Callable[[Any, tuple[Any, Any, torch.Tensor]], tuple[torch.Tensor, Any]]:
    """Build the log-posterior over n, estimated without bias from a batch of an `ImportanceLoader`.

    It is what ``posteriors.sgmcmc`` takes, with ``temperature=1 / n``: a function of the parameters and of a batch that
    returns the value and something else, such as the outputs of the model, for the norms to report.

    Parameters
    ----------
    log_prior : callable
        Log-density of the prior: a function of the parameters.
    log_likelihood : callable
        A function of the parameters and of a batch as the dataset has it, which returns the log-likelihood of each
        example and something else.
    n : int
        Number of examples in the whole dataset.

    Examples
    --------
    >>> def likelihood(mean, values):
    ...     return -0.5 * (values - mean) ** 2, mean
    >>> estimate = log_posterior(lambda mean: -0.5 * mean**2, likelihood, 4)
    >>> batch = torch.tensor([1.0, 2.0]), torch.tensor([0, 3]), torch.tensor([0.5, 1.5])  # as the loader returns it
    >>> estimate(torch.tensor(0.0), batch)
    (tensor(-1.6250), tensor(0.))
    """

    def value(parameters: Any, batch: tuple[Any, Any, torch.Tensor]) -> tuple[torch.Tensor, Any]:
        data, _, weights = batch
        logs, more = log_likelihood(parameters, data)
        if logs.shape != weights.shape:
            shapes = tuple(logs.shape), tuple(weights.shape)
            raise ValueError("log_likelihood returned shape {}: must be one number per example, {}".format(*shapes))
        return (weights * logs).mean() + log_prior(parameters) / n, more

    return value
