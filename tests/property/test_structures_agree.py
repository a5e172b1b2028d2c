"""`Buckets` against the reference, operation by operation."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from avare import minimize_variance
from avare.structures import Buckets
from sorted_norms import SortedNorms

SIZES = (1, 2, 3, 5, 17, 1000, 1023, 1024, 1025)
EQUAL = 1e-9  # relative; sums of 1025 float64 are exact up to 1e-13


def as_kept(value: float) -> float:
    """A norm that `Buckets` keeps without rounding."""
    return float(np.float32(value))


norms = st.one_of(
    st.just(0.0),
    st.sampled_from([1.0, 1.5, 2.0, 1.0 + 2.0**-10]),  # ties, and edges of octaves, cells and bins
    st.floats(1e-3, 1e3).map(as_kept),
    st.floats(-37, 38).map(lambda exponent: as_kept(10.0**exponent)),
    st.sampled_from([1e30, 1e-30]).map(as_kept),
    st.integers(1, 2**23).map(lambda k: k * 2.0**-149),  # float32's subnormals
)
shares = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 1.0 - 1e-9]),
    st.floats(1e-200, 1.0),  # below, floor times norm may be subnormal, and has few digits
    st.floats(-9, 0).map(lambda exponent: 10.0**exponent),
)


class Agreement(RuleBasedStateMachine):
    @initialize(n=st.sampled_from(SIZES), data=st.data())
    def build(self, n: int, data: st.DataObject) -> None:
        few = data.draw(st.lists(norms, min_size=1, max_size=8), label="norms, repeated")
        values = np.resize(np.array(few), n)
        self.n = n
        self.buckets, self.tree = Buckets(values), SortedNorms(values)
        self.generator = np.random.default_rng(n)

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        pairs = data.draw(st.lists(st.tuples(st.integers(0, self.n - 1), norms), max_size=12), label="updates")
        indices, values = [index for index, _ in pairs], [norm for _, norm in pairs]
        expected = self.tree.norms()
        for index, norm in pairs:  # the last norm of a repeated index counts
            expected[index] = norm
        self.buckets.update(indices, values)
        self.tree.update(indices, values)
        assert np.array_equal(self.buckets.norms(), expected)
        assert np.array_equal(self.tree.norms(), expected)

    @rule(share=shares)
    def solve(self, share: float) -> None:
        floor = share / self.n
        ours = self.buckets.solve(floor)
        assert floor * (1 - EQUAL) <= ours.floor <= min(floor * (1 + 2.0**-10), 1.0 / self.n) * (1 + EQUAL) or (
            not self.buckets.norms().any() and np.isclose(ours.floor, 1.0 / self.n)
        )
        snapped = min(ours.floor, 1.0 / self.n)
        reference = self.tree.solve(snapped)
        h = self.tree.norms()
        p = self.buckets.probabilities(floor)
        assert np.allclose(p, self.tree.probabilities(snapped), rtol=EQUAL, atol=0)
        assert np.allclose(p, minimize_variance(h, snapped), rtol=EQUAL, atol=0)
        assert np.isclose(p.sum(), 1.0, rtol=0, atol=1e-11)
        if reference.above and ours.above:  # otherwise uniform, and lambda and rho have no meaning
            assert np.isclose(ours.scale, reference.scale, rtol=EQUAL)
            # A norm at the threshold may count as floored or not: rounding decides.
            certain, possible = (
                np.count_nonzero(h > ours.threshold * (1 + EQUAL)),
                np.count_nonzero(h >= ours.threshold * (1 - EQUAL)),
            )
            assert certain <= ours.above <= possible
            assert certain <= reference.above <= possible

    @rule(share=shares, size=st.integers(1, 6), replacement=st.booleans())
    def draw(self, share: float, size: int, replacement: bool) -> None:
        floor = share / self.n
        p = self.buckets.probabilities(floor)
        drawable = np.count_nonzero(p)
        for structure in (self.buckets, self.tree):
            p = structure.probabilities(floor)
            if not replacement and size > drawable:
                with pytest.raises(ValueError, match=f"size = {size}: fewer examples"):
                    structure.draw(size, floor=floor, replacement=replacement, generator=self.generator)
                continue
            indices, probabilities = structure.draw(
                size, floor=floor, replacement=replacement, generator=self.generator
            )
            assert np.allclose(probabilities, p[indices], rtol=1e-14, atol=0)
            assert (probabilities > 0.0).all()
            assert replacement or len(np.unique(indices)) == size

    @rule()
    def save_and_load(self) -> None:
        self.buckets = Buckets.from_state(self.buckets.state(), self.n)
        self.tree = SortedNorms.from_state(self.tree.state(), self.n)

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "buckets"):
            self.buckets.check()
            self.tree.check()


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(stateful_step_count=12)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("kind", ["zero", "one non-zero", "equal", "one huge", "subnormal", "log-normal"])
def test_named_cases(n: int, kind: str) -> None:
    generator = np.random.default_rng(n)
    values: dict[str, NDArray[np.float64]] = {
        "zero": np.zeros(n),
        "one non-zero": np.eye(1, n, n // 2)[0] * 3.7,
        "equal": np.full(n, 0.3),
        "one huge": np.where(np.arange(n) == n // 3, 1e30, 1.0),
        "subnormal": generator.integers(0, 2**23, n).astype(np.float64) * 2.0**-149,
        "log-normal": generator.lognormal(0.0, 4.0, n),
    }
    h = values[kind].astype(np.float32).astype(np.float64)
    buckets, tree = Buckets(h), SortedNorms(h)
    buckets.check()
    tree.check()
    for share in (0.0, 1e-6, 0.2, 0.999, 1.0):
        solution = buckets.solve(share / n)
        assert share / n * (1 - EQUAL) <= solution.floor <= max(share / n * (1 + 2.0**-10), 0.0) * (1 + EQUAL) or (
            np.isclose(solution.floor, 1.0 / n)
        )
        expected = tree.probabilities(min(solution.floor, 1.0 / n))
        assert np.allclose(buckets.probabilities(share / n), expected, rtol=EQUAL, atol=0)
