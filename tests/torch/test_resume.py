"""Saved states of the loader: resumed to the same batches, and refused if they are damaged."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import avare.torch as avt
from loaders import changing_norms, make_dataset, run, snapshot, through_a_file

# Python warns about every fork of a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "prefetch_factor": 3, "batches_per_epoch": 10**9},
    ],
    ids=["no workers", "workers", "persistent workers", "endless"],
)
def test_resumes_to_the_same_batches(options: dict[str, Any]) -> None:
    def make(seed: int) -> avt.ImportanceLoader:
        return avt.ImportanceLoader(make_dataset(50), 8, seed=seed, **options)

    last = 13  # epochs of 7: to the end of this one, and into the next
    uninterrupted = make(0)
    expected = run(uninterrupted, 1, last)
    for stop in (2, 5, 7, 8):  # early, with an epoch's last draws made, at its end, at the start of the next
        loader = make(0)
        assert run(loader, 1, stop) == expected[:stop]
        twin = make(99)
        twin.load_state_dict(through_a_file(loader.state_dict()))
        assert run(twin, stop + 1, last) == expected[stop:]
        assert twin.gain == uninterrupted.gain and twin.measures()["waiting"] == uninterrupted.measures()["waiting"]
        assert snapshot(twin) == snapshot(uninterrupted)


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_between_draw_and_update_and_between_epochs(workers: int) -> None:
    def make(seed: int) -> avt.ImportanceLoader:
        return avt.ImportanceLoader(make_dataset(50), 8, seed=seed, num_workers=workers)

    loader, twin = make(0), make(1)
    for place, (_, index, _) in enumerate(loader):
        if place == 3:
            twin.load_state_dict(through_a_file(loader.state_dict()))
            twin.update(index, changing_norms(place, index))
        loader.update(index, changing_norms(place, index))
        if place == 3:
            assert (
                twin.importance_sampler.probabilities().tolist() == loader.importance_sampler.probabilities().tolist()
            )
    twin.load_state_dict(loader.state_dict())
    assert twin.epoch == 1
    assert run(twin, 1, 9) == run(loader, 1, 9)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_saved_with_its_last_batch_has_an_empty_rest(workers: int) -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=workers)
    for _, _, _ in loader:
        state = loader.state_dict()
    loader.load_state_dict(state)
    assert [len(list(loader)) for _ in range(2)] == [0, 7]


def test_resumes_with_another_number_of_workers() -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=2)
    run(loader, 1, 2)
    ahead = [indices.tolist() for indices in loader.state_dict()["ahead_indices"]]
    twin = avt.ImportanceLoader(make_dataset(50), 8)
    twin.load_state_dict(loader.state_dict())
    assert len(ahead) == 4
    assert [index.tolist() for _, index, _ in itertools.islice(twin, 5)][:4] == ahead


def test_a_state_keeps_its_values() -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0)
    run(loader, 1, 3)
    state = loader.state_dict()
    before = repr(state)
    run(loader, 4, 9)
    assert repr(state) == before


def test_a_bad_state_changes_nothing() -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=1)
    run(loader, 1, 3)
    state, before = loader.state_dict(), snapshot(loader)
    sampler = {**state["sampler"], "steps": 99}
    other = avt.ImportanceLoader(make_dataset(50), 8, seed=1).state_dict()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**state, "format": 1}, r"state\['format'\] = 1: this loader has 2"),
        (avt.ImportanceLoader(make_dataset(51), 8).state_dict(), r"state\['n'\] = 51: this loader has 50"),
        (avt.ImportanceLoader(make_dataset(50), 9).state_dict(), r"state\['whole_batch'\] = 9: this loader has 8"),
        (avt.ImportanceLoader(make_dataset(51), 9).state_dict(), r"has 8; state\['n'\] = 51: this loader has 50$"),
        ({**state, "batches_per_epoch": 8}, r"state\['batches_per_epoch'\] = 8: this loader has 7"),
        ({key: value for key, value in state.items() if key != "known"}, "state lacks 'known'"),
        ({**state, "sampler": sampler}, "it is damaged"),
        (
            {**state, "sampler": other["sampler"]},
            r"state\['checksum'\] = \d+, but its contents give \d+: it is damaged",
        ),
        ({**state, "sampler": 7}, "state lacks 'sampler', or it is not a mapping: it is damaged"),
        ({**state, "checksum": None}, r"state\['checksum'\] = None: must be an integer"),
        (avt.ImportanceLoader(make_dataset(50), 8, sampler="Uniform").state_dict(), r"state\['sampler'\] = 'Uniform'"),
        ({}, "state lacks 'format'"),
    ]
    for each, message in wrong:
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict(each)
        assert snapshot(loader) == before
    with pytest.raises(TypeError, match="state is of type list"):
        loader.load_state_dict([1])  # type: ignore[arg-type]  # the point


DAMAGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("epoch", lambda epoch: epoch + 1),
    ("epoch", lambda epoch: None),
    ("epoch", lambda epoch: 10**30),
    ("drawn", lambda drawn: -1),
    ("drawn", lambda drawn: "5"),
    ("fingerprint", lambda fingerprint: fingerprint ^ 1),
    ("ahead_indices", lambda indices: indices.tolist()),
    ("ahead_indices", lambda indices: [[1], [2, 3]]),
    ("ahead_indices", lambda indices: indices + 50),
    ("ahead_indices", lambda indices: indices[:, :3]),
    ("ahead_indices", lambda indices: indices[1:]),
    ("ahead_weights", lambda weights: weights * 2.0),
    ("ahead_weights", lambda weights: weights.bfloat16()),
    ("known", lambda known: known[1:]),
    ("known", lambda known: 2 - known),
]


@pytest.mark.parametrize(("field", "damage"), DAMAGES)
def test_a_damaged_state_is_refused(field: str, damage: Callable[[Any], Any]) -> None:
    loader = avt.ImportanceLoader(make_dataset(50), 8, seed=0, num_workers=1)
    run(loader, 1, 3)
    state, before = loader.state_dict(), snapshot(loader)
    with pytest.raises(ValueError, match=rf"state\['({field}|checksum)'\]"):
        loader.load_state_dict({**state, field: damage(state[field])})
    assert snapshot(loader) == before


def test_resumes_with_thousands_of_batches_drawn_ahead() -> None:
    def make(seed: int) -> avt.ImportanceLoader:
        return avt.ImportanceLoader(
            make_dataset(50), 2, seed=seed, batches_per_epoch=10**9, num_workers=1, prefetch_factor=1100
        )

    loader, twin = make(0), make(1)
    batches = iter(loader)
    _, first, _ = next(batches)
    state = loader.state_dict()
    assert len(state["ahead_indices"]) == 1100
    twin.load_state_dict(state)
    rest = iter(twin)
    for step in range(3):
        (_, index, weight), (_, same_index, same_weight) = next(batches), next(rest)
        assert index.tolist() == same_index.tolist() and weight.tolist() == same_weight.tolist()
        if step == 0:
            assert math.isnan(loader.gain)
            loader.update(first, torch.ones(2))
            assert loader.gain > 0.0  # the draw is remembered, although 1100 have followed
