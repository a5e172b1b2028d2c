import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from avare.simplex.groups import split


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40), st.integers(1, 10))
def test_groups_have_near_equal_mass(scores: list[float], count: int) -> None:
    count = min(count, len(scores))
    s = np.array(scores)
    groups = split(s, count)
    assert sorted(groups.order.tolist()) == list(range(len(s)))
    for k in range(count):
        members = groups.order[groups.starts[k] : groups.starts[k + 1]]
        assert len(members) > 0
        assert np.isclose(groups.masses[k], s[members].sum())
        assert len(members) == 1 or groups.masses[k] <= s.sum() / count + s[members].min() + 1e-9
