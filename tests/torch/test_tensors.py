"""Tensors where arrays are expected: the obvious conversion, or a clear sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import avare
from avare import _validation as validation

NORMS = [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_norms_of_any_kind_are_converted(dtype: torch.dtype) -> None:
    # 0.5, 1 and 2 are exact in all of them.
    tensor = torch.tensor(NORMS, dtype=torch.float32).to(dtype)
    sampler, twin = avare.Avare(5, 3, seed=0), avare.Avare(5, 3, seed=0)
    sampler.update(torch.tensor([0, 3, 4]), tensor)
    twin.update([0, 3, 4], NORMS)
    assert sampler.norms().tolist() == twin.norms().tolist()


def test_norms_with_a_gradient_are_detached() -> None:
    tensor = torch.tensor(NORMS, requires_grad=True)
    sampler = avare.Calibrated(5, 3, seed=0)
    sampler.update(np.array([0, 3, 4]), tensor * 2.0)
    assert sampler.norms()[[0, 3, 4]].tolist() == [1.0, 2.0, 4.0]
    X = torch.randn(6, 2, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    problem = avare.problems.Logistic(X, y)
    assert problem.n == 6 and problem.objective(torch.zeros(2, requires_grad=True)) == pytest.approx(6 * np.log(2.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.tensor(NORMS).to_sparse(), "norms is a tensor that cannot be an array: .*to_dense"),
        (lambda: torch.ones(3, 1).to_sparse_csr(), "norms is a tensor that cannot be an array: .*Sparse"),
        (lambda: torch.ones(3, device="meta"), "norms is a tensor that cannot be an array: .*no data"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_what_has_no_values_is_refused(make: Callable[[], Any], message: str) -> None:
    sampler = avare.Avare(5, 3, seed=0)
    with pytest.raises(TypeError, match=message):
        sampler.update([0, 3, 4], make())
    with pytest.raises(TypeError, match=message.replace("norms", "X")):
        avare.problems.LeastSquares(make(), NORMS)
    assert not sampler.norms().any()


def test_anything_else_is_unchanged() -> None:
    values = [1.0, 2.0]
    assert validation.from_tensor("norms", values) is values
