"""Losses and norms in one pass, against PyTorch's cross-entropy and `output_norms`, by values and gradients."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import avare.torch as avt
from avare.torch.norms.cross_entropy import losses_and_norms

inf, nan = math.inf, math.nan
SHAPES = st.sampled_from([(), (3,), (1,), (2, 2)])
KINDS = pytest.mark.parametrize("kind", [torch.int64, torch.int32])


def by_torch(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """The sum of the losses of each example."""
    flat = logits.reshape(-1, logits.shape[-1]).to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(flat, target.reshape(-1).long(), reduction="none", label_smoothing=smoothing)
    return losses.view(target.shape).flatten(1).sum(dim=1) if target.ndim > 1 else losses


def compare(logits: Tensor, target: Tensor, smoothing: float = 0.0, rtol: float = 1e-5) -> None:
    """Values and gradients within rounding: sums of some dozen float32 numbers, of order one unless rtol counts."""
    logits = logits.detach().requires_grad_()
    losses, norms = losses_and_norms(logits, target, smoothing)
    wanted = by_torch(logits, target, smoothing)
    assert not norms.requires_grad and norms.dtype == losses.dtype == wanted.dtype
    torch.testing.assert_close(losses, wanted, rtol=rtol, atol=1e-6, equal_nan=True)
    known = avt.output_norms(logits, target, class_dim=-1, label_smoothing=smoothing, not_finite="keep")
    torch.testing.assert_close(norms, known, rtol=1e-5, atol=1e-6, equal_nan=True)
    factors = 1.0 + torch.arange(len(losses), dtype=losses.dtype)  # differ, so that none takes another's place
    (found,) = torch.autograd.grad((factors * losses).sum(), logits)
    (right,) = torch.autograd.grad((factors * wanted).sum(), logits)
    assert found.dtype == logits.dtype
    torch.testing.assert_close(found, right, rtol=max(rtol, 4 * torch.finfo(logits.dtype).eps), atol=1e-6)


@KINDS
@given(
    n=st.integers(0, 5),
    k=st.integers(1, 6),
    more=SHAPES,
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_values_and_gradients(
    kind: torch.dtype, n: int, k: int, more: tuple[int, ...], smoothing: float, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (5.0 * torch.randn(n, *more, k, generator=generator)).to(dtype)
    target = torch.randint(-1, k, (n, *more), generator=generator)
    compare(logits, target.masked_fill(target < 0, -100).to(kind), smoothing)


@KINDS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extreme_logits(kind: torch.dtype, smoothing: float) -> None:
    rows = [
        [1e4, -1e4, 0.0],
        [-1e4, 1e4, 9.0],
        [1e4, 1e4, 1e4],
        [300.0, 200.0, 100.0],
        [1e-30, 0.0, 88.0],
    ]
    if smoothing == 0.0:  # otherwise PyTorch's mean over the classes overflows
        rows.append([3e38, -3e38, 0])
    for own in range(3):
        compare(torch.tensor(rows), torch.full((len(rows),), own, dtype=kind), smoothing)
    large = torch.tensor(rows[:5]).to(torch.bfloat16)
    compare(large, torch.tensor([1, 0, 2, -100, 0], dtype=kind), smoothing)


@KINDS
def test_logits_that_are_not_finite(kind: torch.dtype) -> None:
    rows = torch.tensor([[0.0, -inf, 2.0], [0.0, -inf, 2.0], [inf, 0.0, 1.0], [nan, 0.0, 1.0], [-inf, -inf, -inf]])
    target = torch.tensor([2, 1, 0, 0, 0], dtype=kind)
    losses, norms = losses_and_norms(rows, target)
    assert losses[1] == inf and losses[0].isfinite() and losses[2:].isnan().all()
    assert norms[:2].isfinite().all() and norms[2:].isnan().all()
    compare(rows[:2], target[:2])
    compare(rows[:2], target[:2], smoothing=0.1)  # a class without probability: infinite


@KINDS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_positions_have_no_effect(kind: torch.dtype, smoothing: float) -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, -100, 4, -100], [-100] * 4, [1, 2, 3, -100]], dtype=kind)
    compare(logits, target, smoothing)
    logits[target == -100] = nan
    logits.requires_grad_()
    losses, norms = losses_and_norms(logits, target, smoothing)
    losses.sum().backward()
    assert losses[1] == norms[1] == 0.0 and losses.isfinite().all() and norms.isfinite().all()
    assert logits.grad is not None and (logits.grad[target == -100] == 0.0).all() and logits.grad.isfinite().all()


def test_long_sums_are_accurate() -> None:
    """Within some roundings of the exact sums, which float32 sums in order would miss by hundreds."""
    logits = 3.0 * torch.randn(2, 3000, 7, generator=torch.Generator().manual_seed(0))
    target = torch.randint(7, (2, 3000), generator=torch.Generator().manual_seed(1))
    found, wanted = losses_and_norms(logits, target), losses_and_norms(logits.double(), target)
    for single, double in zip(found, wanted, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=2e-6, atol=0.0)


def test_logits_in_any_layout() -> None:
    logits = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    target = torch.randint(6, (4, 3), generator=torch.Generator().manual_seed(1))
    compare(logits.transpose(1, 2), target)
    compare(logits[::2].transpose(1, 2), target[::2])


@KINDS
@pytest.mark.parametrize("wrong", [7, -1, -101])
def test_refuses_what_is_no_class(kind: torch.dtype, wrong: int) -> None:
    with pytest.raises(
        (IndexError, RuntimeError), match=rf"{wrong}: must be in \[0, 7\)|index {wrong} is out of bounds"
    ):
        losses_and_norms(torch.zeros(2, 3, 7), torch.tensor([[0, 1, 6], [2, wrong, 3]], dtype=kind))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_one_tensor_of_the_size_of_the_logits_is_kept(kind: torch.dtype) -> None:
    logits, kept = torch.zeros(2, 3, 100, dtype=kind, requires_grad=True), []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses_and_norms(logits, torch.zeros(2, 3, dtype=torch.int64))
    assert kept == [600]


def test_gradients_can_be_computed_twice_but_not_differentiated() -> None:
    logits, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 3])
    losses, _ = losses_and_norms(logits, target)
    first, second = (torch.autograd.grad(losses.sum(), logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    with pytest.raises(NotImplementedError, match=r"cannot be differentiated; use torch.nn.functional.cross_entropy"):
        torch.autograd.grad(losses.sum(), logits, create_graph=True)


def test_under_autocast() -> None:
    layer, target = torch.nn.Linear(4, 5), torch.tensor([0, -100, 4])
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        logits = layer(features)
        losses, _ = losses_and_norms(logits, target)
        compare(logits, target)
    assert logits.dtype == torch.bfloat16 and losses.dtype == torch.float32
    losses.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_compiled(smoothing: float) -> None:
    def step(logits: Tensor, target: Tensor) -> Any:
        losses, norms = losses_and_norms(2.0 * logits, target, smoothing)
        return losses.sum(), norms

    target = torch.tensor([[0, -100], [4, 2]])
    for found in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        logits = torch.linspace(-1.0, 1.0, 20).view(2, 2, 5).requires_grad_()
        loss, norms = found(logits, target)
        loss.backward()
        if found is step:
            wanted = loss, norms, logits.grad
    torch.testing.assert_close((loss, norms, logits.grad), wanted)
