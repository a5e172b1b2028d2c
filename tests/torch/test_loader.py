"""The loader: unbiased, with epochs of any length, and clear about wrong use."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

import avare
import avare.torch as avt
from avare.samplers.registry import example, get
from laws import ordered_samples
from loaders import CLASSES, changing_norms, forever, make_dataset, run, snapshot, through_a_file

# Python warns about every fork of a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def norms_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.softmax(dim=1) - F.one_hot(labels, CLASSES)).norm(dim=1)


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, CLASSES).double()


def gradient(model: torch.nn.Module, rows: Any, labels: Any, weight: Any) -> Any:
    """The gradient of the mean of weight times loss."""
    model.zero_grad()
    (weight * F.cross_entropy(model(rows), labels, reduction="none")).mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


# --- unbiased ------------------------------------------------------------------------------


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_gradient_is_unbiased_by_enumeration(replacement: bool, workers: int) -> None:
    n, size, steps = 5, 3, 9
    dataset, model = make_dataset(n), make_model()
    options: dict[str, Any] = {"batches_per_epoch": 10**9, "num_workers": workers, "distributed": None}
    loader = avt.ImportanceLoader(dataset, size, sampler="Calibrated", replacement=replacement, seed=1, **options)
    lag = 2 * workers
    laws = [loader.importance_sampler.probabilities()] * (lag + 1)  # with which batch k is drawn
    batches = iter(loader)
    for step in range(steps):
        (rows, labels), index, weight = next(batches)
        p = laws[step]
        expected = size * avare.batch_weights(p[index.numpy()], replacement) / n
        assert weight.dtype == torch.float32 and index.dtype == torch.int64
        assert np.allclose(weight.numpy(), expected, rtol=1e-6)  # float32
        assert torch.equal(rows, dataset.tensors[0][index]) and torch.equal(labels, dataset.tensors[1][index])
        loader.update(index, norms_of(model(rows), labels) * changing_norms(step, index))
        laws.append(loader.importance_sampler.probabilities())  # the law of batch step + 1 + lag
    assert len({tuple(p.round(6)) for p in laws}) > 3
    rows, labels = dataset.tensors
    full = gradient(model, rows, labels, torch.ones(n))
    for p in laws[steps - 1 : steps + 1]:
        mean = torch.zeros_like(full)
        for sample, chance in ordered_samples(p, size, replacement):
            chosen = torch.tensor(sample)
            weight = torch.from_numpy(size * avare.batch_weights(p[list(sample)], replacement) / n)
            mean += chance * gradient(model, rows[chosen], labels[chosen], weight)
        assert torch.allclose(mean, full, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [each for each in avare.samplers.names() if not get(each).needs_all_norms])
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
def test_every_sampler_by_name(name: str) -> None:
    loader = avt.ImportanceLoader(make_dataset(20), 4, sampler=name, sampler_options=_options(name), seed=0)
    kind = avare.samplers.get(name)
    assert type(loader.importance_sampler) is kind
    assert loader.importance_sampler.replacement == kind.with_replacement_only
    run(loader, 1, 12)
    state = loader.state_dict()
    twin = avt.ImportanceLoader(make_dataset(20), 4, sampler=name, sampler_options=_options(name), seed=5)
    twin.load_state_dict(through_a_file(state))
    assert run(twin, 13, 30) == run(loader, 13, 30)


def _options(name: str) -> dict[str, Any]:
    return {key: value for key, value in example(name, 20).items() if key != "replacement"}


def test_the_default_draws_thinned_passes() -> None:
    loader, sampler = avt.ImportanceLoader(make_dataset(20), 4, seed=3), avare.Passes(20, 4, seed=3)
    for step, (_, index, weight) in zip(range(25), forever(loader), strict=False):
        batch = sampler.sample()
        assert index.tolist() == batch.indices.tolist()
        assert np.allclose(weight.numpy(), 4 * batch.weights / 20, rtol=1e-6)  # float32
        norms = changing_norms(step, index)
        loader.update(index, norms)
        sampler.update(batch.indices, norms.numpy())
    assert sampler.gain != 1.0  # some were left out


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, avare.Passes),
        ({"replacement": False}, avare.Passes),
        ({"sampler_options": {"least": 0.4}}, avare.Passes),
        ({"replacement": True}, avare.Calibrated),
        ({"sampler_options": {"decay": 0.9}}, avare.Calibrated),
        ({"sampler_options": {"initial_norms": np.ones(20)}}, avare.Calibrated),
        ({"score": lambda batch: batch}, avare.Calibrated),
    ],
)
def test_the_default_is_what_the_other_arguments_allow(arguments: dict[str, Any], kind: type[avare.Sampler]) -> None:
    score = {key: arguments[key] for key in arguments if key == "score"}
    others = {key: arguments[key] for key in arguments if key != "score"}
    again = avt.Importance(**others).loader(range(20), 4, **score, seed=5)
    for loader in (avt.ImportanceLoader(range(20), 4, **arguments), again):
        assert type(loader.importance_sampler) is kind


def test_the_floor_of_calibrated_lasts() -> None:
    sampler = avt.ImportanceLoader(make_dataset(20), 4, sampler="Calibrated").importance_sampler
    same = avare.Calibrated(20, 4, p_min=1 / 100)
    assert sampler.state_dict()["p_min"] == 1 / 100 and sampler.state_dict()["c"] == same.state_dict()["c"]
    for options, wanted in (({"p_min": 0.0}, 0.0), ({"p_min": 0.002}, 0.002), ({"c": 20.0}, 0.0)):
        loader = avt.ImportanceLoader(make_dataset(20), 4, sampler="Avare", sampler_options=options)
        assert loader.importance_sampler.state_dict()["p_min"] == wanted


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many for interpreted code")
def test_more_examples_than_float32_can_count() -> None:
    n = 2**25 + 1
    loader = avt.ImportanceLoader(range(n), 64, seed=0, batches_per_epoch=10**9, distributed=None)
    beyond = set()
    for item, index, weight in itertools.islice(loader, 20):
        assert torch.equal(item, index) and index.dtype == torch.int64
        assert torch.allclose(weight, torch.ones(64), rtol=1e-3)  # no norm is known yet
        beyond |= {i for i in index.tolist() if i > 2**24 and i % 2}  # which are no float32
        loader.update(index, 1.0 + index % 7)
    assert len(beyond) > 100  # a quarter of 1280 is expected; fewer by 14 standard deviations
    assert max(beyond) < n and loader.measures()["waiting"] == 0 and loader.gain > 0.0
    with pytest.raises(ValueError, match=rf"index\[0\] = {n}: must be in \[0, {n}\)"):
        loader.update([n], [1.0])


def test_a_sampler_given_as_an_object() -> None:
    sampler = avare.Srg(20, 4, theta=0.3, seed=3)
    loader = avt.ImportanceLoader(make_dataset(20), 4, sampler=sampler)
    assert loader.importance_sampler is sampler
    same = avt.ImportanceLoader(make_dataset(20), 4, sampler="Srg", sampler_options={"theta": 0.3}, seed=3)
    assert run(loader, 1, 9) == run(same, 1, 9)


# --- epochs --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_draws_n_examples(workers: int) -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=workers)
    assert len(loader) == 7
    for epoch in range(3):
        assert loader.epoch == epoch
        loader.set_epoch(17)
        loader.batch_sampler.set_epoch(17)
        assert [len(index) for _, index, _ in loader] == [8] * 7
    assert loader.importance_sampler.steps == 21


def test_epochs_of_any_length_and_without_end() -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, batches_per_epoch=3)
    assert len(loader) == 3 and len(list(loader)) == 3
    endless = avt.ImportanceLoader(make_dataset(50), 8, endless=True)
    assert len(list(itertools.islice(endless, 40))) == 40
    with pytest.raises(TypeError, match="an endless epoch has no length"):
        len(endless)
    with pytest.raises(ValueError, match="batches_per_epoch = 3: an endless epoch has no number of batches"):
        avt.ImportanceLoader(make_dataset(50), 8, batches_per_epoch=3, endless=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_iteration_is_a_new_epoch(workers: int) -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=workers)
    for _ in loader:
        break
    assert len(list(loader)) == 7
    assert loader.epoch == 2
    lag = 2 * workers
    assert loader.importance_sampler.steps == 1 + lag + 7  # what was drawn ahead is dropped


@pytest.mark.parametrize("persistent", [True, False])
def test_a_second_iterator_changes_nothing(persistent: bool) -> None:
    def make() -> avt.ImportanceLoader:
        return avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=2, persistent_workers=persistent)

    loader = make()
    iter(loader)
    assert run(loader, 1, 10) == run(make(), 1, 10)
    assert loader.importance_sampler.steps == 14  # 10, and 4 ahead


def test_an_earlier_iteration_cannot_continue() -> None:
    for workers in (0, 2):
        loader = avt.ImportanceLoader(make_dataset(50), 8, num_workers=workers)
        first = iter(loader)
        next(first)
        next(iter(loader))
        with pytest.raises(RuntimeError, match="another iteration has begun"):
            next(first)
        second = iter(loader)
        next(second)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match="a state was loaded"):
            next(second)


@pytest.mark.parametrize("persistent", [True, False])
def test_an_earlier_iteration_takes_nothing_from_the_next(persistent: bool) -> None:
    def make() -> avt.ImportanceLoader:
        return avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=1, persistent_workers=persistent)

    def drawn_by(disturb: bool) -> list[list[int]]:
        loader = make()
        unused, first = iter(loader), iter(loader)
        next(first)
        second = iter(loader)
        drawn = [next(second)[1].tolist()]
        for stale in (unused, first) if disturb else ():
            with pytest.raises(RuntimeError, match="another iteration has begun"):
                next(stale)
        drawn += [index.tolist() for _, index, _ in second]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(second)
        assert loader.epoch == 2 and loader.state_dict()["drawn"] == 0
        return drawn

    assert len(drawn_by(True)) == 7
    assert drawn_by(True) == drawn_by(False)


def test_an_earlier_iteration_does_not_return_what_it_has_drawn() -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, num_workers=2)
    first = iter(loader)
    for _ in range(5):  # of 7: the last two are on their way
        next(first)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(iter(first))


def test_all_batches_taken_one_by_one() -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8)
    batches = iter(loader)
    for taken in range(7):
        assert (loader.received, loader.is_over) == (taken, False)
        next(batches)
    assert loader.is_over and len(list(loader)) == 7  # a new epoch, without asking for the end of the first
    next(iter(loader))
    loader.finish_epoch()
    assert (loader.received, loader.epoch) == (0, 3)


# --- updates -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_norms_of_any_kind(kind: torch.dtype) -> None:
    loader = avt.ImportanceLoader(make_dataset(20), 4, seed=0)
    _, index, _ = next(iter(loader))
    norms = torch.tensor([1.0, 2.0, 4.0, 8.0]).to(kind)
    loader.update(index, norms.requires_grad_() if kind.is_floating_point else norms)
    sampler = loader.importance_sampler
    assert sampler.norms(index.numpy()).tolist() == [1.0, 2.0, 4.0, 8.0]
    assert loader.gain > 0.0


def test_updates_with_arrays_and_lists_at_once_later_or_twice() -> None:
    loader = avt.ImportanceLoader(make_dataset(20), 4, seed=0)
    batches = [index for _, index, _ in loader]
    drawn = len({int(i) for index in batches for i in index})
    assert loader.measures()["waiting"] == drawn
    loader.update(batches[1].numpy(), np.ones(4))
    loader.update(batches[0].tolist(), [1, 2, 3, 4])
    loader.update(batches[0], [1.0, 2.0, 3.0, 4.0])
    loader.update(batches[2][:2].int(), [1.0, 1.0])
    loader.update([], [])
    left = {int(i) for index in batches[2:] for i in index} - {
        int(i) for i in torch.cat([*batches[:2], batches[2][:2]])
    }
    assert loader.measures()["waiting"] == len(left)


BAD_UPDATES: list[tuple[Any, Any, type[Exception], str]] = [
    ([0, 1], [1.0, math.nan], ValueError, r"norms\[1\] = nan"),
    ([0, 1], torch.tensor([math.inf, 1.0]), ValueError, r"norms\[0\] = inf"),
    ([0, 1], [1.0, -1.0], ValueError, r"norms\[1\] = -1.0"),
    ([0, 1], [1.0], ValueError, "norms has length 1: must match index, which has 2"),
    ([0, 1], torch.tensor([True, True]), TypeError, "norms has dtype bool"),
    ([0, 20], [1.0, 1.0], ValueError, r"index\[1\] = 20: must be in \[0, 20\)"),
    (torch.tensor([0.0, 1.0]), [1.0, 1.0], TypeError, "index has dtype float32"),
    (torch.tensor([[0, 1]]), [1.0, 1.0], ValueError, r"index has shape \(1, 2\)"),
]


@pytest.mark.parametrize(("index", "norms", "error", "message"), BAD_UPDATES)
def test_a_bad_update_changes_nothing(index: Any, norms: Any, error: type[Exception], message: str) -> None:
    loader = avt.ImportanceLoader(make_dataset(20), 20, seed=0)
    next(iter(loader))
    before = snapshot(loader)
    with pytest.raises(error, match=message):
        loader.update(index, norms)
    assert snapshot(loader) == before


def test_norms_that_are_not_finite_can_be_skipped() -> None:
    loader = avt.ImportanceLoader(make_dataset(20), 6, sampler="Avare", seed=0)
    sampler = loader.importance_sampler
    assert isinstance(sampler, avare.Avare)
    _, index, _ = next(iter(loader))
    norms = torch.tensor([1.0, math.nan, 2.0, math.inf, -math.inf, 3.0])
    loader.update(index, norms, not_finite="skip")
    assert sampler.norms()[index.numpy()].tolist() == [1.0, 0.0, 2.0, 0.0, 0.0, 3.0]
    assert loader.measures()["waiting"] == 3 and math.isnan(loader.gain)
    before = snapshot(loader)
    loader.update(index, torch.full((6,), math.nan), not_finite="skip")
    with pytest.raises(ValueError, match=r"norms\[2\] = -1.0"):
        loader.update(index, [math.nan, 1.0, -1.0, 1.0, 1.0, 1.0], not_finite="skip")
    with pytest.raises(ValueError, match="norms has length 2: must match index, which has 6"):
        loader.update(index, [math.nan, 1.0], not_finite="skip")
    with pytest.raises(ValueError, match=r"norms has shape \(1, 6\)"):
        loader.update(index, norms[None], not_finite="skip")
    with pytest.raises(ValueError, match="not_finite = 'keep': must be one of raise, skip"):
        loader.update(index, torch.ones(6), not_finite="keep")  # type: ignore[arg-type]  # the point
    assert snapshot(loader) == before


def test_refuses_what_was_never_drawn_and_names_it() -> None:
    loader = avt.ImportanceLoader(make_dataset(20), 4, seed=0)
    _, index, _ = next(iter(loader))
    others = [i for i in range(20) if i not in index.tolist()]
    before = snapshot(loader)
    with pytest.raises(ValueError, match=rf"^index\[1\] = {others[3]}: never drawn"):
        loader.update([int(index[0]), others[3]], [1.0, 1.0])
    assert snapshot(loader) == before


def test_measures() -> None:
    dataset = make_dataset(6)
    loader = avt.ImportanceLoader(dataset, 6, sampler="Avare", seed=0, batches_per_epoch=50)
    assert set(loader.measures()) == {"floor", "waiting"}  # before the first draw
    for _, index, weight in loader:
        assert loader.measures()["waiting"] == 6
        loader.update(index, 1.0 + index)
        found, ess = loader.measures(), float(weight.double().sum() ** 2 / (weight.double() ** 2).sum())
        assert found["effective_sample_size"] == pytest.approx(ess, rel=1e-6) and found["waiting"] == 0.0
        assert found["floor"] == loader.importance_sampler.floor  # type: ignore[attr-defined]  # Avare's
    assert found["gain"] == loader.gain
    assert "floor" not in avt.ImportanceLoader(dataset, 2, sampler="Uniform").measures()


# --- datasets and collate functions --------------------------------------------------------


class Words(Dataset[str]):
    """Items that are not tensors."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> str:
        return f"w{index}"


class ManyWords(Words):
    """The same, a batch at a time."""

    def __getitems__(self, indices: list[int]) -> tuple[str, ...]:
        assert all(type(index) is int for index in indices)
        return tuple(f"w{index}!" for index in indices)


def join(items: list[str]) -> str:
    assert type(items) is list
    return " ".join(items)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("dataset", "end"), [(Words(), ""), (ManyWords(), "!"), ([f"w{i}" for i in range(20)], "")])
def test_any_dataset_and_collate_function(dataset: Any, end: str, workers: int) -> None:
    for text, index, _ in avt.ImportanceLoader(dataset, 4, collate_fn=join, num_workers=workers):
        assert text == " ".join(f"w{i}{end}" for i in index.tolist())
    for texts, index, _ in avt.ImportanceLoader(dataset, 4, num_workers=workers):
        assert texts == [f"w{i}{end}" for i in index.tolist()]


def test_tensors_come_as_the_default_collate_function_makes_them() -> None:
    dataset = make_dataset(20)
    batch, index, _ = next(iter(avt.ImportanceLoader(dataset, 4)))
    expected = default_collate([dataset[i] for i in index.tolist()])
    assert type(batch) is type(expected)
    assert all(torch.equal(one, other) for one, other in zip(batch, expected, strict=True))


def pin(data: Any, device: Any = None) -> Any:
    """Do what PyTorch 2.4 does to pin the memory of a batch, but return tensors unchanged."""
    if isinstance(data, torch.Tensor | str):
        return data
    if isinstance(data, tuple):
        return [pin(each) for each in data]
    if isinstance(data, Sequence):
        try:
            return type(data)([pin(each) for each in data])  # type: ignore[call-arg]  # as PyTorch does
        except TypeError:
            return [pin(each) for each in data]
    return data.pin_memory() if hasattr(data, "pin_memory") else data


def test_memory_pinned_by_older_versions_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, plain = (avt.ImportanceLoader(make_dataset(20), 4, seed=0) for _ in range(2))
    batches: Any = iter(loader)
    batches._loaded._pin_memory = True  # which it is where there is an accelerator
    monkeypatch.setattr("torch.utils.data._utils.pin_memory.pin_memory", pin)
    for (rows, labels), index, weight in plain:
        (same_rows, same_labels), same_index, same_weight = next(batches)
        assert torch.equal(same_rows, rows) and torch.equal(same_labels, labels)
        assert torch.equal(same_index, index) and torch.equal(same_weight, weight)


def test_changes_to_a_batch_do_not_reach_the_loader() -> None:
    loader, twin = (avt.ImportanceLoader(make_dataset(20), 4, seed=0) for _ in range(2))
    (rows, _), index, weight = next(iter(loader))
    next(iter(twin))
    index += 1
    weight[:] = 0.0
    rows[:] = 0.0
    assert snapshot(loader) == snapshot(twin)
    assert make_dataset(20).tensors[0].equal(loader.dataset.dataset.tensors[0])


# --- wrong use -----------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


ANYTHING: Any = [1, 2]
NEEDS = [(name, need) for name in avare.samplers.names() for need in avare.samplers.get(name).needs]
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: avt.ImportanceLoader(7, 2), TypeError, "dataset is of type int: must have __getitem__ and __len__"),
    (lambda: avt.ImportanceLoader([], 2), ValueError, "n = 0: must be at least 1"),
    (lambda: avt.ImportanceLoader([1, 2], 2, shuffle=False), ValueError, "shuffle = False: batches are drawn at rand"),
    (lambda: avt.ImportanceLoader([1], 1, sampler=RandomSampler([1])), TypeError, "RandomSampler: must be an avare"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, sampler=ANYTHING), TypeError, "sampler is of type list"),
    # Unreported norms would count as 0, and their examples would never be drawn.
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, sampler="Optimal"), ValueError, "Optimal: needs .* use Calibrated"),
    (lambda: avt.ImportanceLoader([1, 2], 2, sampler=avare.Optimal(2, 2)), ValueError, "Optimal: needs the norms of"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, sampler="passes"), ValueError, "sampler = 'passes': .* mean 'Passes'?"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, batch_sampler=[[1]]), ValueError, "this loader has its own"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, in_order=False), ValueError, "in_order = False"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 4), ValueError, "4 of 3 examples cannot be drawn without replacement"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 0), ValueError, "batch_size = 0: must be at least 1"),
    (lambda: avt.ImportanceLoader([1, 2, 3], ANYTHING), TypeError, r"batch_size = \[1, 2\]: must be an integer"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, batches_per_epoch=0), ValueError, "batches_per_epoch = 0"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, sampler=avare.Uniform(4, 2)), ValueError, "has n = 4: must have 3"),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, sampler=avare.Uniform(3, 1)), ValueError, "has batch_size = 1: must"),
    (
        lambda: avt.ImportanceLoader([1, 2], 2, sampler=avare.Uniform(2, 2), seed=4),
        ValueError,
        "seed are for a sampler",
    ),
    (lambda: avt.ImportanceLoader([1, 2, 3], 2, workers=3), TypeError, "workers"),
]


@pytest.mark.parametrize(("make", "error", "message"), WRONG)
def test_refuses_wrong_use_and_says_why(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("drop_last", [True, False])
def test_options_without_effect_are_accepted(drop_last: bool) -> None:
    loader = avt.ImportanceLoader([1, 2, 3], 4, replacement=True, shuffle=True, drop_last=drop_last, in_order=True)
    assert [len(index) for _, index, _ in loader] == [4]
    assert isinstance(loader, DataLoader)


@pytest.mark.parametrize(("name", "need"), NEEDS)
def test_a_sampler_that_needs_more_than_a_dataset_says_so(name: str, need: str) -> None:
    message = rf"sampler = '{name}' needs {need}: pass sampler_options=\{{'{need}': ...\}}"
    with pytest.raises(ValueError, match=message):
        avt.ImportanceLoader([1, 2, 3], 2, sampler=name)


def test_an_unknown_option_of_the_default_sampler() -> None:
    text = "sampler_options = 'leest': must be one of least, .*; did you mean 'least'"
    with pytest.raises(ValueError, match=text):
        avt.ImportanceLoader([1, 2, 3], 2, sampler_options={"leest": 0.1})
    with pytest.raises(TypeError, match=r"Avare.*'leest'"):
        avt.ImportanceLoader([1, 2, 3], 2, sampler="Avare", sampler_options={"leest": 0.1})


def test_a_loader_that_never_gets_norms_says_so_once() -> None:
    loader = avt.ImportanceLoader(make_dataset(12), 4, seed=0)
    with pytest.warns(
        UserWarning, match=r"^no gradient norms have been reported \(batches drawn: 3\), so draws are still uniform"
    ):
        for _ in loader:
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in loader:  # once is enough
            pass
        silent = avt.ImportanceLoader(make_dataset(12), 4, sampler="Uniform", seed=0)  # which does not learn
        for _ in silent:
            pass
        informed = avt.ImportanceLoader(make_dataset(12), 4, seed=0)
        for _, index, _ in informed:
            informed.update(index[:1], [1.0])
