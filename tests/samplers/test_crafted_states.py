"""No crafted state can end the process, run for ever or give a weight that is not finite."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import avare
import crafted
from avare.samplers import Sampler, names
from avare.samplers.stateful import arguments
from avare.state import Field, generator_from_text, generator_to_text

pytestmark = pytest.mark.filterwarnings(
    "ignore::avare.samplers.LimitWarning", "ignore::DeprecationWarning", "ignore::avare.solvers.ConvergenceWarning"
)

SEED = int(os.environ.get("AVARE_SEED", "20261117"))
SOURCE = Path(avare.__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", crafted.every(), ids=lambda name: f"{name}, seed {SEED}")
def test_every_field_of_every_state(name: str) -> None:
    # In a process of its own: what this looks for used to end it. The last line that it prints is the case.
    command = [sys.executable, str(Path(crafted.__file__)), "--subject", name, "--mutations", "60", "--seed", str(SEED)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"seed {SEED}: the process ended with {done.returncode} at {lines[-1]}: {done.stderr}"
    found = json.loads(lines[-1])
    assert found["failures"] == [], f"seed {SEED}"
    assert found["tried"] >= 30 * found["fields"]


# What was accepted, and ended the process, did not return or gave weights that are not finite.
KNOWN = [
    ("Mabs", {"log_weights": np.zeros(0)}),
    ("Mabs", {"horizon": 0}),
    ("Mabs", {"bound": -1.0}),
    ("Safe", {"norms": np.zeros(3)}),
    ("Vrb", {"costs": np.zeros(2)}),
    ("Osmd", {"drawn_with": np.full(crafted.N, 1e-300)}),
    ("Mixture", {"mixture": np.array([2.0, -1.0, 0.0])}),
    ("Mixture", {"metric": -np.eye(3)}),
    ("Calibrated", {"expectations_scale": np.inf}),
    ("Optimal", {"reported": np.full(crafted.N, np.inf)}),
    ("Avare", {"moments": np.array([np.nan, 1.0, 1.0, 1.0])}),
    ("Avare", {"steps": 2**63}),
    ("Avare", {"pending_indices": np.full((1, crafted.SIZE), 10**9)}),
    ("Avare", {"pending_weights": np.zeros((2, crafted.SIZE))}),
]


@pytest.mark.parametrize(
    ("name", "changes"), KNOWN, ids=lambda each: each if isinstance(each, str) else next(iter(each))
)
def test_known_states_are_refused(name: str, changes: dict[str, object]) -> None:
    make = crafted.makers()[name]
    state, sampler = crafted.saved(make), make(crafted.N, crafted.SIZE, seed=1)
    before = sampler.state_dict()["checksum"]
    with pytest.raises(ValueError, match=rf"state\['({next(iter(changes))}|weights_values)'\]"):
        sampler.load_state_dict(crafted.sealed({**state, **changes}))
    assert sampler.state_dict()["checksum"] == before
    sampler.load_state_dict(state)
    assert crafted.use(sampler) == "accepted"


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="compiled, it takes a second")
@pytest.mark.parametrize("name", ["Avare", "Stratified", "Vrb", "sgd"], ids=lambda name: f"{name}, seed {SEED}")
def test_random_changes(name: str) -> None:
    # The quick part of the slow test, in this process.
    kind, generator = crafted.subject(name), np.random.default_rng(SEED)
    for field, value in kind.state.items():
        each = kind.make()
        for _ in range(3):
            other = crafted.at_random(value, generator)
            result = crafted.outcome(kind, each, kind.seal({**kind.state, field: other}))
            assert result in ("refused", "accepted"), f"seed {SEED}: {field} = {other}: {result}"


@pytest.mark.parametrize("kind", crafted.KINDS)
def test_generators(kind: type[np.random.BitGenerator]) -> None:
    generator = np.random.Generator(kind(8))
    generator.random(7)
    text = generator_to_text(generator)
    assert generator_from_text(text).random(5).tolist() == generator.random(5).tolist()
    for other in list(crafted.texts(text)):
        try:
            found = generator_from_text(other, "state['generator']")
        except ValueError as error:
            assert "state['generator'] is" in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert len(set(found.random(1000).tolist())) > 900  # it does not repeat itself


def test_every_field_is_declared() -> None:
    shared = {"format", "sampler", "fields", "checksum"}
    for name in (each for each in names() if each in crafted.makers()):
        sampler: Sampler = crafted.makers()[name](crafted.N, crafted.SIZE)
        declared = {key for key, field in sampler.fields().items() if isinstance(field, Field)}
        parts = {key for part in vars(sampler).values() if hasattr(part, "state") for key in part.state()}
        shared |= {"steps", "generator", "moments"}
        rest = set(sampler.state_dict()) - shared - set(arguments(sampler))
        assert rest <= declared | parts, name
