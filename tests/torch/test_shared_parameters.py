"""A parameter with several uses counts once, with the sum of its gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import avare.torch as avt
from per_example import agree, batch, limited, losses, mlp

# PyTorch warns where its vmap falls back to a loop, and about changes of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


class Repeated(nn.Module):
    """A layer that is called three times, and a normalisation that is called twice."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(self.norm(self.layer(x)))
        return torch.as_tensor(self.layer(x))


class Tied(nn.Module):
    """A language model whose last layer shares the weight of the first."""

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
    """The same, but no module sees the second use."""

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


def test_a_weight_shared_by_layers_with_different_groups() -> None:
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


def test_refuses_uses_that_no_module_sees() -> None:
    model, x = Functional(), torch.randint(0, 7, (4, 5))
    with pytest.raises(ValueError, match=r"embedding\.weight is used other than by a call"), avt.GradientNorms(model):
        model(x)
    model = mlp()
    norms = avt.GradientNorms(model).attach()
    hidden = functional.linear(batch(mlp), model[0].weight)  # the model itself is never called
    losses(model[2](hidden)).mean().backward()
    with pytest.raises(ValueError, match=r"0\.weight is used other than by a call"):
        norms()


def test_refuses_later_uses_that_no_module_sees() -> None:
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

    for way, passes in (("fewer", 1), ("more", 32)):  # different modules are called; the same modules
        model, x = Later(), batch(mlp)
        norms = avt.GradientNorms(model).attach()
        for _ in range(5):
            losses(model(x)).mean().backward()
            norms()
        model.way = way
        with pytest.raises(ValueError, match=r"one\.weight is used other than by a call"):
            [model(x) for _ in range(passes)]
