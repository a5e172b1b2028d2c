import numpy as np
import pytest

from avare._randomness import next_uniform, uniform_source


@pytest.mark.parametrize(
    "kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]
)
def test_gives_the_generators_own_numbers_and_advances_it(kind: type[np.random.BitGenerator]) -> None:
    generator, twin = np.random.Generator(kind(11)), np.random.Generator(kind(11))
    source = uniform_source(generator)
    assert [next_uniform(source) for _ in range(5)] == twin.random(5).tolist()
    assert generator.random() == twin.random()
