"""The closed forms, against a backward pass for each example."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import avare.torch as avt

nan, inf = math.nan, math.inf
sizes = st.integers(0, 5)


def by_autograd(loss: Callable[..., Tensor], output: Tensor, target: Tensor, **options: Any) -> Tensor:
    """The norm of the gradient of each example's summed loss."""
    result = []
    for j in range(len(output)):
        leaf = output[j : j + 1].detach().double().requires_grad_()
        each = target[j : j + 1]
        each = each.double() if each.is_floating_point() else each
        (gradient,) = torch.autograd.grad(loss(leaf, each, reduction="none", **options).sum(), leaf)
        result.append(gradient.norm())
    return torch.stack(result) if result else torch.zeros(0, dtype=torch.float64)


def close(found: Tensor, wanted: Tensor) -> bool:
    """Within float32's rounding of some dozen numbers, all of order one."""
    assert found.shape == wanted.shape
    return bool(torch.allclose(found.double(), wanted.double(), rtol=1e-5, atol=1e-6))


@given(sizes, st.integers(1, 6), st.sampled_from([(), (3,), (2, 2)]), st.floats(0.0, 1.0), st.booleans())
def test_cross_entropy(n: int, k: int, more: tuple[int, ...], smoothing: float, soft: bool) -> None:
    generator = torch.Generator().manual_seed(n + 10 * k)
    output = 3.0 * torch.randn(n, k, *more, generator=generator)
    options: dict[str, Any] = {"label_smoothing": smoothing}
    if soft:
        target = torch.softmax(torch.randn(n, k, *more, generator=generator), dim=1)
    else:
        target = torch.randint(0, k, (n, *more), generator=generator)
        target[1::3] = -100
    wanted = by_autograd(functional.cross_entropy, output, target, **options)
    found = avt.output_norms(output.requires_grad_(), target, **options)
    assert close(found, wanted)
    weight = torch.rand(k, generator=generator) + 0.5
    own = partial(functional.cross_entropy, weight=weight, reduction="none", **options)
    wanted = by_autograd(functional.cross_entropy, output, target, weight=weight.double(), **options)
    with torch.no_grad():  # a function of one's own, as in score=
        assert close(avt.output_norms(output, target, loss=own), wanted)
    assert not found.requires_grad and found.dtype == torch.float32
    if not soft and not more:
        assert (found[1::3] == 0.0).all()


@pytest.mark.parametrize("more", [(), (3,), (2, 2)])
@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_class_indices_of_any_type_give_the_same(more: tuple[int, ...], kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    output = 4.0 * torch.randn(6, 5, *more, generator=generator)
    target = torch.randint(0, 5, (6, *more), generator=generator)
    before = output.clone()
    # Few logits with int64 are read in one loop, others by operations, which round differently.
    assert close(avt.output_norms(output, target.to(kind)), avt.output_norms(output, target))
    assert torch.equal(output, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_logits_or_strided_ones_give_the_same_as_few(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    output = (2.0 * torch.randn(14_000, 5, generator=generator)).to(dtype)
    target = torch.randint(0, 5, (14_000,), generator=generator)
    few = torch.cat([avt.output_norms(output[k : k + 1000], target[k : k + 1000]) for k in range(0, 14_000, 1000)])
    assert few.dtype == dtype
    assert close(avt.output_norms(output, target), few)
    assert close(avt.output_norms(output[:60].T.contiguous().T, target[:60]), few[:60])
    assert close(avt.output_norms(output[:60:2], target[:60:2]), few[:60:2])


def test_the_small_norms_of_fitted_examples_are_accurate() -> None:
    output = torch.tensor([[30.0, 0.0], [40.0, 0.0]])  # their squares are still in the range of float32
    wanted = math.sqrt(2.0) * torch.tensor([-30.0, -40.0]).exp()
    torch.testing.assert_close(avt.output_norms(output, torch.tensor([0, 0])), wanted, rtol=1e-5, atol=0.0)


@given(sizes, st.sampled_from([(), (1,), (4,), (2, 3)]))
def test_binary_and_squared(n: int, more: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(n)
    output = 3.0 * torch.randn(n, *more, generator=generator)
    hard = torch.randint(0, 2, (n, *more), generator=generator)
    soft = torch.rand(n, *more, generator=generator)
    loss = functional.binary_cross_entropy_with_logits
    for target in (soft, hard.float(), hard, hard.bool()):
        found = avt.output_norms(output, target, loss="binary")
        assert close(found, by_autograd(loss, output, target.double()))
    found = avt.output_norms(output, soft, loss="squared")
    assert close(found, by_autograd(functional.mse_loss, output, soft))


def test_a_column_is_a_vector_and_is_never_broadcast() -> None:
    output, target = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.0, 1.0, 1.0])
    wanted = torch.tensor([2.0, 2.0, 6.0])
    assert torch.equal(avt.output_norms(output, target, loss="squared"), wanted)
    assert torch.equal(avt.output_norms(output[:, 0], target[:, None], loss="squared"), wanted)


@given(sizes, st.integers(0, 4), st.integers(1, 4), st.booleans(), st.sampled_from(["cross_entropy", "squared"]))
def test_last_layer(n: int, width: int, k: int, bias: bool, loss: Any) -> None:
    torch.manual_seed(n + 10 * width)
    layer = nn.Linear(max(width, 1), k, bias=bias)
    features = torch.randn(n, max(width, 1))
    target = torch.randint(0, k, (n,)) if loss == "cross_entropy" else torch.randn(n, k)
    function = functional.cross_entropy if loss == "cross_entropy" else functional.mse_loss
    wanted = []
    for j in range(n):
        value = function(layer(features[j : j + 1]), target[j : j + 1], reduction="none").sum()
        wanted.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(layer.parameters()))]).norm())
    found = avt.last_layer_norms(features, layer(features), target, loss, bias=bias)
    assert close(found, torch.stack(wanted) if wanted else torch.zeros(0))


def test_last_layer_with_one_output() -> None:
    features, output, target = torch.tensor([[2.0], [1.0]]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    found = avt.last_layer_norms(features, output, target, loss="binary")
    assert close(found, torch.tensor([0.5 * math.sqrt(5.0), 0.5 * math.sqrt(2.0)]))


def test_any_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    losses: list[Callable[..., Tensor]] = [functional.huber_loss, functional.l1_loss, functional.mse_loss]
    for shape in ((4, 3, 2), (4, 3), (4,), (1, 5), (0, 2)):
        output = (3.0 * torch.randn(shape, generator=generator)).requires_grad_()
        target = torch.randn(shape, generator=generator)
        for loss in losses:
            (gradient,) = torch.autograd.grad(loss(output, target, reduction="sum"), output)
            assert close(avt.from_output_grad(gradient), by_autograd(loss, output, target))
    assert torch.equal(avt.from_output_grad(torch.tensor([-2.0, 0.5])), torch.tensor([2.0, 0.5]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_precision(dtype: torch.dtype) -> None:
    output = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    target = torch.arange(6) % 5
    found = avt.output_norms(output, target.int())
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert close(found, by_autograd(functional.cross_entropy, output, target))


def test_masked_logits() -> None:
    output = torch.tensor([[0.0, -inf, 1.0], [-inf, 2.0, 2.0]])
    found = avt.output_norms(output, torch.tensor([0, 1]))
    p = 1.0 / (1.0 + math.exp(-1.0))
    assert close(found, torch.tensor([p * math.sqrt(2.0), 0.5 * math.sqrt(2.0)]))


def test_values_that_are_not_finite_can_be_kept() -> None:
    output = torch.tensor([[0.0, 1.0], [nan, 1.0], [inf, 0.0], [2.0, 1.0]])
    for target in (torch.tensor([0, 0, 1, 1]), torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])):
        found = avt.output_norms(output, target, not_finite="keep")
        good = torch.tensor([0, 3])
        assert torch.isfinite(found).tolist() == [True, False, False, True]
        assert close(found[good], avt.output_norms(output[good], target[good]))
    last = avt.last_layer_norms(
        torch.tensor([[1.0], [1.0], [1.0], [inf]]), output, labels[[0, 0, 1, 1]], not_finite="keep"
    )
    assert torch.isfinite(last).tolist() == [True, False, False, False]
    losses: tuple[Any, ...] = ("binary", "squared")
    for loss in losses:
        found = avt.output_norms(torch.tensor([1.0, nan]), torch.tensor([0.0, 1.0]), loss, not_finite="keep")
        assert torch.isfinite(found).tolist() == [True, False]
    assert avt.from_output_grad(torch.tensor([[3.0, 4.0], [inf, 0.0]]), not_finite="keep").tolist() == [5.0, inf]


@given(
    st.integers(1, 4),
    st.integers(0, 7),
    st.floats(0.0, 0.5),
)
def test_sequences(n: int, length: int, smoothing: float) -> None:
    """Logits as language models return them, labels of -100, against autograd on the loss."""
    generator = torch.Generator().manual_seed(n + 10 * length)
    output = 3.0 * torch.randn(n, length, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 5, (n, length), generator=generator)
    target[torch.rand(n, length, generator=generator) < 0.4] = -100
    target[:1] = -100
    features = torch.randn(n, length, 3, generator=generator, dtype=torch.float64)
    counts = (target != -100).sum(dim=1)
    options: dict[str, Any] = {"label_smoothing": smoothing}
    found = avt.output_norms(output, target, class_dim=-1, **options)
    second = avt.output_norms(output.movedim(-1, 1).contiguous(), target, **options)
    last = avt.last_layer_norms(features, output, target, class_dim=-1, **options)
    wanted, bounds = [], []
    for j in range(n):
        leaf = output[j].clone().requires_grad_()
        losses = functional.cross_entropy(leaf, target[j], label_smoothing=smoothing, reduction="sum")
        (gradient,) = torch.autograd.grad(losses, leaf)
        wanted.append(gradient.norm())
        sizes = (features[j].square().sum(dim=1) + 1.0).sqrt()
        bounds.append((gradient.norm(dim=1) * sizes).sum())
        exact = torch.cat([features[j], torch.ones(length, 1)], dim=1).mT.double() @ gradient  # of weight and bias
        assert last[j] >= exact.norm() - 1e-9
        if counts[j] == 1:
            torch.testing.assert_close(last[j], exact.norm())
    torch.testing.assert_close(found, torch.stack(wanted))
    torch.testing.assert_close(second, torch.stack(wanted))
    torch.testing.assert_close(last, torch.stack(bounds))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dimension", [-1, 1])
def test_more_logits_than_are_read_at_a_time(smoothing: float, dimension: int) -> None:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(5, 40, 4000, generator=generator)
    target = torch.randint(0, 4000, (5, 40), generator=generator)
    target[1, 3:] = -100
    options: dict[str, Any] = {"label_smoothing": smoothing, "class_dim": dimension}
    placed = output.movedim(-1, dimension).contiguous()
    parts = [avt.output_norms(placed[j : j + 1], target[j : j + 1], **options) for j in range(5)]
    torch.testing.assert_close(avt.output_norms(placed, target, **options), torch.cat(parts), rtol=1e-5, atol=0.0)


def test_sequences_in_half_precision_and_positions_that_do_not_count() -> None:
    output = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(2)).bfloat16()
    target = torch.tensor([[1, 2, -100, 0], [-100] * 4, [5, -100, -100, 3]])
    output[:, 2] = nan  # where no target counts: not read
    found = avt.output_norms(output, target, class_dim=-1)
    whole = avt.output_norms(output.float().nan_to_num(), target, class_dim=-1)
    assert found.dtype == torch.float32 and found[1] == 0.0
    assert torch.equal(found, whole)
    assert torch.equal(avt.output_norms(output[:, 2], target[:, 2]), torch.zeros(3))  # one position each
    output[0, 1, 3] = inf
    assert torch.isfinite(avt.output_norms(output, target, class_dim=-1, not_finite="keep")).tolist() == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("ignored", [0.0, 0.3, 1.0])
def test_sequences_in_any_layout_give_the_same(ignored: float) -> None:
    generator = torch.Generator().manual_seed(3)
    output = 5.0 * torch.randn(4, 9, 7, generator=generator)
    target = torch.randint(7, (4, 9), generator=generator)
    target[torch.rand(4, 9, generator=generator) < ignored] = -100
    apart = output.movedim(-1, 0).contiguous().movedim(0, -1)
    found = avt.output_norms(output, target, class_dim=-1)
    torch.testing.assert_close(found, avt.output_norms(apart, target, class_dim=-1))
    target[2, 4] = 7
    for logits in (output, apart):
        with pytest.raises(ValueError, match=r"target\[2, 4\] = 7: must be in \[0, 7\)"):
            avt.output_norms(logits, target, class_dim=-1)


two, labels = torch.zeros(2, 3), torch.tensor([0, 1])
three = torch.zeros(2, 3, 1)


def any_of(value: Any) -> Any:
    """A value that the types forbid."""
    return value


def wrong(place: tuple[int, ...], value: float, shape: tuple[int, ...] = (2, 3)) -> Tensor:
    result = torch.zeros(shape)
    result[place] = value
    return result


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: avt.output_norms(wrong((1, 2), nan), labels), r"output\[1, 2\] = nan: must be finite"),
        (lambda: avt.output_norms(wrong((1, 0), inf), labels), r"output\[1, 0\] = inf"),
        (lambda: avt.output_norms(torch.full((1, 2), -inf), torch.tensor([0])), r"output\[0, 0\] = -inf"),
        (lambda: avt.output_norms(two, torch.tensor([[0, 1, 0], [0, nan, 0]])), r"target\[1, 1\] = nan"),
        (
            lambda: avt.output_norms(two, torch.tensor([[0, 1.0, 0], [0, 0, 0]])),
            r"target\[1\] has the sum 0: .*'binary'",
        ),
        (lambda: avt.output_norms(two, torch.tensor([[0, 1.0, 1.0], [1, 0, 0]])), r"target\[0\] has the sum 2"),
        (lambda: avt.output_norms(wrong((0,), nan, (2,)), torch.ones(2), "binary"), r"output\[0\] = nan"),
        (lambda: avt.output_norms(two, wrong((0, 2), nan), "squared"), r"target\[0, 2\] = nan"),
        (lambda: avt.output_norms(wrong((1, 1), 1e30), two, "squared"), r"example 1 is too large for torch.float32"),
        (lambda: avt.output_norms(two, torch.tensor([0, 3])), r"target\[1\] = 3: must be in \[0, 3\)"),
        (lambda: avt.output_norms(two, torch.tensor([-1, 0])), r"target\[0\] = -1: must be in \[0, 3\)"),
        (lambda: avt.output_norms(two, torch.tensor([0])), r"target has shape \(1,\): class indices must have \(2,\)"),
        (lambda: avt.output_norms(two, torch.zeros(2)), r"target has shape \(2,\): class probabilities must have"),
        (lambda: avt.output_norms(torch.zeros(3), labels), r"output has shape \(3,\): must be \(batch, classes\)"),
        (lambda: avt.output_norms(torch.tensor(1.0), labels), r"output has shape \(\)"),
        (lambda: avt.output_norms(two, labels, label_smoothing=1.5), "label_smoothing = 1.5: must be at most 1"),
        (lambda: avt.output_norms(two, two, "squared", label_smoothing=0.1), "label_smoothing and class_dim are for"),
        (lambda: avt.output_norms(two, two + 2.0, "binary"), r"target\[0, 0\] = 2.0: must be in \[0, 1\]"),
        (lambda: avt.output_norms(two, torch.zeros(2), "binary"), r"target has shape \(2,\): must match output"),
        (lambda: avt.output_norms(torch.zeros(3), torch.zeros(1, 3), "squared"), r"target has shape \(1, 3\)"),
        (
            lambda: avt.output_norms(two, labels, any_of("hinge")),
            "loss = 'hinge': must be a function, or one of 'cross_entropy', ",
        ),
        (
            lambda: avt.last_layer_norms(torch.zeros(3, 4), two, labels),
            r"features has shape \(3, 4\): must have \(2, features\)",
        ),
        (lambda: avt.last_layer_norms(torch.zeros(2), two, labels), r"features has shape \(2,\)"),
        (lambda: avt.last_layer_norms(two, torch.zeros(2, 3, 1), torch.zeros(2, 3, 1), "squared"), "use GradientNorms"),
        (lambda: avt.last_layer_norms(two, torch.zeros(2, 3, 1), labels[:, None]), r"must have \(2, 1, features\)"),
        (
            lambda: avt.last_layer_norms(torch.zeros(2, 4, 3), three, labels[:, None]),
            r"must have \(2, 1, features\), as target",
        ),
        (lambda: avt.output_norms(three, torch.tensor([[0], [3]])), r"target\[1, 0\] = 3: must be in \[0, 3\)"),
        (lambda: avt.output_norms(wrong((1, 2, 0), nan, (2, 3, 1)), labels[:, None]), r"output\[1, 2, 0\] = nan"),
        (lambda: avt.output_norms(two, labels, class_dim=0), "class_dim = 0: that is the batch"),
        (
            lambda: avt.output_norms(two, labels, reduction=cast(Any, "max")),
            "reduction = 'max': must be 'sum', 'mean' or 'all'",
        ),
        (lambda: avt.output_norms(two, two, lambda z, y: z, reduction="mean"), "'sum' for a loss of your own"),
        (lambda: avt.output_norms(two, two, "squared", class_dim=-1), "label_smoothing and class_dim are for"),
        (lambda: avt.last_layer_norms(wrong((1, 0), nan), two, labels), r"features\[1, 0\] = nan"),
        (lambda: avt.from_output_grad(wrong((0, 1), nan)), r"grad\[0, 1\] = nan"),
        (lambda: avt.from_output_grad(torch.tensor(1.0)), r"grad has shape \(\)"),
        (
            lambda: avt.from_output_grad(two, not_finite=any_of("skip")),
            "not_finite = 'skip': must be one of raise, keep",
        ),
        (lambda: avt.output_norms(two, labels, not_finite=any_of(None)), "not_finite = None"),
    ],
)
def test_refuses_bad_values(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: avt.output_norms([[0.0]], labels), "output is of type list: must be a tensor"),
        (lambda: avt.output_norms(labels, labels), "output has dtype torch.int64"),
        (lambda: avt.output_norms(two, [0, 1]), "target is of type list: must be a tensor"),
        (lambda: avt.last_layer_norms(two, two, labels, bias=any_of(1)), "bias = 1: must be True or False"),
        (
            lambda: avt.last_layer_norms(two, two, labels, **any_of({"smooth": 1})),
            "unexpected keyword argument 'smooth'",
        ),
    ],
)
def test_refuses_other_types(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("reduction", ["mean", "all"])
def test_the_loss_of_an_example_is_a_mean_over_what_counts(reduction: Any) -> None:
    torch.manual_seed(0)
    output, target = torch.randn(4, 5, 3, dtype=torch.float64), torch.randint(3, (4, 5))
    target[1, 1:], target[2] = -100, -100  # one counts, and none
    counts = torch.tensor([5, 1, 1, 5]) if reduction == "mean" else torch.tensor([11])
    features = torch.randn(4, 5, 2, dtype=torch.float64)
    for function in (avt.output_norms, partial(avt.last_layer_norms, features)):
        found = function(output, target, class_dim=-1, reduction=reduction)
        torch.testing.assert_close(found, function(output, target, class_dim=-1) / counts)
    entries = torch.tensor([15.0] if reduction == "mean" else [60.0])
    for loss in ("binary", "squared"):
        given: Any = output, torch.rand(4, 5, 3, dtype=torch.float64), loss
        torch.testing.assert_close(
            avt.output_norms(*given, reduction=reduction), avt.output_norms(*given) / entries.double()
        )
    likely = torch.softmax(torch.randn(4, 5, 3, dtype=torch.float64), -1)
    torch.testing.assert_close(
        avt.output_norms(output, likely, class_dim=-1, reduction=reduction),
        avt.output_norms(output, likely, class_dim=-1) / (entries.double() / 3.0),
    )
