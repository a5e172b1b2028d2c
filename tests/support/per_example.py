"""Gradient norms from one pass, against one backward pass per example: the common check of all layers.

`check_layer` holds for any layer with a rule, also for one that is registered outside the package.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import avare.torch as avt
from avare.torch.norms.layers import parts

torch.set_num_threads(1)  # with more, the processes of a parallel test run disturb each other
Make = Callable[[], nn.Module]


def losses(output: Any) -> Tensor:
    """The loss of each example, with gradients of all signs and sizes at every entry."""
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


def without(model: nn.Module, x: Tensor, *excluded: nn.Parameter) -> Tensor:
    """The norms of `one_by_one` with some parameters frozen."""
    for parameter in excluded:
        parameter.requires_grad_(False)
    wanted = one_by_one(model, x)
    for parameter in excluded:
        parameter.requires_grad_(True)
    return wanted


def in_one_pass(model: nn.Module, x: Tensor, **options: Any) -> Tensor:
    """The same by `GradientNorms`, with weights."""
    weight = 0.5 + torch.arange(len(x)) % 3
    with avt.GradientNorms(model, **options) as norms:
        (weight * losses(model(x))).mean().backward()
    return norms(weight)


def agree(model: nn.Module, x: Tensor, *, tolerance: float = 2e-4, **options: Any) -> bool:
    """Whether both agree. Float32 needs the tolerance where positions nearly cancel; a wrong formula is far off."""
    found, wanted = in_one_pass(model, x, **options), one_by_one(model, x)
    assert found.shape == (len(x),) and not found.requires_grad
    scale = float(wanted.max()) if len(x) else 0.0
    return bool(torch.allclose(found.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale))


@contextmanager
def limited(largest: int) -> Iterator[None]:
    """Chunks of few examples."""
    before = parts._LARGEST
    parts._LARGEST = largest
    try:
        yield
    finally:
        parts._LARGEST = before


def draw_parameters(model: nn.Module) -> None:
    """Set parameters and running statistics to random values."""
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2.0)


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x) * (1.0 + self.layer(x)))


def check_layer(make: Make, batch: Callable[[int], Tensor], *, empty: bool = True) -> None:
    """Assert what every rule must do, for parameters at random.

    Parameters
    ----------
    make
        Makes the layer.
    batch
        Makes an input of n examples.
    empty
        Whether the layer itself works without any example.
    """
    torch.manual_seed(0)
    layer = make()
    draw_parameters(layer)
    for n in (1, 2, 5, *([0] if empty else [])):
        assert agree(layer, batch(n)), f"{n} examples"
    with limited(1):
        assert agree(layer, batch(3)), "in chunks"
    assert agree(Twice(layer), batch(3)), "called twice"
    parameters = dict(layer.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(False)
        if len(parameters) > 1:
            assert agree(layer, batch(3)), f"{name} frozen"
        parameter.requires_grad_(True)
    x, gradients = batch(4), []
    for watched in (False, True):
        layer.zero_grad()
        norms = avt.GradientNorms(layer)
        if watched:
            norms.attach()
        losses(layer(x)).mean().backward()
        norms.detach()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True)), "gradients of the parameters"


# --- small models --------------------------------------------------------------------------


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).to(dtype)


def cnn() -> nn.Module:
    """Convolutions and a GroupNorm."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3)),
    )


def text() -> nn.Module:
    """An embedding and a LayerNorm."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Embedding(7, 6, padding_idx=1), nn.Linear(6, 9), nn.ReLU(inplace=True), nn.LayerNorm(9)),
        *(nn.Linear(9, 4), nn.Flatten(), nn.Linear(20, 2)),
    )


def batch(model: Callable[..., nn.Module], n: int = 6) -> Tensor:
    """An input of n examples for one of these models, or for sequences of 5 vectors of 8."""
    generator = torch.Generator().manual_seed(3)
    if model is text:
        return torch.randint(0, 7, (n, 5), generator=generator)
    return torch.randn(n, *{mlp: (4,), cnn: (1, 8, 8)}.get(model, (5, 8)), generator=generator)


class Scaled(nn.Module):
    """A parameter of its own beside a layer, with a second argument and a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 8))
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, shift: Tensor, *, power: int = 2) -> tuple[Tensor, Tensor]:
        return self.layer(x * self.scale + shift) ** power, self.scale.sum() * x


class Around(nn.Module):
    """A module between two layers."""

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


class Positions(nn.Module):
    """Words and their positions, which all examples share, added in different ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.place, self.way = nn.Embedding(7, 4), nn.Embedding(5, 4), way

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        if self.way == "per example":
            return torch.as_tensor(self.token(x) + self.place(places.expand(x.shape)))
        found = self.place(places)
        if self.way == "unsqueezed":
            found = found[None]
        elif self.way == "expanded":
            found = found.expand(*x.shape, 4)
        elif self.way == "joined":
            return torch.cat([self.token(x), torch.stack([found] * len(x))], dim=2)
        return torch.as_tensor(found * self.token(x) if self.way == "times" else self.token(x) + found)
