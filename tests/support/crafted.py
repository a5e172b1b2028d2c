"""States that someone has crafted: every field of every state, mutated, with the right checksum.

Run as a program, in a process of its own, because a wrong state used to end the process:

    python tests/support/crafted.py --sampler Mabs --mutations 30 --seed 1

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
import avare
from avare._state import checksum
from avare.samplers import LimitWarning, Sampler
from avare.solvers.loop import _checksum as run_checksum
from sampler_checks import by_name, own_names, train

N, SIZE, STEPS = 12, 3, 30  # examples, batch size, steps before the state is saved
SECONDS = 60  # for loading one state and drawing from it
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


def makers() -> dict[str, Callable[..., Sampler]]:
    """Every sampler of the package, and those whose state has another form."""
    return {
        **{name: by_name(name) for name in own_names()},
        "Avare on the order tree": lambda n, m, **more: avare.Avare(n, m, structure="order_tree", **more),
        "Vrb without limits": lambda n, m, **more: avare.Vrb(n, m, **more),
        "Static from fixed constants": lambda n, m, **more: avare.Static(
            n, m, smoothness=10.0 ** -np.arange(n), uniform=0.0, **more
        ),
    }


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
        extremes = (
            [-1, 2**30, -(2**62)] if value.dtype.kind == "i" else [-1.0, 1e-320, 1e150, 1e308, np.nan, np.inf, -np.inf]
        )
        for extreme in extremes:
            if value.dtype.itemsize == 8 or abs(extreme) < 2**31:
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
    """A sampler, a loader or a solver."""
    others = {"ImportanceLoader": a_loader, "UpperBoundLoader": a_pool, "sgd": a_solver}
    if name in others:
        return others[name]()
    make = makers()[name]
    return Subject(
        lambda: make(N, SIZE, seed=1),
        saved(make),
        sealed,
        lambda sampler, state: sampler.load_state_dict(state),
        use,
        lambda sampler: sampler.state_dict()["checksum"],
    )


def a_solver() -> Subject:
    """`avare.sgd`, which resumes."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(N, 2))
    problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0])

    def run(sampler: Sampler, **more: Any) -> Any:
        return avare.sgd(problem, sampler, 1e-3, averaging="polyak", evaluate=2, **more)

    def seal(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "checksum": run_checksum({key: each for key, each in state.items() if key != "solver"})}

    return Subject(
        lambda: avare.Avare(N, SIZE, seed=1),
        run(avare.Avare(N, SIZE, seed=2), steps=6).state_dict(),
        seal,
        lambda sampler, state: run(sampler, steps=9, resume=state),
        lambda sampler: "accepted" if sampler.steps >= 6 else "it did not resume",
        lambda sampler: sampler.state_dict()["checksum"],
    )


def a_loader() -> Subject:
    """`ImportanceLoader`, whose state comes through ``torch.load(weights_only=True)``."""
    import torch

    from avare.torch import ImportanceLoader, batch_sampler
    from avare.torch.states import with_arrays, with_tensors

    def make() -> Any:
        return ImportanceLoader(list(range(N)), SIZE, seed=1)

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
        return {**with_some_tensors(plain), "checksum": batch_sampler._checksum(with_some_tensors(plain))}

    def with_some_tensors(state: dict[str, Any]) -> dict[str, Any]:
        found = dict(state)
        for key, each in state.items():
            with contextlib.suppress(TypeError, ValueError):
                found.update(with_tensors({key: each}))
        return found

    loader = make()
    batches = iter(loader)
    for _ in range(2):
        _, index, _ = next(batches)
        loader.update(index, 1.0 + index)
    state = with_arrays(loader.state_dict())
    return Subject(
        make,
        state,
        seal,
        lambda loader, state: loader.load_state_dict(state),
        use_loader,
        lambda loader: loader.state_dict()["checksum"],
    )


def a_pool() -> Subject:
    """`UpperBoundLoader`."""
    import torch

    from avare.torch import UpperBoundLoader
    from avare.torch.states import with_arrays

    def make() -> Any:
        return UpperBoundLoader(list(range(N)), lambda batch: 1.0 + batch, SIZE, pool_size=6, seed=1)

    def use_pool(loader: Any) -> str:
        for _, index, weight in itertools.chain(loader, loader):
            if not (torch.isfinite(weight).all() and ((index >= 0) & (index < N)).all()):
                return f"batch {index}, {weight}"
            loader.update(index, 1.0 + index)
        return "accepted"

    def tensors(state: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(TypeError, ValueError):
            return {**state, "index": torch.from_numpy(np.array(state["index"]))}
        return state

    loader = make()
    next(iter(loader))
    return Subject(
        make,
        with_arrays(loader.state_dict()),
        tensors,
        lambda loader, state: loader.load_state_dict(state),
        use_pool,
        lambda loader: str(loader.state_dict()),
    )


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
            signal.alarm(SECONDS)
            result = outcome(kind, each, kind.seal(crafted) if field != "checksum" else crafted)
            signal.alarm(0)
            if result != "refused":
                each = kind.make()
            found["tried"] += 1
            found["accepted"] += result == "accepted"
            if result not in ("refused", "accepted"):
                found["failures"].append(f"{case}, {str(other)[:80]!r}: {result}")
    return found


def main() -> None:
    """Try all states of one sampler, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", required=True)
    parser.add_argument("--mutations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LimitWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    found = try_all(arguments.sampler, arguments.mutations, arguments.seed, lambda case: print(case, flush=True))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
