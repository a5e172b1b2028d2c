"""Positions that all examples share are refused where they can be seen."""

import pytest
import torch
from torch import Tensor, nn

import avare.torch as avt
from per_example import Positions, agree, in_one_pass, losses, without

# PyTorch warns where its vmap falls back to a loop, and about changes of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


@pytest.mark.parametrize("way", ["added", "unsqueezed", "expanded", "times"])
@pytest.mark.parametrize("n", [3, 5])
def test_shared_positions_are_refused(way: str, n: int) -> None:
    model, x = Positions(way), torch.randint(0, 7, (n, 5))  # 5 is the number of positions too
    with pytest.raises(ValueError, match=r"place \(Embedding\).* torch.arange\(T\).expand\(n, T\)"):
        in_one_pass(model, x)
    assert agree(Positions("per example"), x)


def test_one_index_per_example_is_not_a_position() -> None:
    class Rated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.user, self.words = nn.Embedding(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            user = self.user(x[:, 0].long())
            return torch.as_tensor(self.words(user[:, None] * x[:, 1:, None] + user.unsqueeze(1)))

    for n in (1, 4):
        assert agree(Rated(), torch.cat([torch.arange(n).flip(0)[:, None], torch.randn(n, 4)], dim=1))


def test_refuses_batches_of_different_sizes() -> None:
    model = Positions("joined")
    with avt.GradientNorms(model) as norms:
        losses(model(torch.randint(0, 7, (3, 5)))).mean().backward()
    message = r"has a batch of \d, .* one of \d: the first dimension must be the batch.*torch.arange\(T\).expand"
    with pytest.raises(ValueError, match=message):
        norms()


def test_shared_positions_can_be_excluded_or_recomputed() -> None:
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
        norms.detach()
