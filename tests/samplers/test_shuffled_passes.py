"""Shuffled passes of `Uniform`: every order is equally likely, nothing occurs twice in a pass, states resume."""

import itertools

import numpy as np
import pytest

import avare
from laws import FALSE_ALARM, chi_square


def test_all_orders_of_a_pass_are_equally_likely() -> None:
    sampler = avare.Uniform(5, 2, reshuffle=True, seed=0)
    orders: list[tuple[int, ...]] = list(itertools.permutations(range(5), 4))
    law = dict.fromkeys(orders, 1 / 120)
    draws = [tuple(int(i) for _ in range(2) for i in sampler.sample().indices) for _ in range(5000)]
    assert chi_square(draws, law) > FALSE_ALARM


def test_batches_and_their_weights() -> None:
    sampler = avare.Uniform(23, 5, reshuffle=True, seed=1)
    assert not sampler.independent and avare.Uniform(23, 5).independent
    for _ in range(50):
        batches = [sampler.sample() for _ in range(4)]  # three indices wait for the next pass
        assert len(np.unique(np.concatenate([batch.indices for batch in batches]))) == 20
        for batch in batches:
            assert np.allclose(batch.weights, 23 / 5) and np.allclose(batch.probabilities, 1 / 23)
    assert len(sampler.sample(23).indices) == 23


def test_states_resume_in_the_middle_of_a_pass() -> None:
    sampler = avare.Uniform(23, 5, reshuffle=True, seed=1)
    for _ in range(6):
        sampler.sample()
    state = sampler.state_dict()
    after = [sampler.sample().indices.tolist() for _ in range(9)]
    other = avare.Uniform(23, 5, reshuffle=True)
    other.load_state_dict(state)
    assert [other.sample().indices.tolist() for _ in range(9)] == after
    with pytest.raises(ValueError, match=r"state\['reshuffle'\] = False: this sampler has True"):
        other.load_state_dict(avare.Uniform(23, 5).state_dict())
    with pytest.raises(ValueError, match=r"state\['reshuffle'\] = True: this sampler has False"):
        avare.Uniform(23, 5).load_state_dict(state)
    twice = avare.Uniform(23, 5, reshuffle=True)
    twice._order[0] = twice._order[1]
    with pytest.raises(ValueError, match=r"state\['order'\]\[0\] = 1: occurs twice"):
        other.load_state_dict(twice.state_dict())


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="reshuffle = True: shuffled passes need replacement=False"):
        avare.Uniform(5, 2, replacement=True, reshuffle=True)
    with pytest.raises(TypeError, match="reshuffle = 'yes'"):
        avare.Uniform(5, 2, reshuffle="yes")  # type: ignore[arg-type]
