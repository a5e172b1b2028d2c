import numpy as np
import pytest

from avare._randomness import derive, next_uniform, uniform_source
from avare.state import generator_from_text, generator_to_text


@pytest.mark.parametrize(
    "kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]
)
def test_gives_the_generators_own_numbers_and_advances_it(kind: type[np.random.BitGenerator]) -> None:
    generator, twin = np.random.Generator(kind(11)), np.random.Generator(kind(11))
    source = uniform_source(generator)
    assert [next_uniform(source) for _ in range(5)] == twin.random(5).tolist()
    assert generator.random() == twin.random()


@pytest.mark.parametrize(
    "kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]
)
def test_derived_generators_depend_on_the_state_alone(kind: type[np.random.BitGenerator]) -> None:
    generator = np.random.Generator(kind(11))
    generator.random(3)
    restored = generator_from_text(generator_to_text(generator))  # its seed is from the system, its state is not
    found = [[child.random() for child in derive(each, 2)] for each in (generator, restored, generator)]
    assert found[0] == found[1] == found[2] and found[0][0] != found[0][1]
    assert generator.random() == restored.random()  # neither has advanced
    assert [child.random() for child in derive(generator, 2)] != found[0]
