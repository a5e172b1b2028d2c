"""Weighted estimators for BlackJAX: unbiased by enumeration, the same as avare's problems, and the example."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import avare

pytest.importorskip("jax")

import jax.numpy as jnp

import avare.jax

ROOT = Path(__file__).parents[2]


def logprior(position):  # type: ignore[no-untyped-def]
    return -0.5 * 0.7 * (position["a"] ** 2).sum() - 0.5 * 0.7 * position["b"] ** 2


def loglikelihood(position, row):  # type: ignore[no-untyped-def]
    return -0.5 * (row["y"] - row["x"] @ position["a"] - position["b"]) ** 2


def test_the_estimate_is_that_of_avares_own_problems() -> None:
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=(30, 2)), "y": generator.normal(size=30)}
    problem = avare.problems.LeastSquares(data["x"], data["y"], l2=0.7, bias=True)
    x = np.array([0.3, -0.2, 0.5])
    position = {"a": jnp.asarray(x[:2]), "b": jnp.asarray(x[2])}
    sampler = avare.Avare(30, 5, initial_norms=generator.random(30), seed=1)
    estimate = avare.jax.grad_estimator(logprior, loglikelihood, 30)
    for _ in range(3):
        batch = sampler.sample()
        weighted = avare.jax.minibatch(data, batch, 30)
        found = estimate(position, weighted)
        gradient, norms = problem.batch_gradient(x, batch.indices, batch.weights)
        expected = -(gradient + 0.7 * x)
        assert np.allclose([*found["a"], found["b"]], expected, rtol=1e-4, atol=1e-3)  # float32
        assert np.allclose(avare.jax.example_norms(loglikelihood)(position, weighted), norms, rtol=1e-4, atol=1e-5)
        assert float(weighted[1].mean()) > 0.0


def test_without_jax_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['jax'] = None\nimport avare.jax"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stderr.strip().endswith("ImportError: avare.jax needs jax: pip install 'avare[jax]'")


@pytest.mark.slow
def test_the_example_with_blackjax() -> None:
    pytest.importorskip("blackjax")
    found = subprocess.run(
        [sys.executable, ROOT / "examples" / "blackjax_sgld.py", "--steps", "1500"],
        capture_output=True,
        text=True,
        check=True,
    )
    uniform, own = found.stdout.splitlines()
    assert uniform.startswith("Uniform: ") and own.startswith("Avare: ")
    assert float(own.split("gain ")[1]) > 1.5


@pytest.mark.slow
def test_the_example_with_posteriors() -> None:
    pytest.importorskip("posteriors")
    found = subprocess.run(
        [sys.executable, ROOT / "examples" / "posteriors_sghmc.py", "--epochs", "2", "--seeds", "2"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "examples",
    )
    assert [line.split(":")[0] for line in found.stdout.splitlines()] == ["Uniform", "Calibrated"]
