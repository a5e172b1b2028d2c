"""Modules without a rule are run a second time; parameters may be left out."""

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import avare.torch as avt
from per_example import Around, Make, Scaled, agree, batch, in_one_pass, limited, losses, mlp, one_by_one, without

# PyTorch warns where its vmap falls back to a loop, and about changes of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


def inner(name: str) -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return {
            "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            "scaled": Scaled,
            "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
            "weight norm, no bias": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8, bias=False)),
            "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(8, 8)),
            "recurrent": lambda: nn.LSTM(8, 8, batch_first=True),
            "transposed": lambda: nn.ConvTranspose1d(5, 5, 3, padding=1),
            "prelu": nn.PReLU,
        }[name]()


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "scaled",
        "weight norm",
        "weight norm, no bias",
        "old weight norm",
        "recurrent",
        "transposed",
        "prelu",
    ],
)
def test_fallback(name: str) -> None:
    model = Around(inner(name))
    with pytest.raises(ValueError, match=r"no rule is known for the parameters of inner \(.*fallback='vmap'"):
        avt.GradientNorms(model)
    with limited(2000):
        assert agree(model, batch(Around), fallback="vmap")


class Decides(nn.Module):
    """Takes a way that depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor((x if bool(x[0].sum() > 0.0) else x.square()) * self.scale)


def test_refuses_what_vmap_cannot_run() -> None:
    model, x = Around(Decides()), batch(Around)[:1]
    with pytest.raises(ValueError, match=r"inner \(Decides\): it cannot be run example by example by vmap"):
        in_one_pass(model, x, fallback="vmap")


def test_the_whole_model_and_shared_parameters() -> None:
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


def test_a_module_whose_layers_are_called_elsewhere_too() -> None:
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


def test_after_a_pass_that_failed() -> None:
    model, x = Around(Scaled()), batch(Around)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model, fallback="vmap").attach()
    with pytest.raises(RuntimeError, match="must match"):
        model.inner(x, torch.ones(3))
    losses(model(x)).mean().backward()
    assert torch.allclose(norms().double(), wanted, rtol=1e-5)


def test_an_output_that_is_not_finite() -> None:
    model, x = Around(Scaled()), batch(Around)
    x[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match=r"norms\[3\] = nan: the gradient is not finite"):
        in_one_pass(model, x, fallback="vmap")


class Centred(nn.Module):
    """Mixes the examples; only its output shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(dim=0)) * self.scale


class Noisy(Centred):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x * self.scale, 0.5)


@pytest.mark.parametrize("kind", [Centred, Noisy, lambda: nn.MultiheadAttention(8, 2)])
def test_refuses_modules_that_mix_examples_or_draw_random_numbers(kind: Make) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"inner \(\w+\): it.* (for an example alone|example by example)"):
        in_one_pass(Around(kind()), batch(Around), fallback="vmap")


def test_refuses_parameters_that_have_changed_since() -> None:
    model = Around(Scaled())
    norms = avt.GradientNorms(model, fallback="vmap").attach()
    losses(model(batch(Around))).mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(ValueError, match=r"inner \(Scaled\): its input, or a parameter, was changed in place"):
        norms()


# --- by choice -----------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["0"], ["0.weight"], ["2.bias", "2.weight"], ["2"], ["0.bias", "2"]])
def test_excluded_parameters_do_not_count_but_are_trained(names: list[str]) -> None:
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


def test_excluded_parameters_need_no_rule() -> None:
    for name in ("scaled", "prelu"):
        model, x = Around(inner(name)), batch(Around)
        own = [parameter for key, parameter in model.inner.named_parameters() if "." not in key]
        norms = avt.GradientNorms(model, exclude=iter(own)).attach()
        losses(model(x)).mean().backward()
        assert torch.allclose(norms().double(), without(model, x, *own), rtol=1e-4)
    scaled = Around(inner("scaled"))
    weight = scaled.inner.layer.weight  # of a layer inside the recomputed module
    norms = avt.GradientNorms(scaled, exclude=[weight], fallback="vmap").attach()
    losses(scaled(batch(Around))).mean().backward()
    assert torch.allclose(norms().double(), without(scaled, batch(Around), weight), rtol=1e-4)

    class Unseen(nn.Module):  # no module sees the second use of the embedding's weight
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer = nn.Embedding(7, 4), nn.Linear(7, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(functional.linear(self.embedding(x), self.embedding.weight)))

    model, words = Unseen(), torch.randint(0, 7, (4, 5))
    norms = avt.GradientNorms(model, exclude=[model.embedding]).attach()
    losses(model(words)).mean().backward()
    assert torch.allclose(norms().double(), without(model, words, model.embedding.weight), rtol=1e-4)


def test_layers_with_a_rule_can_be_recomputed() -> None:
    first, whole = mlp(), mlp()
    assert agree(first, batch(mlp), recompute=[first[0]])
    assert agree(whole, batch(mlp), recompute=[whole])


def test_refuses_modules_of_another_model() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"exclude\[1\] is of type Linear: must be a module or a parameter of the"):
        avt.GradientNorms(model, exclude=[model[0], nn.Linear(4, 3)])
    with pytest.raises(ValueError, match=r"exclude\[0\] is of type str: must be a module or a parameter of the model"):
        avt.GradientNorms(model, exclude=["0.weight"])
    for other in (nn.Linear(4, 3), model[0].weight):
        with pytest.raises(ValueError, match=r"recompute has a (Linear|Parameter): must have modules of the model"):
            avt.GradientNorms(model, recompute=[other])


def test_refuses_modules_without_a_rule_that_are_trained_later() -> None:
    model = Around(Centred())
    model.inner.requires_grad_(False)
    norms = avt.GradientNorms(model).attach()
    losses(model(batch(Around))).mean().backward()
    norms()
    model.inner.requires_grad_(True)
    losses(model(batch(Around))).mean().backward()
    with pytest.raises(ValueError, match=r"inner\.scale was frozen, and is now trained"):
        norms()


def test_refuses_an_output_without_a_batch() -> None:
    class Total(Centred):
        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).sum()

    total = Total()
    with avt.GradientNorms(total, fallback="vmap") as norms:
        total(torch.randn(4, 8)).backward()
    with pytest.raises(ValueError, match=r"model \(Total\): its output is a single number"):
        norms()
