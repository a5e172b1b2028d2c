"""Draw from the posterior of a small net with SGHMC of the package `posteriors` and an importance loader.

Prints log-loss, error and calibration error on test data, with importance batches and with uniform ones: means over
seeds, and their standard errors.
"""

import argparse
import math
import warnings

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

import avare.torch as avt
from torch_plain import make_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import posteriors

PRECISION = 1.0  # of the normal prior


def net(seed: int) -> nn.Module:
    """Make the net."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))


def calibration_error(probabilities: torch.Tensor, labels: torch.Tensor, bins: int = 10) -> float:
    """Return the mean distance between confidence and accuracy, over bins of confidence."""
    confidence, chosen = probabilities.max(dim=1)
    places = (confidence * bins).long().clamp(max=bins - 1)
    right = (chosen == labels).float()
    total = sum(abs(float((right - confidence)[places == k].sum())) for k in range(bins))
    return total / len(labels)


def run(sampler: str, epochs: int = 20, step_size: float = 0.02, seed: int = 0) -> tuple[float, float, float]:
    """Return log-loss, error and calibration error of the mean prediction of the draws of the second half."""
    whole = make_dataset(5000)
    train, (rows, labels) = TensorDataset(*whole[:4000]), whole[4000:]
    model = net(seed)

    def log_prior(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return -0.5 * PRECISION * sum((each**2).sum() for each in parameters.values())

    def log_likelihood(
        parameters: dict[str, torch.Tensor], batch: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        logits = functional_call(model, parameters, (batch[0],))
        return -nn.functional.cross_entropy(logits, batch[1], reduction="none"), logits

    n = len(train)
    loader = avt.ImportanceLoader(train, batch_size=32, sampler=sampler, seed=seed)
    chain = posteriors.sgmcmc.sghmc.build(
        avt.log_posterior(log_prior, log_likelihood, n), lr=step_size, alpha=1.0, temperature=1.0 / n
    )
    state = chain.init({name: each.detach() for name, each in model.named_parameters()})
    total, draws = torch.zeros(len(labels), 10), 0
    for epoch in range(epochs):
        for batch in loader:
            state, logits = chain.update(state, batch)
            loader.update(batch[1], avt.output_norms(logits, batch[0][1]))
        if epoch >= epochs // 2:
            total += functional_call(model, dict(state.params), (rows,)).detach().softmax(dim=1)
            draws += 1
    mean = total / draws
    loss = nn.functional.nll_loss(mean.clamp_min(1e-12).log(), labels)
    return float(loss), float((mean.argmax(dim=1) != labels).float().mean()), calibration_error(mean, labels)


def main() -> None:
    """Compare importance batches with uniform ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--step-size", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    for sampler in ("Uniform", "Calibrated"):
        found = torch.tensor(
            [run(sampler, arguments.epochs, arguments.step_size, seed) for seed in range(arguments.seeds)]
        )
        (loss, error, calibration), errors = found.mean(dim=0).tolist(), [0.0] * 3
        if arguments.seeds > 1:
            errors = (found.std(dim=0) / math.sqrt(arguments.seeds)).tolist()
        print(
            f"{sampler}: log-loss {loss:.4f} ± {errors[0]:.4f}, error {error:.2%} ± {errors[1]:.2%}, "
            f"calibration error {calibration:.2%} ± {errors[2]:.2%}"
        )


if __name__ == "__main__":
    main()
