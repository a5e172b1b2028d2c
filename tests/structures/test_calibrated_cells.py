from typing import Any

import numba
import numpy as np
import pytest

from avare._randomness import uniform_source
from avare.structures import CalibratedCells
from avare.structures import calibrated_cells as module

compiled = not numba.config.DISABLE_JIT


def test_a_number_at_the_end_gives_the_last_example_with_a_mass() -> None:
    # x was rounded up to the sum of all, and the last cell is empty, because all of it is set aside.
    arrays: Any = CalibratedCells([1.0, 2.0, 4.0], prior=1.0).arrays
    generator = np.random.default_rng(4)
    law = module._solve(arrays, 1.0, 0.1)
    arrays.counts[law.size - 1] = 0
    law = law._replace(total=1e6 * module._sum_up(arrays, law.size, 0))
    indices, masses = np.empty(100, dtype=np.int64), np.empty(100)
    module._propose(arrays, law, uniform_source(generator), np.empty_like(indices), indices, masses)
    assert set(indices.tolist()) <= {0, 1} and (masses > 0.0).all()


def test_keeps_the_reported_norms() -> None:
    generator = np.random.default_rng(5)
    n = 5000 if compiled else 300
    expectations = CalibratedCells.unseen(n, prior=0.5)
    expectations.check()
    assert np.isnan(expectations.norms()).all()
    kept = np.full(n, np.nan)
    for _ in range(30):
        indices = generator.integers(0, n - 1, 200)  # the last is never seen
        norms = generator.lognormal(0.0, 5.0, 200) * (generator.random(200) > 0.1)
        expectations.replace(indices, norms, keep=0.9)
        kept[indices] = norms
        expectations.check()
        assert np.allclose(expectations.norms(), kept, rtol=2.0**-24, equal_nan=True)
    found = expectations.calibration()
    assert found.members.sum() == n and np.isnan(found.remembered[0]) and (np.diff(found.remembered[1:]) > 0).all()
    assert found.observations.sum() <= 200 / (1 - 0.9)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("members", lambda s: s[:-1], r"has shape \(3,\)"),
        ("members", lambda s: s.astype(np.float64), "dtype float64"),
        ("members", lambda s: s[::-1].copy(), r"\[1\] = .*: does not fit"),
        ("members", lambda s: np.array([7 << 31, s[1], s[2], s[3]]), r"\[0\] = "),  # no such code
        ("tallies", lambda s: s[1:], r"has shape \(2223, 2\)"),
        ("tallies", lambda s: s.astype(np.float32), "dtype float32"),
        ("tallies", lambda s: s - np.eye(len(s), 2, k=-7), r"\[7, 0\] = -1.0: must be finite and not negative"),
        ("scale", lambda s: 0.5, "= 0.5: must be a number from 1.0 to"),
    ],
)
def test_refuses_a_damaged_state(name: str, damage: Any, message: str) -> None:
    state = CalibratedCells([0.0, 1.0, 2.0, 4.0], prior=1.0).state()
    state[f"expectations_{name}"] = damage(state[f"expectations_{name}"])
    with pytest.raises(ValueError, match=rf"state\['expectations_{name}'\].*{message}"):
        CalibratedCells.from_state(state, 4, prior=1.0)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("slots", 0, 1),
        ("octaves", (150, 0), 1),
        ("cells", (1200, 1), 1),
        ("registers", 2, 1),
        ("tallies", (1200, 0), np.nan),
        ("scale", 0, -0.5),
    ],
)
def test_check_notices_damage(name: str, place: Any, value: float) -> None:
    expectations = CalibratedCells(np.random.default_rng(8).lognormal(size=300), prior=1.0)
    getattr(expectations.arrays, name)[place] += value
    with pytest.raises(AssertionError):
        expectations.check()
