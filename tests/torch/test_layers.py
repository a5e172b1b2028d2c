"""Each layer's rule, against one backward pass per example."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import avare.torch as avt
from avare.torch.norms.layers import registry
from per_example import Make, agree, batch, check_layer, draw_parameters, limited, losses, mlp

# PyTorch warns where its vmap falls back to a loop, and about changes of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


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
    nn.init.normal_(model.weight)  # also the padding's, which has no gradient
    with limited(20):
        assert agree(model, torch.randint(0, 4, (n, *positions), dtype=kind))


LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), (4,)),
    "Linear at positions": (lambda: nn.Linear(4, 3), (2, 3, 4)),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2), (2, 4, 3)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 2)),
    "Embedding": (lambda: nn.Embedding(6, 3), (4,)),
    "LayerNorm": (lambda: nn.LayerNorm(5), (5,)),
    "LayerNorm of a sequence": (lambda: nn.LayerNorm(5), (3, 5)),
    "LayerNorm over two dimensions": (lambda: nn.LayerNorm((3, 5)), (2, 3, 5)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(5, bias=False), (3, 5)),
    "RMSNorm": (lambda: nn.RMSNorm(5), (3, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), (6, 3, 2)),
    "GroupNorm of vectors": (lambda: nn.GroupNorm(2, 6), (6,)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4).eval(), (4,)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4).eval(), (4, 3, 2)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4).eval(), (4, 3, 2, 2)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4).eval(), (4, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_rule(name: str) -> None:
    make, shape = LAYERS[name]

    def inputs(n: int) -> Tensor:
        return torch.randint(0, 6, (n, *shape)) if name == "Embedding" else torch.randn(n, *shape)

    check_layer(make, inputs)


def test_every_rule_is_tested() -> None:
    ours = {kind for kind in registry._RULES if not isinstance(kind, str) and kind.__module__.startswith("torch.nn.")}
    assert ours == {type(make()) for make, _ in LAYERS.values()}


class Shift(nn.Module):
    """A layer of someone else, with parameters of other names."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.power = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.offset + self.power * x.square()


def test_a_registered_layer() -> None:
    with pytest.raises(ValueError, match=r"no rule is known for .* model \(Shift\).*register adds a rule"):
        avt.GradientNorms(Shift())

    @avt.layers.register(Shift, parameters=["offset", "power"])
    def shift(module: nn.Module, inputs: Tensor, gradients: Tensor) -> avt.layers.Parts:
        for parameter, values in ((module.offset, gradients), (module.power, gradients * inputs.square())):
            if parameter.requires_grad:
                yield parameter, avt.layers.Dense(values)

    check_layer(Shift, lambda n: torch.randn(n, 3))
    model = Shift()
    with avt.GradientNorms(model) as norms:
        losses(model(x=torch.ones(2, 3))).mean().backward()  # by the name of its own argument
    assert norms().shape == (2,)
    x = torch.randn(2, 3)
    with norms:
        losses(model(x)).mean().backward()
    x.zero_()
    with pytest.raises(ValueError, match=r"model \(Shift\): its input was changed in place"):
        norms()
    nn.utils.parametrize.register_parametrization(model, "offset", nn.Identity())  # computed at each call
    with pytest.raises(ValueError, match="no rule is known"):
        avt.GradientNorms(model)

    @avt.layers.refuse(Shift)
    def in_training_mode(module: nn.Module) -> str | None:
        return "it learns" if module.training else None

    avt.GradientNorms(Shift().eval())
    with pytest.raises(ValueError, match=r"model \(Shift\): it learns"):
        avt.GradientNorms(Shift())


def test_a_computed_bias_has_no_rule() -> None:
    model = nn.Linear(4, 3)
    nn.utils.parametrize.register_parametrization(model, "bias", nn.Tanh())
    with pytest.raises(ValueError, match="no rule is known"):
        avt.GradientNorms(model)
    assert agree(model, batch(mlp), fallback="vmap")


@given(st.data())
def test_normalisations_of_any_shape(data: st.DataObject) -> None:
    sizes = st.integers(1, 4)
    n, channels, groups = data.draw(sizes), data.draw(sizes), data.draw(st.integers(1, 3))
    places = data.draw(st.lists(sizes, min_size=1, max_size=3))
    last = data.draw(st.lists(sizes, min_size=1, max_size=2))
    affine, dimensions = data.draw(st.booleans()), len(places)
    kind = data.draw(st.sampled_from(["layer", "root mean square", "group", "batch"]))
    model: nn.Module
    if kind in ("layer", "root mean square"):
        assume(kind != "layer" or np.prod(last) > 1)  # of a single number, only rounding errors are left
        model = nn.LayerNorm(last, bias=affine) if kind == "layer" else nn.RMSNorm(last)
        shape = (n, *places[: data.draw(st.integers(0, 2))], *last)
    elif kind == "group":
        places = places[: data.draw(st.integers(0, 2))]
        assume(channels * np.prod(places) > 1)
        model, shape = nn.GroupNorm(groups, groups * channels), (n, groups * channels, *places)
    else:
        model = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1](channels).eval()
        shape = (n, channels, *places)
    torch.manual_seed(n)
    draw_parameters(model)
    if data.draw(st.booleans()) and isinstance(getattr(model, "bias", None), nn.Parameter):
        model.bias.requires_grad_(False)
    assert agree(model, torch.randn(shape))


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(5, elementwise_affine=False), nn.BatchNorm1d(5, affine=False).eval(), nn.Dropout(0.0)]
)
def test_layers_without_parameters(module: nn.Module) -> None:
    torch.manual_seed(0)
    assert agree(nn.Sequential(nn.Linear(4, 5), module, nn.Linear(5, 3)), torch.randn(6, 4))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.BatchNorm1d(8), r"1 \(BatchNorm1d\): it normalises by the statistics of the batch"),
        (nn.BatchNorm1d(8, affine=False), "statistics of the batch"),
        (nn.BatchNorm1d(8, track_running_stats=False).eval(), "statistics of the batch"),
        (nn.SyncBatchNorm(8), "statistics of the batch"),
        (nn.Embedding(8, 2, scale_grad_by_freq=True), "scale_grad_by_freq divides by counts over the batch"),
        (nn.Linear(8, 2, dtype=torch.complex64), "it has complex parameters"),
        (nn.Bilinear(2, 2, 2), r"no rule is known for the parameters of 1 \(Bilinear\)"),
    ],
)
def test_refuses_layers(module: nn.Module, message: str) -> None:
    for fallback in (None, "vmap"):
        if fallback is None or "no rule" not in message:
            with pytest.raises(ValueError, match=message):
                avt.GradientNorms(nn.Sequential(nn.Linear(8, 8), module), fallback=fallback)


def test_refuses_layers_without_shape() -> None:
    with pytest.raises(ValueError, match=r"model \(LazyLinear\): its parameters have no shape yet"):
        avt.GradientNorms(nn.LazyLinear(3))


def test_a_subclass_with_another_forward_has_no_rule() -> None:
    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(super().forward(x.square()))

    class Same(nn.Linear):
        pass

    with pytest.raises(ValueError, match=r"no rule is known for the parameters of model \(Other\)"):
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


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Linear(4, 3), torch.ones(4)),
        (nn.Conv1d(4, 3, 1), torch.ones(4, 5)),
        (nn.LayerNorm(4), torch.ones(4)),
        (nn.RMSNorm((2, 4)), torch.ones(2, 4)),
        (nn.Embedding(4, 3), torch.tensor(1)),
    ],
)
def test_inputs_without_a_batch(module: nn.Module, x: Tensor) -> None:
    with avt.GradientNorms(module) as norms:
        module(x).sum().backward()
    with pytest.raises(ValueError, match=r"model \(\w+\): its input has shape .* must have a batch dimension"):
        norms()
