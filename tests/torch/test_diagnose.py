"""The possible gain, against its definition; the model does not change."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import avare.torch as avt
from avare import diagnostics


def data(n: int = 50) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator) * torch.logspace(-2, 1, n)[:, None]
    return TensorDataset(x, torch.randint(0, 3, (n,), generator=generator))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def norms_of(model: nn.Module, dataset: TensorDataset) -> Any:
    """One by one, in evaluation mode."""
    model.eval()
    result = []
    for x, y in dataset:
        output = model(x[None])
        loss = functional.cross_entropy(output, y[None])
        result.append(torch.autograd.grad(loss, output)[0].norm().item())
    return np.array(result)


@pytest.mark.parametrize(
    "loss", [functional.cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")]
)
@pytest.mark.parametrize("batch_size", [7, 256])
def test_measures(loss: Any, batch_size: int) -> None:
    found = avt.diagnose(net(), loss, data(), batch_size)
    wanted = norms_of(net(), data())
    assert found.gain == pytest.approx(float(diagnostics.gain(wanted)), rel=1e-5)
    assert found.n == 50
    for level, value in found.quantiles.items():
        assert value == pytest.approx(np.quantile(wanted, level), rel=1e-4)
    share = round(found.half_share * 50)
    ordered = np.sort(wanted)[::-1]
    assert ordered[:share].sum() >= 0.5 * wanted.sum() > ordered[: share - 1].sum()


def test_the_model_and_random_numbers_do_not_change() -> None:
    model = net()
    model[1].eval()  # a mode of its own
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    loss = nn.CrossEntropyLoss()

    class Noisy(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.randn(4), index % 3

    avt.diagnose(model, loss, Noisy(), 6)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all((parameter.grad == 3.0).all() for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert loss.reduction == "mean"

    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise KeyError

    with pytest.raises(KeyError):
        avt.diagnose(model, broken, data())
    assert [module.training for module in model] == [True, False, True, True, True]


def test_any_loss() -> None:
    def absolute(output: Tensor, target: Tensor) -> Tensor:
        return output.sum(dim=1).abs()

    class Hinge(nn.Module):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return torch.as_tensor(functional.relu(1.0 - output)).sum(dim=1)

    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU())
    for loss in (absolute, Hinge()):
        assert avt.diagnose(model, loss, data()).gain > 0.999  # rounding
    assert avt.diagnose(model, absolute, data()).gain == pytest.approx(1.0)
    assert avt.diagnose(nn.ReLU(), max, [(torch.ones(()), 0)]).quantiles[1.0] == 1.0  # has no signature
    sizes = avt.diagnose(nn.Flatten(), torch.nn.functional.mse_loss, TensorDataset(torch.eye(3), torch.zeros(3, 3)))
    assert sizes.gain == pytest.approx(1.0)  # a model without parameters


class Items(Dataset[Any]):
    """Items that need a collate function."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> str:
        return str(index)


def pairs_of(items: list[str]) -> Any:
    """Inputs by name, and targets."""
    x, y = data()[[int(item) for item in items]]
    return {"low": x[:, :2], "high": x[:, 2:], "factor": 1.0}, y


class Parts(nn.Module):
    """Takes several arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, low: Tensor, high: Tensor, factor: float = 1.0) -> Tensor:
        return torch.as_tensor(self.net(torch.cat([low, high], dim=1)) * factor)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_items_of_any_kind_and_inputs_of_several_tensors(workers: int) -> None:
    loss = nn.CrossEntropyLoss()
    wanted = avt.diagnose(net(), loss, data(), 7)
    named = avt.diagnose(Parts(), loss, Items(), 7, collate_fn=pairs_of, num_workers=workers)
    x, y = data().tensors
    in_turn = avt.diagnose(Parts(), loss, [((a[:2], a[2:]), b) for a, b in zip(x, y, strict=True)], 7)
    assert named.gain == pytest.approx(wanted.gain, rel=1e-5) == in_turn.gain
    assert named.quantiles == pytest.approx(wanted.quantiles, rel=1e-4)


def test_the_text() -> None:
    def of(values: list[float]) -> str:
        rows = TensorDataset(torch.tensor(values)[:, None], torch.zeros(len(values), 1))
        return str(avt.diagnose(nn.Identity(), nn.MSELoss(), rows))

    text = of([1.0] * 9 + [91.0])
    assert text == (
        "Uniform minibatches have 8.29 times the second moment of the best distribution. Half of the total gradient "
        "norm at the output comes from 10 % of the 10 examples; the median is 2, the largest 182. Use an "
        "ImportanceLoader with update(), which costs next to nothing; pass score= if the training loss is the aim, or "
        "the examples that matter are rare."
    )
    assert "ImportanceLoader with update() may pay, and score= does not" in of([1.0, 1.0, 3.0])
    assert "Too early to say: the norms are alike, as in a net that has not been trained" in of([1.0, 1.0, 1.1])
    assert "1 times the second moment" in of([0.0, 0.0, 0.0])
    assert "nothing to teach" in of([0.0, 0.0, 0.0])


def test_too_early_for_a_net_that_has_not_been_trained() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 8)
    y = (x[:, 0] > 0.0).long()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    dataset = TensorDataset(x, y)
    assert "Too early to say" in avt.diagnose(model, functional.cross_entropy, dataset).advice
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert "Use an ImportanceLoader" in avt.diagnose(model, functional.cross_entropy, dataset).advice


class Stream(IterableDataset[Any]):
    """Has a length, but no items by index."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(data(4))


def any_of(value: Any) -> Any:
    """A value that the types forbid."""
    return value


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: avt.diagnose([], nn.MSELoss(), data()), TypeError, "model is of type list"),
        (lambda: avt.diagnose(net(), any_of(3), data()), TypeError, "loss_fn is of type int: must be callable"),
        (lambda: avt.diagnose(net(), nn.MSELoss(), iter([])), TypeError, "dataset is of type list_iterator"),
        (
            lambda: avt.diagnose(net(), nn.MSELoss(), Stream()),
            TypeError,
            "must have __getitem__ and __len__, as a map-style dataset",
        ),
        (lambda: avt.diagnose(net(), nn.MSELoss(), []), ValueError, "dataset is empty"),
        (lambda: avt.diagnose(net(), nn.MSELoss(), data(), 0), ValueError, "batch_size = 0"),
        (lambda: avt.diagnose(net(), lambda z, y: z.sum(), data()), ValueError, r"loss_fn returns shape \(\) for 50"),
        (lambda: avt.diagnose(net(), nn.MSELoss(), [torch.zeros(4)]), ValueError, r"does not return pairs"),
        (
            lambda: avt.diagnose(net(), nn.MSELoss(), [("a", 1)]),
            ValueError,
            "returns inputs of type tuple: must be",
        ),
        (lambda: avt.diagnose(net(), nn.MSELoss(), data(), num_workers=-1), ValueError, "num_workers"),
    ],
)
def test_refuses_bad_input(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
