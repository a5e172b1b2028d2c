"""Unbiasedness and Proposition 4 of the paper, by enumeration of all ordered samples."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

import avare
from laws import ordered_samples

N, M, DIMENSION = 5, 3, 4


@pytest.fixture
def gradients() -> NDArray[np.float64]:
    lengths = np.array([0.1, 1.0, 2.0, 5.0, 0.5])
    gradients: NDArray[np.float64] = np.random.default_rng(3).normal(size=(N, DIMENSION)) * lengths[:, None]
    return gradients


@pytest.fixture
def p() -> NDArray[np.float64]:
    return np.array([0.07, 0.11, 0.39, 0.23, 0.2])


def parts(sample: tuple[int, ...], p: NDArray[np.float64], g: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The estimates g_1 ... g_m of the paper's section 5, whose mean is the batch's."""
    estimates = []
    for j, index in enumerate(sample):
        drawn = list(sample[:j])
        q = p[index] / (1.0 - p[drawn].sum())
        estimates.append(g[index] / q + g[drawn].sum(axis=0))
    return estimates


def estimator_variance(p: NDArray[np.float64], g: NDArray[np.float64], replacement: bool) -> float:
    """E || sum_j w_j g_j - sum_i g_i ||^2, exactly."""
    total = 0.0
    for sample, chance in ordered_samples(p, M, replacement):
        indices = list(sample)
        estimate = avare.batch_weights(p[indices], replacement) @ g[indices]
        total += chance * float(np.sum((estimate - g.sum(axis=0)) ** 2))
    return total


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_unbiased(p: NDArray[np.float64], gradients: NDArray[np.float64], replacement: bool, size: int) -> None:
    mean = np.zeros(DIMENSION)
    for sample, chance in ordered_samples(p, size, replacement):
        indices = list(sample)
        mean += chance * (avare.batch_weights(p[indices], replacement) @ gradients[indices])
    assert np.allclose(mean, gradients.sum(axis=0), rtol=1e-12, atol=1e-12)


def test_weights_are_those_of_the_papers_estimator(p: NDArray[np.float64], gradients: NDArray[np.float64]) -> None:
    for sample in itertools.permutations(range(N), M):
        indices = list(sample)
        ours = avare.batch_weights(p[indices], False) @ gradients[indices]
        assert np.allclose(ours, np.mean(parts(sample, p, gradients), axis=0), rtol=1e-12)


def test_proposition_4a_each_part_is_unbiased(p: NDArray[np.float64], gradients: NDArray[np.float64]) -> None:
    means = np.zeros((M, DIMENSION))
    for sample, chance in ordered_samples(p, M, replacement=False):
        means += chance * np.array(parts(sample, p, gradients))
    assert np.allclose(means, gradients.sum(axis=0), rtol=1e-12)


def test_proposition_4b_variances_of_the_parts_add_up(p: NDArray[np.float64], gradients: NDArray[np.float64]) -> None:
    g = gradients.sum(axis=0)
    separate = sum(
        chance * sum(float(np.sum((part - g) ** 2)) for part in parts(sample, p, gradients))
        for sample, chance in ordered_samples(p, M, replacement=False)
    )
    assert np.isclose(estimator_variance(p, gradients, replacement=False), separate / M**2, rtol=1e-12)


def test_proposition_4c_given_the_draws_before_the_best_p_is_proportional_to_the_norms(
    gradients: NDArray[np.float64],
) -> None:
    g, norms = gradients.sum(axis=0), np.linalg.norm(gradients, axis=1)
    best = norms / norms.sum()

    def variance_of_last_part(q: NDArray[np.float64], before: tuple[int, ...], rest: list[int]) -> float:
        known = gradients[list(before)].sum(axis=0)
        return float(sum(q[i] * np.sum((gradients[i] / q[i] + known - g) ** 2) for i in rest))

    generator = np.random.default_rng(0)
    for j in range(M):
        for before in itertools.permutations(range(N), j):
            rest = [i for i in range(N) if i not in before]
            least = variance_of_last_part(best / best[rest].sum(), before, rest)
            for other in generator.dirichlet(np.ones(len(rest)), size=5):
                q = np.zeros(N)
                q[rest] = 0.99 * other + 0.01 / len(rest)
                assert variance_of_last_part(q, before, rest) > least


def test_proposition_4c_as_printed_does_not_hold(gradients: NDArray[np.float64]) -> None:
    # The paper minimises each part by itself, but p also decides what is left for the parts after it.
    norms = np.linalg.norm(gradients, axis=1)
    proportional = estimator_variance(norms / norms.sum(), gradients, replacement=False)
    found = minimize(
        lambda z: estimator_variance(np.exp(z) / np.exp(z).sum(), gradients, replacement=False),
        np.log(norms),
        method="BFGS",
    )
    assert 0.98 * proportional < found.fun < 0.995 * proportional  # better, but not by much


def test_proposition_4d_each_part_varies_less_than_the_one_before(
    p: NDArray[np.float64], gradients: NDArray[np.float64]
) -> None:
    g = gradients.sum(axis=0)
    for j in range(1, M):  # parts j and j + 1, given all drawn before
        for before in itertools.permutations(range(N), j - 1):
            left = 1.0 - p[list(before)].sum()
            rest = [i for i in range(N) if i not in before]
            now = {i: float(np.sum((parts((*before, i), p, gradients)[-1] - g) ** 2)) for i in rest}
            q = {i: p[i] / left for i in rest}
            following = sum(
                q[i] * p[k] / (left - p[i]) * float(np.sum((parts((*before, i, k), p, gradients)[-1] - g) ** 2))
                for i in rest
                for k in rest
                if k != i
            )
            variance = sum(q[i] * now[i] for i in rest)
            promised = (1.0 - sum(q[i] ** 2 for i in rest)) * variance - sum(q[i] ** 2 * now[i] for i in rest)
            assert np.isclose(following, promised, rtol=1e-12)
            assert following < variance


def test_without_replacement_varies_less(p: NDArray[np.float64], gradients: NDArray[np.float64]) -> None:
    assert estimator_variance(p, gradients, replacement=False) < estimator_variance(p, gradients, replacement=True)


def test_a_whole_population_has_no_variance() -> None:
    p = np.array([0.5, 0.3, 0.2])
    weights = avare.batch_weights(p, replacement=False)
    assert np.isclose(weights[-1], 1 / 3)  # each part but the first is known to be the rest
    assert len(avare.Batch(np.arange(3), weights, p)) == 3


def test_no_weights_for_no_draws() -> None:
    assert avare.batch_weights([], replacement=True).shape == (0,)


@pytest.mark.parametrize(
    ("probabilities", "replacement", "error", "message"),
    [
        ([0.5, 0.0], True, ValueError, r"probabilities\[1\] = 0.0"),
        ([1.5], True, ValueError, r"probabilities\[0\] = 1.5"),
        ([0.5, np.nan], True, ValueError, r"probabilities\[1\] = nan"),
        ([0.7, 0.7], False, ValueError, "probabilities sum to 1.4"),
        ([0.5], 1, TypeError, "replacement = 1"),
    ],
)
def test_refuses_bad_input(probabilities: object, replacement: bool, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        avare.batch_weights(probabilities, replacement)  # type: ignore[arg-type]  # the wrong types are the point
