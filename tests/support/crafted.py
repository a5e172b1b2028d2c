"""States that someone has crafted: every field of every state, mutated, with the right checksum.

Run as a program, in a process of its own, because a wrong state used to end the process:

    python tests/support/crafted.py --subject Mabs --mutations 30 --seed 1

It prints each case before it is tried, and at the end the counts as JSON.
"""

import argparse
import contextlib
import copy
import itertools
import json
import math
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import avare
from avare.samplers import LimitWarning, Sampler
from avare.solvers import DivergenceWarning
from avare.solvers.checkpoint import run_checksum
from avare.state import checksum
from avare.structures import Buckets, CalibratedCells, Structure
from sampler_checks import by_name, own_names, train
from sorted_norms import PaperAvare, SortedNorms

N, SIZE, STEPS = 12, 3, 30  # examples, batch size, steps before the state is saved
SECONDS = 60  # of the processor, for loading one state and drawing from it
KINDS = (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
NUMBERS: list[Any] = [0, 1, -1, 2, 7, 2**30, 2**31, 2**53, 2**62, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e-320, 1e-160]
NUMBERS += [1e-12, 1e12, 1e150, 1e300, 1.7e308, -1e300, math.nan, math.inf, -math.inf, True, False, None, "", "3", b"3"]
NUMBERS += [[1], (), {}, 1j, np.zeros(0), np.zeros(2), np.float32(3.0), np.array(2.0)]
IN_GENERATORS: list[Any] = [
    0,
    1,
    -1,
    2**30,
    2**64,
    2**128,
    10**40,
    0.5,
    None,
    "x",
    True,
    [],
    {},
    ["uint64", []],
    ["O", [1]],
]
DTYPES = (
    "float32",
    "float64",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex128",
    "U8",
    "S4",
    "datetime64[s]",
    ">f8",
    "O",
)


CHANGED = {"Avare that grew", "Calibrated in a ring", "Uniform that grew"}
"""Samplers whose sets have changed: they need at least 8 examples."""


def makers() -> dict[str, Callable[..., Sampler]]:
    """Every sampler of the package, and those whose state has another form."""
    return {
        **{name: by_name(name) for name in own_names()},
        "Avare on sorted norms": PaperAvare,
        "Vrb without limits": lambda n, m, **more: avare.Vrb(n, m, **more),
        "Static from fixed constants": lambda n, m, **more: avare.Static(
            n, m, smoothness=10.0 ** -np.arange(n), uniform=0.0, **more
        ),
        "Avare that grew": lambda n, m, **more: changed(avare.Avare(n - 2, m, **more)),
        "Calibrated in a ring": lambda n, m, **more: changed(avare.Calibrated(n - 2, m, capacity=n, **more)),
        "Uniform that grew": lambda n, m, **more: changed(avare.Uniform(n - 2, m, **more)),
    }


def changed(sampler: Sampler) -> Sampler:
    """The sampler with two more examples, or in a ring none, and without two others."""
    sampler.append(4)
    sampler.retire([2, 5])
    return sampler


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the checksum of its contents."""
    rest = {key: value for key, value in state.items() if key != "checksum"}
    return {**rest, "checksum": checksum(rest)}


def mutations(value: Any, generator: np.random.Generator, count: int) -> Iterator[Any]:
    """Other values for a field: at least `count`, all of a fixed list, then random ones."""
    made = 0
    fixed = (
        texts(value) if isinstance(value, str) else arrays(value) if isinstance(value, np.ndarray) else numbers(value)
    )
    for each in fixed:
        made += 1
        yield each
    while made < count:
        made += 1
        yield at_random(value, generator)


def numbers(value: Any) -> Iterator[Any]:
    yield from NUMBERS
    if isinstance(value, dict):
        yield from ({**value, key: NUMBERS} for key in value)
        return
    yield from (value + 1, value - 1, -value, 2 * value, 7.5 * value, float(value), str(value))


def texts(value: str) -> Iterator[Any]:
    yield from (
        None,
        "",
        "x",
        3,
        b"x",
        [value],
        value[:-1],
        value + " ",
        value.upper(),
        "\udc80",
        "[" * 10_000,
        "{}",
        "null",
    )
    yield from ('{"bit_generator": "seed"}', '{"bit_generator": "RandomState"}', '{"bit_generator": ["PCG64"]}')
    try:
        parts = json.loads(value)
    except ValueError:
        return
    for kind in KINDS:
        whole = np.random.Generator(kind(5))
        whole.random(3)
        parts = json.loads(json.dumps(whole.bit_generator.state, default=lambda a: [str(a.dtype), a.tolist()]))
        for name in ("Generator", "BitGenerator", "RandomState", "default_rng", "SeedSequence", "bit_generator"):
            yield json.dumps({**parts, "bit_generator": name})
        for place in list(_leaves(parts)):
            for other in IN_GENERATORS:
                yield json.dumps(_replaced(parts, place, other))


def _leaves(parts: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(parts, dict):
        for key, each in parts.items():
            yield from _leaves(each, (*place, key))
    else:
        yield place
        if isinstance(parts, list):
            yield (*place, 0)
            yield (*place, 1)


def _replaced(parts: Any, place: tuple[Any, ...], other: Any) -> Any:
    result = copy.deepcopy(parts)
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return result


def arrays(value: np.ndarray) -> Iterator[Any]:
    yield from (None, 0, "x", [], value.tolist(), value.ravel(), value[None], value[:-1], value[:0], value[::-1])
    yield from (np.concatenate([value, value]), np.zeros_like(value), np.ones_like(value), value.T, value[..., None])
    yield np.broadcast_to(value, (2, *value.shape))
    yield np.ma.masked_array(value, mask=True)
    for dtype in DTYPES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield value.astype(dtype)
    if value.size and value.dtype != np.bool_:
        whole = value.dtype.kind == "i"
        extremes = [-1, 2**30, -(2**62)] if whole else [-1.0, 1e-320, 1e150, 1e308, np.nan, np.inf, -np.inf]
        for extreme in extremes:
            if value.dtype.itemsize == 8 or abs(extreme) < (np.iinfo(value.dtype).max if whole else 2**31):
                yield np.full_like(value, extreme)
                for place in (0, value.size // 2, value.size - 1):
                    yield _with(value, place, extreme)
        yield np.roll(value, 1, axis=0)
        yield value * 2
        yield value // 2 if value.dtype.kind == "i" else value * 1e-200


def _with(value: np.ndarray, place: int, other: Any) -> np.ndarray:
    result = value.copy()
    result.reshape(-1)[place] = other
    return result


def at_random(value: Any, generator: np.random.Generator) -> Any:
    """A change of some bits."""
    if isinstance(value, np.ndarray) and value.size:
        raw = np.frombuffer(value.tobytes(), dtype=np.uint8).copy()
        raw[generator.integers(len(raw), size=1 + generator.integers(3))] ^= np.uint8(1 + generator.integers(255))
        return np.frombuffer(raw.tobytes(), dtype=value.dtype).reshape(value.shape)
    if isinstance(value, str):
        place = int(generator.integers(len(value) + 1))
        return value[:place] + chr(int(generator.integers(32, 300))) + value[place + 1 :]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NUMBERS[int(generator.integers(len(NUMBERS)))]
    return (
        float(np.exp(generator.normal(0.0, 100.0)))
        if isinstance(value, float)
        else int(generator.integers(-(2**62), 2**62))
    )


def saved(make: Callable[..., Sampler], kind: type[np.random.BitGenerator] = np.random.PCG64) -> dict[str, Any]:
    """A state after some steps, with a batch whose norms have not arrived."""
    sampler = make(N, SIZE, seed=kind(3))
    train(sampler, STEPS)
    sampler.sample()
    return sampler.state_dict()


class Subject(NamedTuple):
    """Something that loads states."""

    make: Callable[[], Any]
    state: dict[str, Any]
    seal: Callable[[dict[str, Any]], dict[str, Any]]
    load: Callable[[Any, dict[str, Any]], object]
    use: Callable[[Any], str]
    sign: Callable[[Any], object]
    """Something that changes when the subject does."""


def subject(name: str) -> Subject:
    """A sampler, a structure, a solver or a loader."""
    kinds = {**STRUCTURES, **SOLVERS, **LOADERS}
    if name in kinds:
        return kinds[name]()
    make = makers()[name]
    return Subject(
        lambda: make(N, SIZE, seed=1),
        saved(make),
        sealed,
        lambda sampler, state: sampler.load_state_dict(state),
        use,
        lambda sampler: sampler.state_dict()["checksum"],
    )


def a_structure(make: Callable[[Any], Structure], **arguments: float) -> Subject:
    """A structure, whose state has no checksum of its own; it is in a list, because a new one is built of a state."""
    values = np.random.default_rng(4).lognormal(0.0, 3.0, N)
    values[3] = 0.0
    start = make(values)
    kind = type(start)

    def load(holder: list[Structure], state: dict[str, Any]) -> None:
        holder[0] = kind.from_state(state, N, **arguments)

    def use_structure(holder: list[Structure]) -> str:
        (structure,) = holder
        generator = np.random.default_rng(5)
        structure.check()
        for round_ in range(5):
            p = structure.probabilities()
            if not (np.isfinite(p).all() and abs(p.sum() - 1.0) < 1e-6 and (p >= 0.0).all()):
                return f"probabilities {p}"
            ways = [True] if np.count_nonzero(p) < SIZE else [True, False]
            for way in ways:
                indices, chances = structure.draw(SIZE, replacement=way, generator=generator)
                if not ((chances > 0.0).all() and ((indices >= 0) & (indices < N)).all()):
                    return f"drew {indices} with {chances}"
            structure.update(np.arange(round_, N), np.linspace(0.5, 7.0, N - round_))
            structure.check()
        return "accepted"

    return Subject(
        lambda: [make(values)],
        dict(start.state()),
        lambda state: state,
        load,
        use_structure,
        lambda holder: checksum(holder[0].state()),
    )


STRUCTURES: dict[str, Callable[[], Subject]] = {
    "Buckets": lambda: a_structure(Buckets),
    "SortedNorms": lambda: a_structure(SortedNorms),
    "CalibratedCells": lambda: a_structure(lambda values: CalibratedCells(values, prior=0.7), prior=0.7),
}


def a_solver(solve: Callable[..., Any], first: int, whole: int) -> Subject:
    """A solver, which resumes from a run that is not the whole; both are what `solve` takes, steps or epochs."""

    def seal(state: dict[str, Any]) -> dict[str, Any]:
        found = dict(state)
        prefixes = [key.removesuffix("checksum") for key in state if key.endswith("checksum")]
        for prefix in sorted(prefixes, key=len, reverse=True):  # the sampler's before the run's, which covers it
            inner = {key.removeprefix(prefix): each for key, each in found.items() if key.startswith(prefix)}
            is_sampler = prefix.endswith("sampler/")
            found[f"{prefix}checksum"] = sealed(inner)["checksum"] if is_sampler else run_checksum(inner)
        return found

    def load(sampler: Sampler, state: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)  # as from an iterate of 1e225, which is a number
            solve(sampler, whole, resume=state)

    def use_run(sampler: Sampler) -> str:
        return use(sampler) if sampler.steps >= 6 else "it did not resume"

    return Subject(
        lambda: avare.Avare(N, SIZE, seed=1),
        solve(avare.Avare(N, SIZE, seed=2), first).state_dict(),
        seal,
        load,
        use_run,
        lambda sampler: sampler.state_dict()["checksum"],
    )


def a_problem() -> avare.problems.LeastSquares:
    X = np.random.default_rng(0).normal(size=(N, 2))
    return avare.problems.LeastSquares(X, X @ [1.0, 2.0], l2=0.1)


SOLVERS: dict[str, Callable[[], Subject]] = {
    "sgd": lambda: a_solver(
        lambda sampler, steps, **more: avare.sgd(
            a_problem(), sampler, 1e-3, steps=steps, averaging="polyak", evaluate=2, **more
        ),
        6,
        9,
    ),
    "saga": lambda: a_solver(
        lambda sampler, epochs, **more: avare.saga(a_problem(), sampler, epochs=epochs, tol=0.0, **more), 2, 3
    ),
    "sgld": lambda: a_solver(
        lambda sampler, steps, **more: avare.sgld(
            a_problem(), sampler, 1e-3, steps=steps, burn_in=2, thin=2, chains=1, seed=3, **more
        ),
        6,
        9,
    ),
}


def a_loader(**arguments: Any) -> Subject:
    """A loader, whose state comes through ``torch.load(weights_only=True)``."""
    import torch

    from avare.torch import ImportanceLoader
    from avare.torch.loading.tensors import with_arrays, with_tensors

    def make() -> Any:
        given = {name: each() if name == "pool" and callable(each) else each for name, each in arguments.items()}
        return ImportanceLoader(list(range(N)), batch_size=SIZE, seed=1, **given)

    def use_loader(loader: Any) -> str:
        for _, index, weight in itertools.chain(loader, loader):
            if not (torch.isfinite(weight).all() and ((index >= 0) & (index < N)).all()):
                return f"batch {index}, {weight}"
            loader.update(index, 1.0 + index)
        return "accepted"

    def seal(state: dict[str, Any]) -> dict[str, Any]:
        plain = {key: each for key, each in state.items() if key != "checksum"}
        if not isinstance(plain["sampler"], dict):
            return state
        found = dict(plain)
        for key, each in plain.items():
            with contextlib.suppress(TypeError, ValueError):
                found.update(with_tensors({key: each}))
        return {**found, "checksum": checksum(with_arrays(found))}

    loader = make()
    batches = iter(loader)
    for _ in range(2):
        _, index, _ = next(batches)
        loader.update(index, 1.0 + index)
    return Subject(
        make,
        with_arrays(loader.state_dict()),
        seal,
        lambda loader, state: loader.load_state_dict(state),
        use_loader,
        lambda loader: loader.state_dict()["checksum"],
    )


def score(batch: Any) -> Any:
    return 1.0 + batch


def an_upper_bound() -> Any:
    from nets.upper_bound import UpperBound

    return UpperBound(2.0)


LOADERS: dict[str, Callable[[], Subject]] = {
    "ImportanceLoader": a_loader,
    "ImportanceLoader with a pool": lambda: a_loader(score=score, pool=2.0),
    "ImportanceLoader with any pool": lambda: a_loader(score=score, cost_ratio=9.0),
    "ImportanceLoader with UpperBound": lambda: a_loader(score=score, sampler="Uniform", pool=an_upper_bound),
}


def every() -> list[str]:
    """The names of all that loads states."""
    return [*makers(), *STRUCTURES, *SOLVERS, *LOADERS]


def outcome(kind: Subject, each: Any, state: dict[str, Any]) -> str:
    """Load a state: "refused", or "accepted" if it then works; anything else is what went wrong."""
    before = kind.sign(each)
    try:
        kind.load(each, state)
    except ValueError as error:
        if kind.sign(each) != before:
            return "refused, but something has changed"
        return "refused" if re.search(r"(state|resume)(\['| lacks )", str(error)) else f"no field is named: {error}"
    except Exception as error:
        return f"{type(error).__name__} instead of a ValueError: {error}"
    try:
        return kind.use(each)
    except Exception as error:
        return f"accepted, then {type(error).__name__}: {error}"


def use(sampler: Sampler) -> str:
    """Draw and learn: "accepted", or what went wrong."""
    for _ in range(20):
        p = sampler.probabilities()
        if not (np.isfinite(p).all() and abs(p.sum() - 1.0) < 1e-6 and (p >= 0.0).all()):
            return f"probabilities {p}"
        batch = sampler.sample()
        if not (np.isfinite(batch.weights).all() and ((batch.indices >= 0) & (batch.indices < sampler.n)).all()):
            return f"batch {batch}"
        sampler.update(batch.indices, 1.0 + batch.indices)
    sampler.update(np.arange(sampler.n), np.ones(sampler.n))
    sampler.load_state_dict(sampler.state_dict())
    return "accepted"


def try_all(name: str, count: int, seed: int, say: Callable[[str], None] = lambda case: None) -> dict[str, Any]:
    """Every field of a state, each with at least `count` mutations."""
    kind, generator = subject(name), np.random.default_rng(seed)
    each = kind.make()
    found: dict[str, Any] = {"tried": 0, "accepted": 0, "fields": len(kind.state), "failures": []}
    for field, value in kind.state.items():
        for number, other in enumerate(mutations(value, generator, count)):
            case = f"{name}: {field}, mutation {number} of seed {seed}"
            say(case)
            crafted = {**kind.state, field: other}
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            result = outcome(kind, each, kind.seal(crafted) if field != "checksum" else crafted)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if result != "refused":
                each = kind.make()
            found["tried"] += 1
            found["accepted"] += result == "accepted"
            if result not in ("refused", "accepted"):
                found["failures"].append(f"{case}, {str(other)[:80]!r}: {result}")
    return found


def main() -> None:
    """Try all states of one subject, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subject", required=True, choices=every())
    parser.add_argument("--mutations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LimitWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    found = try_all(arguments.subject, arguments.mutations, arguments.seed, lambda case: print(case, flush=True))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
