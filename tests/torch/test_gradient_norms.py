"""Exact norms from one pass, against one backward pass per example."""

import copy
import io
import itertools
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import avare.torch as avt
from per_example import Around, Make, Scaled, agree, batch, cnn, in_one_pass, losses, mlp, one_by_one, text

# PyTorch warns where its vmap falls back to a loop, and about changes of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


# --- whole models --------------------------------------------------------------------------


every_model = pytest.mark.parametrize("make", [mlp, cnn, text])


@every_model
@pytest.mark.parametrize("n", [1, 2, 7])
def test_models(make: Make, n: int) -> None:
    assert agree(make(), batch(make, n))


@every_model
def test_the_parameters_have_the_same_gradients_bit_for_bit(make: Make) -> None:
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


def test_parameters_frozen_and_trained_again() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    for frozen in (True, False):
        model[0].requires_grad_(not frozen)
        losses(model(x)).mean().backward()
        assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


# --- precision -----------------------------------------------------------------------------


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


# --- passes --------------------------------------------------------------------------------


def require_nothing_recorded(norms: avt.GradientNorms) -> None:
    with pytest.raises(RuntimeError, match="no backward pass"):
        norms()


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
        require_nothing_recorded(norms)
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
    for loss, each in ((one, wanted[:4]), (two, wanted[4:])):  # one call after each
        loss.mean().backward()
        assert torch.allclose(norms().double(), each, rtol=1e-5)


def test_refuses_several_backward_passes() -> None:
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


def test_forward_passes_without_gradients_record_nothing() -> None:
    model, x = mlp(), batch(mlp)
    wanted = one_by_one(model, x)
    norms = avt.GradientNorms(model).attach()
    losses(model(x)).mean().backward()
    with torch.no_grad():
        model.eval()(x)
    assert torch.allclose(norms().double(), wanted, rtol=1e-5)
    with torch.inference_mode():
        model(x)
    require_nothing_recorded(norms)
    model(x)  # with gradients, but without a backward pass
    require_nothing_recorded(norms)
    model.requires_grad_(False)
    losses(model(x.requires_grad_())).mean().backward()
    require_nothing_recorded(norms)


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
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    require_nothing_recorded(norms)
    assert not any(module._forward_hooks for module in model.modules())


def test_torch_autograd_grad() -> None:
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


# --- copies and wrappers -------------------------------------------------------------------


def test_copies_of_the_model_are_not_recorded() -> None:
    model, x = mlp(), batch(mlp)
    norms = avt.GradientNorms(model).attach()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    for each in copies:
        losses(each(x)).mean().backward()
        require_nothing_recorded(norms)
        assert all(p.grad is None for p in model.parameters())
    losses(model(x)).mean().backward()
    assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


def test_distributed_models() -> None:
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


# --- wrong use -----------------------------------------------------------------------------


def test_refuses_arguments() -> None:
    with pytest.raises(TypeError, match="model is of type list"):
        avt.GradientNorms([])
    with pytest.raises(ValueError, match="fallback = 'no': must be None or 'vmap'"):
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
        ([1.0, 2.0, 0.0, 1.0, 1.0, 1.0], r"weight\[2\] = 0.0: must be finite and not 0"),
        ([1.0, np.nan, 0.0, 1.0, 1.0, 1.0], r"weight\[1\] = nan: must be finite"),
    ],
)
def test_refuses_weights_and_can_be_called_again(weight: Any, message: str) -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        losses(model(x)).mean().backward()
    with pytest.raises((ValueError, TypeError), match=message):
        norms(weight)
    with pytest.raises(ValueError, match="reduction = 'none': must be one of mean, sum"):
        norms(reduction="none")  # type: ignore[arg-type]  # the point
    assert torch.allclose(norms().double(), one_by_one(model, x), rtol=1e-5)


def test_refuses_inputs_changed_after_the_pass() -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        losses(model(x)).mean().backward()
    x.zero_()
    with pytest.raises(ValueError, match=r"0 \(Linear\): its input was changed in place after the forward pass"):
        norms()


def test_gradients_that_are_not_finite() -> None:
    model, x = mlp(), batch(mlp)
    with avt.GradientNorms(model) as norms:
        (losses(model(x)) * torch.tensor([1.0, 1.0, np.nan, 1.0, 1.0, 1.0])).mean().backward()
    with pytest.raises(ValueError, match=r"norms\[2\] = nan: the gradient is not finite"):
        norms()
    with pytest.raises(ValueError, match="not_finite = 'skip': must be one of raise, keep"):
        norms(not_finite="skip")  # type: ignore[arg-type]  # the point
    found, wanted = norms(not_finite="keep"), one_by_one(model, x)
    others = torch.tensor([0, 1, 3, 4, 5])
    assert torch.isnan(found[2])
    assert torch.allclose(found[others].double(), wanted[others], rtol=1e-5)


def test_a_step_that_overflows_is_skipped() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 4) * torch.logspace(-1.0, 3.0, 40)[:, None]
    model, twin = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    loader = avt.ImportanceLoader(TensorDataset(x), 8, seed=0, batches_per_epoch=10**9, distributed=None)
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
        waiting = loader.measures()["waiting"]
        loader.update(index, found, not_finite="skip")
        assert loader.measures()["waiting"] == waiting - int(finite.sum())
        overflowed.append(not bool(finite.all()))
    assert overflowed[0] and not overflowed[-1]  # the scale has decreased
