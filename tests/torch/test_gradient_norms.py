"""Exact norms from one pass, against a backward pass for each example."""

import copy
import io
import itertools
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import avare.torch as avt
from avare.torch.layers import parts

Make = Callable[[], nn.Module]
# PyTorch warns where its vmap falls back to a loop, and of things of its own that it will change.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


def losses(output: Any) -> Tensor:
    """Of each example, with gradients of all signs and sizes at every entry."""
    flat = (output[0] if isinstance(output, tuple) else output).flatten(1)
    factors = torch.linspace(-1.0, 2.0, flat.shape[1], dtype=flat.dtype)
    return (flat.square() + factors * flat).sum(dim=1)


def one_by_one(model: nn.Module, x: Tensor, autocast: torch.dtype | None = None) -> Tensor:
    """The norm of the gradient of each example, from a pass of its own, in float64."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    result = []
    for j in range(len(x)):
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            output = model(x[j : j + 1])
        output = output if autocast is None else output.float()
        gradients = torch.autograd.grad(losses(output).sum(), trained, allow_unused=True)
        found = [g.to_dense() if g.is_sparse else g for g in gradients if g is not None]
        result.append(torch.sqrt(sum(g.double().square().sum() for g in found)))
    return torch.stack(result) if result else torch.zeros(0)


def in_one_pass(model: nn.Module, x: Tensor, **options: Any) -> Tensor:
    weight = 0.5 + torch.arange(len(x)) % 3
    with avt.GradientNorms(model, **options) as norms:
        (weight * losses(model(x))).mean().backward()
    return norms(weight)


def agree(model: nn.Module, x: Tensor, *, tolerance: float = 2e-4, **options: Any) -> bool:
    """The tolerance leaves room for float32 where positions nearly cancel; a wrong formula is off by far more."""
    found, wanted = in_one_pass(model, x, **options), one_by_one(model, x)
    assert found.shape == (len(x),) and not found.requires_grad
    close = torch.allclose(found.double(), wanted.double(), rtol=tolerance, atol=tolerance * float(wanted.max()))
    return bool(close)


@contextmanager
def limited(largest: int) -> Iterator[None]:
    """Chunks of few examples."""
    before = parts._LARGEST
    parts._LARGEST = largest
    try:
        yield
    finally:
        parts._LARGEST = before


# --- each layer ------------------------------------------------------------------------------


@given(st.integers(1, 4), st.lists(st.integers(1, 6), max_size=2), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_linear(n: int, positions: list[int], inputs: int, outputs: int, bias: bool) -> None:
    torch.manual_seed(n)
    with limited(64):
        assert agree(nn.Linear(inputs, outputs, bias=bias), torch.randn(n, *positions, inputs))


@pytest.mark.parametrize("positions", [3, 40])
def test_linear_by_products_of_positions_and_by_gradients(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shapes = []
    plain = torch.bmm

    def noted(a: Tensor, b: Tensor) -> Tensor:
        shapes.append((a.shape[1], b.shape[2]))
        return plain(a, b)

    monkeypatch.setattr(torch, "bmm", noted)
    assert agree(nn.Linear(12, 14), torch.randn(3, positions, 12))
    assert set(shapes) == ({(3, 3)} if positions == 3 else {(14, 12)})


@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 3))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(low, high)] * dimensions))

    groups = data.draw(st.integers(1, 2))
    kernel, dilation, size = draw(1, 3), draw(1, 2), draw(3, 6)
    padding: Any = data.draw(st.sampled_from(["same", "valid", "numbers"]))
    stride: Any = 1 if padding == "same" else draw(1, 2)
    padding = draw(0, 2) if padding == "numbers" else padding
    modes = ["zeros", "circular", "replicate"] + ["reflect"] * (dimensions < 3)
    mode = data.draw(st.sampled_from(modes))
    assume(padding in ("same", "valid") or all(p < s for p, s in zip(padding, size, strict=True)))
    assume(all(d * (k - 1) < s for d, k, s in zip(dilation, kernel, size, strict=True)))
    torch.manual_seed(1)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    model = kind(
        2 * groups,
        3 * groups,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=data.draw(st.booleans()),
        padding_mode=mode,
    )
    with limited(data.draw(st.sampled_from([1, 200, 1 << 20]))):
        assert agree(model, torch.randn(data.draw(st.integers(1, 3)), 2 * groups, *size))


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 6), max_size=2),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([None, 0.7]),
    st.booleans(),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_embedding(
    n: int, positions: list[int], padding: int | None, max_norm: float | None, sparse: bool, kind: torch.dtype
) -> None:
    torch.manual_seed(n)
    model = nn.Embedding(4, 3, padding_idx=padding, max_norm=max_norm, sparse=sparse)
    nn.init.normal_(model.weight)  # also of the padding, whose gradient is none whatever it is
    with limited(20):
        assert agree(model, torch.randint(0, 4, (n, *positions), dtype=kind))


NORMALIZATIONS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "LayerNorm": (lambda: nn.LayerNorm(5), (5,)),
    "LayerNorm of a sequence": (lambda: nn.LayerNorm(5), (3, 5)),
    "LayerNorm over two dimensions": (lambda: nn.LayerNorm((3, 5)), (2, 3, 5)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(5, bias=False), (3, 5)),
    "RMSNorm": (lambda: nn.RMSNorm(5), (3, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), (6, 3, 2)),
    "GroupNorm of vectors": (lambda: nn.GroupNorm(2, 6), (6,)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, affine=True), (4, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 3, 2)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(4, affine=True), (4, 3, 2, 2)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4).eval(), (4,)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4).eval(), (4, 3, 2)),
}
TRAINED = {"all": ("weight", "bias"), "weight": ("weight",), "bias": ("bias",)}


def draw_parameters(model: nn.Module, trained: str) -> None:
    """At random, running statistics included."""
    for key, parameter in model.named_parameters():
        nn.init.normal_(parameter).requires_grad_(key in TRAINED[trained])
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2.0)


@given(st.data())
def test_normalizations_of_any_shape(data: st.DataObject) -> None:
    sizes = st.integers(1, 4)
    n, channels, groups = data.draw(sizes), data.draw(sizes), data.draw(st.integers(1, 3))
    places = data.draw(st.lists(sizes, min_size=1, max_size=3))
    last = data.draw(st.lists(sizes, min_size=1, max_size=2))
    affine, dimensions = data.draw(st.booleans()), len(places)
    kind = data.draw(st.sampled_from(["layer", "root mean square", "group", "instance", "batch"]))
    model: nn.Module
    if kind in ("layer", "root mean square"):
        assume(kind != "layer" or np.prod(last) > 1)  # of a single number, all that is left is rounding
        model = nn.LayerNorm(last, bias=affine) if kind == "layer" else nn.RMSNorm(last)
        shape = (n, *places[: data.draw(st.integers(0, 2))], *last)
    elif kind == "group":
        places = places[: data.draw(st.integers(0, 2))]
        assume(channels * np.prod(places) > 1)
        model, shape = nn.GroupNorm(groups, groups * channels), (n, groups * channels, *places)
    elif kind == "instance":
        assume(np.prod(places) > 1)
        kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
        model, shape = kinds[dimensions - 1](channels, affine=True), (n, channels, *places)
    else:
        model = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1](channels).eval()
        shape = (n, channels, *places)
    torch.manual_seed(n)
    draw_parameters(model, data.draw(st.sampled_from(["all", "weight"])))
    assert agree(model, torch.randn(shape))


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalizations(name: str, trained: str) -> None:
    torch.manual_seed(0)
    make, shape = NORMALIZATIONS[name]
    model = make()
    draw_parameters(model, trained)
    if any(parameter.requires_grad for parameter in model.parameters()):
        assert agree(model, torch.randn(4, *shape))


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(5, elementwise_affine=False), nn.BatchNorm1d(5, affine=False).eval(), nn.Dropout(0.0)]
)
def test_layers_without_parameters(module: nn.Module) -> None:
    torch.manual_seed(0)
    assert agree(nn.Sequential(nn.Linear(4, 5), module, nn.Linear(5, 3)), torch.randn(6, 4))


# --- whole models ----------------------------------------------------------------------------


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).to(dtype)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3)),
    )


def text() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Embedding(7, 6, padding_idx=1), nn.Linear(6, 9), nn.ReLU(inplace=True), nn.LayerNorm(9)),
        *(nn.Linear(9, 4), nn.Flatten(), nn.Linear(20, 2)),
    )


def batch(model: Callable[..., nn.Module], n: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if model is text:
        return torch.randint(0, 7, (n, 5), generator=generator)
    return torch.randn(n, *{mlp: (4,), cnn: (1, 8, 8)}.get(model, (5, 8)), generator=generator)


every_model = pytest.mark.parametrize("make", [mlp, cnn, text])


@every_model
@pytest.mark.parametrize("n", [1, 2, 7])
def test_models(make: Make, n: int) -> None:
    assert agree(make(), batch(make, n))


@every_model
def test_the_gradients_of_the_parameters_are_the_same_bits(make: Make) -> None:
    for n in (1, 6):
        plain, watched = make(), make()
        losses(plain(batch(make, n))).mean().backward()
        norms = avt.GradientNorms(watched).attach()
        losses(watched(batch(make, n))).mean().backward()
        norms()
        for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            assert torch.equal(a.grad, b.grad)


@every_model
def test_empty_batches(make: Make) -> None:
    model = make()
    with avt.GradientNorms(model) as norms:
        losses(model(batch(make, 0))).sum().backward()
    assert norms(torch.zeros(0)).shape == (0,)


def test_reduction_and_weights() -> None:
    model, x = mlp(), batch(mlp)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model).attach()
    weight = np.array([1.0, 0.5, 3.0, -2.0, 1e-3, 1e3])
    for reduction in ("mean", "sum"):
        total = torch.as_tensor(weight) * losses(model(x))
        (total.mean() if reduction == "mean" else total.sum()).backward()
        assert torch.allclose(norms(weight, reduction=reduction).double(), wanted, rtol=1e-5)
        unweighted = losses(model(x))
        (unweighted.mean() if reduction == "mean" else unweighted.sum()).backward()
        assert torch.allclose(norms(reduction=reduction).double(), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "frozen"), [(text, ["0.weight"]), (cnn, ["0.weight", "4.bias"]), (cnn, ["1.weight"]), (text, ["1.weight"])]
)
def test_frozen_layers_of_other_kinds_do_not_count(make: Make, frozen: list[str]) -> None:
    model = make()
    norms = avt.GradientNorms(model)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    assert agree(model, batch(make))
    with norms:  # made while they were trained
        losses(model(batch(make))).mean().backward()
    assert torch.allclose(norms().double(), one_by_one(model, batch(make)), rtol=1e-4)


@pytest.mark.parametrize("frozen", [["0.weight"], ["0.bias", "2.weight"], ["0.weight", "0.bias"]])
def test_frozen_parameters_do_not_count(frozen: list[str]) -> None:
    model = mlp()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    assert agree(model, batch(mlp))


def test_parameters_frozen_later_and_thawed_again() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    for frozen in (True, False):
        model[0].requires_grad_(not frozen)
        losses(model(x)).mean().backward()
        assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


# --- one parameter, many uses ----------------------------------------------------------------


class Repeated(nn.Module):
    """One module, called three times; and a normalisation, twice."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(self.norm(self.layer(x)))
        return torch.as_tensor(self.layer(x))


class Tied(nn.Module):
    """A language model whose last layer has the weight of the first."""

    def __init__(self, twice: bool = False, padding: int | None = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4, padding_idx=padding)
        self.between = nn.Linear(4, 4)
        self.output = nn.Linear(4, 7)
        self.output.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        if self.twice:
            h = h + self.embedding(x.flip(1)) * self.output(h).sum(dim=2, keepdim=True)
        return torch.as_tensor(self.output(torch.tanh(self.between(h))))


class Functional(nn.Module):
    """The same, where no module sees the second use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.embedding(x), self.embedding.weight)


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Linear(4, 4), nn.LayerNorm(4), (4,)),
        (nn.Linear(4, 4), nn.LayerNorm(4), (3, 4)),
        (nn.Linear(4, 4), nn.LayerNorm(4), (30, 4)),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4), (4, 5, 5)),
        (nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4), (4, 2)),
    ],
)
def test_a_module_called_again(layer: nn.Module, norm: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    with limited(300):
        assert agree(Repeated(layer, norm), torch.randn(4, *shape))


def test_a_module_under_several_parents() -> None:
    torch.manual_seed(0)
    layer, norm, scaled = nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU()
    model = nn.Sequential(
        nn.Sequential(layer, norm, nn.Tanh(), scaled), nn.Sequential(layer, scaled), nn.ModuleList([norm, layer])[1]
    )
    assert agree(model, torch.randn(5, 4), fallback="vmap")

    class Coder(nn.Module):
        def __init__(self, embedding: nn.Embedding, outputs: int) -> None:
            super().__init__()
            self.embedding, self.layer = embedding, nn.Linear(4, outputs)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(self.embedding(x)))

    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            embedding = nn.Embedding(7, 4)
            self.encoder, self.decoder = Coder(embedding, 3), Coder(embedding, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.encoder(x) * self.decoder(x.flip(1)))

    assert agree(Translation(), torch.randint(0, 7, (4, 5)))


def test_an_embedding_called_again() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(5, 3)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = embedding

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.embedding(x) * self.embedding(x.flip(1)))

    assert agree(Two(), torch.randint(0, 5, (4, 6)))


@pytest.mark.parametrize("twice", [False, True])
def test_a_weight_tied_to_an_embedding(twice: bool) -> None:
    for padding in (None, 0, 3):
        with limited(50):
            assert agree(Tied(twice, padding), torch.randint(0, 7, (5, 6)))


def test_a_weight_shared_by_layers_of_other_groups() -> None:
    torch.manual_seed(0)

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv1d(2, 4, 3)
            self.two = nn.Conv1d(4, 4, 3, groups=2, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.two(torch.tanh(self.one(x))))

    with limited(50):
        assert agree(Shared(), torch.randn(4, 2, 9))


def test_two_passes_through_the_model_before_the_loss() -> None:
    model, x = mlp(), batch(mlp)

    def both(x: Tensor) -> Tensor:
        return losses(model(x) * model(x.flip(1)))

    wanted = []
    for j in range(len(x)):
        gradients = torch.autograd.grad(both(x[j : j + 1]).sum(), list(model.parameters()))
        wanted.append(torch.cat([g.flatten() for g in gradients]).norm())
    norms = avt.GradientNorms(model).attach()
    both(x).mean().backward()
    assert torch.allclose(norms(), torch.stack(wanted), rtol=1e-5)


def test_uses_that_no_module_sees_are_told() -> None:
    model, x = Functional(), torch.randint(0, 7, (4, 5))
    with pytest.raises(ValueError, match=r"embedding\.weight is used other than by a call"), avt.GradientNorms(model):
        model(x)
    model = mlp()
    norms = avt.GradientNorms(model).attach()
    hidden = functional.linear(batch(mlp), model[0].weight)  # the model itself is never called
    losses(model[2](hidden)).mean().backward()
    with pytest.raises(ValueError, match=r"0\.weight is used other than by a call"):
        norms()


def test_uses_that_no_module_sees_are_told_when_they_come_later() -> None:
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two, self.way = nn.Linear(4, 4), nn.Linear(4, 4), ""

        def forward(self, x: Tensor) -> Tensor:
            h = self.two(self.one(x)) if self.way != "fewer" else self.one(x)
            if self.way:
                h = h + functional.linear(x, self.one.weight)
            return torch.as_tensor(h)

    for way, passes in (("fewer", 1), ("more", 32)):  # other modules than before are called; the same
        model, x = Later(), batch(mlp)
        norms = avt.GradientNorms(model).attach()
        for _ in range(5):
            losses(model(x)).mean().backward()
            norms()
        model.way = way
        with pytest.raises(ValueError, match=r"one\.weight is used other than by a call"):
            [model(x) for _ in range(passes)]


# --- modules without a rule ------------------------------------------------------------------


class Scaled(nn.Module):
    """A parameter of its own beside a layer, with a second argument and a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 8))
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, shift: Tensor, *, power: int = 2) -> tuple[Tensor, Tensor]:
        return self.layer(x * self.scale + shift) ** power, self.scale.sum() * x


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(8, 8), inner, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        if isinstance(self.inner, nn.MultiheadAttention):
            x = self.inner(x, x, x, need_weights=False)[0]
        elif isinstance(self.inner, Scaled):
            one, two = self.inner(x, torch.ones(5, 8), power=3)
            x = one + self.inner(x.tanh(), torch.ones(8))[0] + two
        else:
            x = self.inner(x)
            x = x[0] if isinstance(x, tuple) else x
        return torch.as_tensor(self.after(x))


def inner(name: str) -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return {
            "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            "scaled": Scaled,
            "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
            "weight norm, no bias": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8, bias=False)),
            "weight norm of old": lambda: nn.utils.weight_norm(nn.Linear(8, 8)),
            "recurrent": lambda: nn.LSTM(8, 8, batch_first=True),
            "transposed": lambda: nn.ConvTranspose1d(5, 5, 3, padding=1),
            "prelu": nn.PReLU,
        }[name]()


@pytest.mark.parametrize("fallback", ["vmap", "loop"])
@pytest.mark.parametrize(
    "name", ["attention", "scaled", "weight norm", "weight norm, no bias", "weight norm of old", "transposed", "prelu"]
)
def test_fallback(name: str, fallback: str) -> None:
    model = Around(inner(name))
    with pytest.raises(ValueError, match=r"no rule is known for the parameters of inner \(.*fallback='vmap'"):
        avt.GradientNorms(model)
    with limited(2000):
        assert agree(model, batch(Around), fallback=fallback)


def test_fallback_where_vmap_fails() -> None:
    model, x = Around(inner("recurrent")), batch(Around)
    assert agree(model, x, fallback="loop")
    with pytest.raises(ValueError, match=r"inner \(LSTM\): it cannot be run example by example; fallback='loop' may"):
        in_one_pass(model, x, fallback="vmap")


def test_fallback_for_the_whole_model_and_for_shared_parameters() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.token = nn.Parameter(torch.randn(8))
            self.layer = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(x + self.token))

    assert agree(Whole(), batch(Around), fallback="vmap")

    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = Whole()
            self.layer = nn.Linear(8, 3)
            self.layer.weight = self.whole.layer.weight

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.whole(x) + self.layer(x.square()))

    assert agree(Sharing(), batch(Around), fallback="vmap")


def test_fallback_for_a_module_whose_layers_are_called_elsewhere_too() -> None:
    class Borrowing(nn.Module):
        def __init__(self, embedding: nn.Module, layer: nn.Module) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 4))
            self.embedding, self.layer = embedding, layer

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(self.embedding(x) * self.scale))

    class Lending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
            self.borrowing = Borrowing(self.embedding, self.layer)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(self.embedding(x)).tanh() * self.borrowing(x.flip(1)))

    with limited(200):
        assert agree(Lending(), torch.randint(0, 7, (5, 6)), fallback="vmap")


def test_fallback_after_a_pass_that_failed() -> None:
    model, x = Around(Scaled()), batch(Around)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model, fallback="vmap").attach()
    with pytest.raises(RuntimeError, match="must match"):
        model.inner(x, torch.ones(3))
    losses(model(x)).mean().backward()
    assert torch.allclose(norms().double(), wanted, rtol=1e-5)


def test_fallback_with_an_output_that_is_not_finite() -> None:
    model, x = Around(Scaled()), batch(Around)
    x[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match=r"norms\[3\] = nan: the gradient is not finite"):
        in_one_pass(model, x, fallback="vmap")


class Centred(nn.Module):
    """Mixes the examples, in a way that only its output shows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(dim=0)) * self.scale


class Noisy(Centred):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x * self.scale, 0.5)


@pytest.mark.parametrize("fallback", ["vmap", "loop"])
@pytest.mark.parametrize("kind", [Centred, Noisy, lambda: nn.MultiheadAttention(8, 2)])
def test_fallback_tells_what_is_not_an_examples_own(kind: Make, fallback: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"inner \(\w+\): it.* (for an example alone|example by example)"):
        in_one_pass(Around(kind()), batch(Around), fallback=fallback)


def test_fallback_asked_after_the_step() -> None:
    model = Around(Scaled())
    norms = avt.GradientNorms(model, fallback="vmap").attach()
    losses(model(batch(Around))).mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(ValueError, match=r"inner \(Scaled\): its input, or a parameter, was changed in place"):
        norms()


# --- by choice -------------------------------------------------------------------------------


def without(model: nn.Module, x: Tensor, *excluded: nn.Parameter) -> Tensor:
    """The norms, if some parameters were frozen."""
    for parameter in excluded:
        parameter.requires_grad_(False)
    wanted = one_by_one(model, x)
    for parameter in excluded:
        parameter.requires_grad_(True)
    return wanted


@pytest.mark.parametrize("names", [["0"], ["0.weight"], ["2.bias", "2.weight"], ["2"], ["0.bias", "2"]])
def test_what_is_excluded_does_not_count_and_is_trained(names: list[str]) -> None:
    model, plain, x = mlp(), mlp(), batch(mlp)
    modules = dict(model.named_modules())
    chosen = [modules[name] if name in modules else model.get_parameter(name) for name in names]
    excluded = [p for each in chosen for p in ([each] if isinstance(each, nn.Parameter) else each.parameters())]
    norms = avt.GradientNorms(model, exclude=chosen).attach()
    losses(model(x)).mean().backward()
    assert torch.allclose(norms().double(), without(model, x, *excluded), rtol=1e-5)
    losses(plain(x)).mean().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_what_is_excluded_needs_no_rule() -> None:
    for name in ("scaled", "prelu"):
        model, x = Around(inner(name)), batch(Around)
        own = [parameter for key, parameter in model.inner.named_parameters() if "." not in key]
        norms = avt.GradientNorms(model, exclude=iter(own)).attach()
        losses(model(x)).mean().backward()
        assert torch.allclose(norms().double(), without(model, x, *own), rtol=1e-4)
    scaled = Around(inner("scaled"))
    weight = scaled.inner.layer.weight  # of a layer within what is run a second time
    norms = avt.GradientNorms(scaled, exclude=[weight], fallback="vmap").attach()
    losses(scaled(batch(Around))).mean().backward()
    assert torch.allclose(norms().double(), without(scaled, batch(Around), weight), rtol=1e-4)

    class Twice(Functional):  # a weight whose second use no module sees, beside another layer
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(7, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(super().forward(x)))

    model, words = Twice(), torch.randint(0, 7, (4, 5))
    norms = avt.GradientNorms(model, exclude=[model.embedding]).attach()
    losses(model(words)).mean().backward()
    assert torch.allclose(norms().double(), without(model, words, model.embedding.weight), rtol=1e-4)


def test_positions_in_common_may_be_excluded_or_run_again() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.output = Positions("added"), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.output(self.words(x)))

    for n in (3, 5):
        model, x = Reader(), torch.randint(0, 7, (n, 5))
        norms = avt.GradientNorms(model, exclude=[model.words.place]).attach()
        losses(model(x)).mean().backward()
        assert torch.allclose(norms().double(), without(model, x, model.words.place.weight), rtol=1e-4)
        norms.detach()
        assert agree(model, x, recompute=[model.words])
        assert agree(model, x, recompute=[model.words], fallback="loop")


@pytest.mark.parametrize("make", [mlp, cnn])
def test_what_has_a_rule_may_be_run_again(make: Make) -> None:
    model = make()
    assert agree(model, batch(make), recompute=[model[0]])
    assert agree(model, batch(make), recompute=[model])


def test_refuses_choices_that_are_not_of_the_model() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"exclude\[1\] \(Linear\) is not part of the model"):
        avt.GradientNorms(model, exclude=[model[0], nn.Linear(4, 3)])
    with pytest.raises(ValueError, match=r"recompute\[0\] \(Linear\) is not part of the model"):
        avt.GradientNorms(model, recompute=[nn.Linear(4, 3)])
    with pytest.raises(TypeError, match=r"exclude\[0\] is of type str: must be a module or a parameter of the model"):
        avt.GradientNorms(model, exclude=["0.weight"])
    with pytest.raises(TypeError, match=r"recompute\[0\] is of type Parameter: must be a module of the model"):
        avt.GradientNorms(model, recompute=[model[0].weight])


# --- precision -------------------------------------------------------------------------------


def test_float64_is_exact_to_its_own_precision() -> None:
    model, x = mlp(torch.float64), batch(mlp).double()
    found = in_one_pass(model, x)
    assert found.dtype == torch.float64
    assert torch.allclose(found, one_by_one(model, x), rtol=1e-12)


def test_bfloat16_is_widened() -> None:
    model, x = cnn().to(torch.bfloat16), batch(cnn).to(torch.bfloat16)
    found = in_one_pass(model, x)
    assert found.dtype == torch.float32
    wide = cnn().to(torch.bfloat16).float()
    # Activations and gradients are rounded to 8 bits at each of some ten operations.
    assert torch.allclose(found.double(), one_by_one(wide, x.float()), rtol=0.1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
@pytest.mark.parametrize("name", ["mlp", "cnn", "text", "scaled"])
def test_autocast(name: str, dtype: torch.dtype, tolerance: float) -> None:
    make: Any = {"mlp": mlp, "cnn": cnn, "text": text, "scaled": lambda: Around(Scaled())}[name]
    model, x = make(), batch(make)
    # The same roundings to 8 or 11 bits, but for sums in another order: some units in the last place.
    wanted = one_by_one(model, x, dtype)
    with avt.GradientNorms(model, fallback="vmap") as norms, torch.autocast("cpu", dtype=dtype):
        losses(model(x).float()).sum().backward()
        found = norms(reduction="sum")  # also within
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), wanted, rtol=tolerance)


def test_layers_of_several_precisions() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.two(torch.tanh(self.one(x)).double()))

    assert agree(Mixed(), batch(mlp), tolerance=1e-5)


# --- passes ----------------------------------------------------------------------------------


def test_attached_for_a_training() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    assert norms.attach() is norms
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        wanted = one_by_one(model, x)
        optimizer.zero_grad()
        losses(model(x)).mean().backward()
        optimizer.step()  # rules need no parameters: they may have changed
        assert torch.allclose(norms().double(), wanted, rtol=1e-5)
        with pytest.raises(RuntimeError, match="no backward pass"):
            norms()
        assert not norms._uses
    norms.detach()
    norms.detach()
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_the_norms_are_those_of_the_last_backward_pass() -> None:
    model, x = mlp(), batch(mlp)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model).attach()
    for part in (x[:4], x[4:]):  # gradients are accumulated
        losses(model(part)).mean().backward()
    assert torch.allclose(norms().double(), wanted[4:], rtol=1e-5)
    one, two = losses(model(x[:4])), losses(model(x[4:]))
    for loss, each in ((one, wanted[:4]), (two, wanted[4:])):  # asked after each
        loss.mean().backward()
        assert torch.allclose(norms().double(), each, rtol=1e-5)


def test_several_backward_passes_cannot_be_told_apart() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    one, two = losses(model(x)), losses(model(x))
    one.mean().backward()
    two.mean().backward()
    with pytest.raises(RuntimeError, match="several backward passes"):
        norms()
    norms.reset()
    loss = losses(model(x)).mean()
    loss.backward(retain_graph=True)
    first = norms()
    loss.backward()
    assert torch.equal(norms(), first)


def test_forward_passes_without_gradients_keep_nothing() -> None:
    model, x = mlp(), batch(mlp)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model).attach()
    losses(model(x)).mean().backward()
    with torch.no_grad():
        model.eval()(x)
    assert torch.allclose(norms().double(), wanted, rtol=1e-5)
    with torch.inference_mode():
        model(x)
    assert not norms._uses
    model(x)  # with gradients, but without a backward pass
    assert not norms._uses
    model.requires_grad_(False)
    losses(model(x.requires_grad_())).mean().backward()
    assert not norms._uses


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    output = checkpoint(model[2], functional.relu(model[0](x)), use_reentrant=reentrant)
    losses(output).mean().backward()
    if reentrant:
        with pytest.raises(RuntimeError, match="use_reentrant=False"):
            norms()
    else:
        assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


def test_an_error_within_forgets_and_detaches() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model)

    def fail() -> None:
        with norms:
            losses(model(x)).mean().backward()
            assert norms._uses
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not norms._uses and not norms._handles


def test_by_autograd_grad() -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        torch.autograd.grad(losses(model(x)).sum(), list(model.parameters()))
    assert torch.allclose(norms(reduction="sum").double(), one_by_one(model, x), rtol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_other_hooks_and_arguments_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)
            self.one.register_forward_hook(lambda module, args, output: 3.0 * output)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.two(input=self.one(input=x)))

    assert agree(Named(), batch(mlp))


def test_the_gradient_of_a_single_example_may_be_clipped_first() -> None:
    class Shift(nn.Module):  # whose parameter takes the gradient of the output as its own, without a copy
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.shift

    model, x = nn.Sequential(Shift(), mlp()), batch(mlp, 1)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model, fallback="vmap").attach()
    losses(model(x)).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert torch.allclose(norms().double(), wanted, rtol=1e-5)


# --- copies and wrappers ---------------------------------------------------------------------


def test_copies_of_the_model_have_no_part_in_it() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    for each in copies:
        losses(each(x)).mean().backward()
        assert not norms._uses
        assert all(p.grad is None for p in model.parameters())
    losses(model(x)).mean().backward()
    assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


def test_distributed_models_are_looked_into() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            model, x = mlp(), batch(mlp)
            wrapped = nn.parallel.DistributedDataParallel(model)
            norms = avt.GradientNorms(wrapped).attach()
            for _ in range(2):
                losses(wrapped(x)).mean().backward()
                found = norms()
            assert torch.allclose(found.double(), one_by_one(model, x), rtol=1e-5)
        finally:
            torch.distributed.destroy_process_group()


def test_repr() -> None:
    norms = avt.GradientNorms(mlp())
    assert repr(norms) == "GradientNorms(model (Sequential))"
    assert repr(norms.attach()) == "GradientNorms(model (Sequential), attached)"


# --- wrong use -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.BatchNorm1d(8), r"1 \(BatchNorm1d\): it normalises by the statistics of the batch"),
        (nn.BatchNorm1d(8, affine=False), "statistics of the batch"),
        (nn.BatchNorm1d(8, track_running_stats=False).eval(), "statistics of the batch"),
        (nn.SyncBatchNorm(8), "statistics of the batch"),
        (nn.InstanceNorm1d(8, track_running_stats=True), r"1 \(InstanceNorm1d\): it keeps running statistics"),
        (nn.Embedding(8, 2, scale_grad_by_freq=True), "scale_grad_by_freq divides by counts over the batch"),
        (nn.Linear(8, 2, dtype=torch.complex64), "it has complex parameters"),
        (nn.Bilinear(2, 2, 2), r"no rule is known for the parameters of 1 \(Bilinear: weight, bias\)"),
    ],
)
def test_refuses_models(module: nn.Module, message: str) -> None:
    for fallback in (None, "vmap"):
        if fallback is None or "no rule" not in message:
            with pytest.raises(ValueError, match=message):
                avt.GradientNorms(nn.Sequential(nn.Linear(8, 8), module), fallback=fallback)


def test_refuses_layers_without_shape() -> None:
    with pytest.raises(ValueError, match=r"model \(LazyLinear\): its parameters have no shape yet"):
        avt.GradientNorms(nn.LazyLinear(3))


def test_a_layer_with_another_forward_is_no_such_layer() -> None:
    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(super().forward(x.square()))

    class Same(nn.Linear):
        pass

    with pytest.raises(ValueError, match=r"no rule is known for the parameters of model \(Other: weight, bias\)"):
        avt.GradientNorms(Other(4, 3))
    assert agree(Other(4, 3), batch(mlp), fallback="vmap")
    assert agree(Same(4, 3), batch(mlp))


def test_batch_norm_put_in_training_mode_later() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    norms = avt.GradientNorms(model).attach()
    model.train()
    with torch.no_grad():
        model(batch(mlp))
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\): it normalises by the statistics of the batch"):
        model(batch(mlp))
    norms.detach()
    model(batch(mlp))


def test_refuses_arguments() -> None:
    with pytest.raises(TypeError, match="model is of type list"):
        avt.GradientNorms([])
    with pytest.raises(ValueError, match="fallback = 'no': must be None, 'vmap' or 'loop'"):
        avt.GradientNorms(mlp(), fallback="no")  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match="model is a DataParallel"):
        avt.GradientNorms(nn.DataParallel(mlp()))
    with pytest.raises(ValueError, match="model is compiled"):
        avt.GradientNorms(torch.compile(mlp(), backend="eager"))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0, 2.0], r"weight has shape \(2,\): must be \(6,\)"),
        (torch.ones(6, 1), r"weight has shape \(6, 1\)"),
        ([1.0, 2.0, 0.0, 1.0, 1.0, 1.0], r"weight\[2\] = 0.0: the norm cannot be known from this pass"),
        ([1.0, np.nan, 0.0, 1.0, 1.0, 1.0], r"weight\[1\] = nan: must be finite"),
        ([True] * 6, "weight has dtype torch.bool"),
    ],
)
def test_refuses_weights_and_may_be_asked_again(weight: Any, message: str) -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        losses(model(x)).mean().backward()
    with pytest.raises((ValueError, TypeError), match=message):
        norms(weight)
    with pytest.raises(ValueError, match="reduction = 'none': must be 'mean' or 'sum'"):
        norms(reduction="none")  # type: ignore[arg-type]  # the point
    assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Linear(4, 3), (4,)), (nn.Conv1d(4, 3, 1), (4, 5)), (nn.LayerNorm(4), (4,)), (nn.RMSNorm((2, 4)), (2, 4))],
)
def test_inputs_without_a_batch(module: nn.Module, shape: tuple[int, ...]) -> None:
    with avt.GradientNorms(module) as norms:
        module(torch.randn(shape)).sum().backward()
    with pytest.raises(ValueError, match=r"model \(\w+\): its input has shape .* must have a batch dimension"):
        norms()


def test_more_inputs_without_a_batch() -> None:
    module = nn.InstanceNorm1d(4, affine=True)
    with avt.GradientNorms(module) as norms:
        module(torch.randn(4, 5)).sum().backward()
    with pytest.raises(ValueError, match="must have a batch dimension"):
        norms()
    embedding = nn.Embedding(4, 3)
    with avt.GradientNorms(embedding) as norms:
        embedding(torch.tensor(1)).sum().backward()
    with pytest.raises(ValueError, match="must have a batch dimension"):
        norms()

    class Total(Centred):
        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).sum()

    total = Total()
    with avt.GradientNorms(total, fallback="vmap") as norms:
        total(torch.randn(4, 8)).backward()
    with pytest.raises(ValueError, match=r"model \(Total\): its output is a single number"):
        norms()


class Positions(nn.Module):
    """Words and where they stand, by one way or another to add what all examples have in common."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.place, self.way = nn.Embedding(7, 4), nn.Embedding(5, 4), way

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        if self.way == "of each":
            return torch.as_tensor(self.token(x) + self.place(places.expand(x.shape)))
        found = self.place(places)
        if self.way == "put before":
            found = found[None]
        elif self.way == "spread":
            found = found.expand(*x.shape, 4)
        elif self.way == "joined":
            return torch.cat([self.token(x), torch.stack([found] * len(x))], dim=2)
        return torch.as_tensor(found * self.token(x) if self.way == "times" else self.token(x) + found)


@pytest.mark.parametrize("way", ["added", "put before", "spread", "times"])
@pytest.mark.parametrize("n", [3, 5])
def test_positions_that_examples_have_in_common_are_refused(way: str, n: int) -> None:
    model, x = Positions(way), torch.randint(0, 7, (n, 5))  # 5 is the number of positions too
    with pytest.raises(ValueError, match=r"place \(Embedding\): .* spread over .* torch.arange\(T\).expand\(n, T\)"):
        in_one_pass(model, x)
    assert agree(Positions("of each"), x)


def test_an_index_for_each_example_is_none_of_positions() -> None:
    class Rated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.user, self.words = nn.Embedding(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            user = self.user(x[:, 0].long())
            return torch.as_tensor(self.words(user[:, None] * x[:, 1:, None] + user.unsqueeze(1)))

    for n in (1, 4):
        assert agree(Rated(), torch.cat([torch.arange(n)[:, None], torch.randn(n, 4)], dim=1))


def test_batches_that_do_not_agree() -> None:
    model = Positions("joined")
    with avt.GradientNorms(model) as norms:
        losses(model(torch.randint(0, 7, (3, 5)))).mean().backward()
    message = r"has a batch of \d, .* one of \d: the first dimension must be the batch.*torch.arange\(T\).expand"
    with pytest.raises(ValueError, match=message):
        norms()


def test_inputs_changed_after_the_pass() -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        losses(model(x)).mean().backward()
    x.zero_()
    with pytest.raises(ValueError, match=r"0 \(Linear\): its input was changed in place after the forward pass"):
        norms()


def test_modules_without_a_rule_thawed_later() -> None:
    model = Around(Centred())
    model.inner.requires_grad_(False)
    norms = avt.GradientNorms(model).attach()
    losses(model(batch(Around))).mean().backward()
    norms()
    model.inner.requires_grad_(True)
    losses(model(batch(Around))).mean().backward()
    with pytest.raises(ValueError, match=r"inner\.scale was frozen, and is not any more"):
        norms()


def test_gradients_that_are_not_finite() -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        (losses(model(x)) * torch.tensor([1.0, 1.0, np.nan, 1.0, 1.0, 1.0])).mean().backward()
    with pytest.raises(ValueError, match=r"norms\[2\] = nan: the gradient is not finite"):
        norms()
    with pytest.raises(ValueError, match="not_finite = 'skip': must be 'raise' or 'keep'"):
        norms(not_finite="skip")  # type: ignore[arg-type]  # the point
    found, wanted = norms(not_finite="keep"), one_by_one(model, x)
    others = torch.tensor([0, 1, 3, 4, 5])
    assert torch.isnan(found[2])
    assert torch.allclose(found[others].double(), wanted[others], rtol=1e-5)


def test_a_step_that_overflows_is_passed_over() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 4) * torch.logspace(-1.0, 3.0, 40)[:, None]
    model, twin = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    loader = avt.ImportanceLoader(TensorDataset(x), 8, seed=0, endless=True, distributed=None)
    norms = avt.GradientNorms(model).attach()
    overflowed = []
    for (rows,), index, weight in itertools.islice(loader, 40):
        twin.load_state_dict(model.state_dict())
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(rows)
        scaler.scale((weight * losses(output.float())).mean()).backward()
        found = norms(weight * scaler.get_scale(), not_finite="keep")
        scaler.step(optimizer)
        scaler.update()
        finite = torch.isfinite(found)
        wanted = one_by_one(twin, rows[finite])
        assert torch.allclose(found[finite].double(), wanted, rtol=0.02)  # float16 has 11 bits
        waiting = loader.waiting
        loader.update(index, found, not_finite="skip")
        assert loader.waiting == waiting - int(finite.sum())
        overflowed.append(not bool(finite.all()))
    assert overflowed[0] and not overflowed[-1]  # the scale has come down
