"""Try to break the library for some minutes, with another seed each time: `make campaign MINUTES=10`.

Each trial checks one promise of docs/reliability.md on random cases. They take turns until the time is up, each for
roughly the same time. A trial that fails, or takes too long, does not end the others. The table says what was tried and
what failed; a failure names the seed that repeats it, with ``--seed`` and ``--only``. It is stored every minute.
"""

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import avare
from avare.batch import weigh
from avare.samplers import LimitWarning, Sampler
from avare.structures import Buckets, CalibratedCells
from avare.structures.weighted_draws import mass_left
from harness import save, table, where
from sorted_norms import SortedNorms

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import campaign_files
import campaign_learning
import campaign_weights
import crafted
from laws import FALSE_ALARM, chi_square, ordered_samples
from sampler_checks import check_structures, norms_at, train, ways

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
DRAWS = 4000  # per chi-square test
LONGEST = 600  # seconds of one case
Trial = Callable[[np.random.Generator], int]


class Tally(NamedTuple):
    """What a trial has done so far."""

    cases: int
    tried: int
    failures: list[str]
    seconds: float


def some_sampler(generator: np.random.Generator, n: int, size: int, **more: Any) -> tuple[str, Sampler]:
    """A sampler at random, drawing with or without replacement, after some steps."""
    every = {name: make for name, make in crafted.makers().items() if n >= 8 or name not in crafted.CHANGED}
    name = str(generator.choice(sorted(every)))
    make = every[name]
    way = bool(generator.choice(ways(make)))
    sampler = make(n, size, replacement=way, seed=int(generator.integers(2**32)), **more)
    train(sampler, int(generator.integers(60)))
    return name, sampler


def laws(generator: np.random.Generator) -> int:
    """Draws follow the stated probabilities: chi-square tests, one false alarm in a million each."""
    name, sampler = some_sampler(
        generator, n := int(generator.integers(2, 6)), int(generator.integers(1, min(n, 3) + 1))
    )
    if name in _OTHER_LAWS:  # their batches are not successive draws from one distribution
        return 0
    law = dict(ordered_samples(sampler.probabilities(), sampler.batch_size, sampler.replacement))
    draws = []
    for _ in range(DRAWS):
        twin_steps = sampler.steps
        draws.append(tuple(sampler.sample().indices.tolist()))
        sampler.steps = twin_steps
    chance = chi_square(draws, law)
    assert chance > FALSE_ALARM, f"{sampler}: p-value {chance}"
    return DRAWS


_OTHER_LAWS = ("Mixture", "Passes", "Stratified")


def expectations(generator: np.random.Generator) -> int:
    """Weights are unbiased to 1e-9 for probabilities of any size: by enumeration, in exact arithmetic."""
    n = int(generator.integers(2, 6))
    values = 10.0 ** generator.uniform(-280.0 * generator.random(), 0.0, n)
    p = values / values.sum()
    exact = [Fraction(float(each)) for each in p]
    size = int(generator.integers(1, n + 1))
    mean = [Fraction(0)] * n
    count = 0
    for sample in itertools.permutations(range(n), size):
        chance, left = Fraction(1), sum(exact)
        for index in sample:
            chance *= exact[index] / left
            left -= exact[index]
        where_ = np.array(sample)
        for index, weight in zip(sample, weigh(p[where_], False, mass_left(p, where_)), strict=True):
            mean[index] += chance * Fraction(float(weight))
        count += 1
    assert all(abs(float(each) - 1.0) < 1e-9 for each in mean), f"values {values.tolist()}, size {size}"
    return count


def structures(generator: np.random.Generator) -> int:
    """Every invariant of every structure holds after any operations."""
    n = int(generator.integers(1, 400))
    start = generator.lognormal(0.0, 3.0, n) * (generator.random(n) > 0.2)
    start[0] = 1.0
    kinds: list[Any] = [
        Buckets(start),
        SortedNorms(start),
        CalibratedCells(start, prior=1.0),
    ]
    count = 0
    for structure in kinds:
        for _ in range(20):
            size = int(generator.integers(1, 30))
            indices = generator.integers(0, n, size)
            values = 10.0 ** generator.uniform(-30.0, 30.0, size) * (generator.random(size) > 0.1)
            structure.update(indices, values)
            structure.draw(size, replacement=True, generator=generator)
            count += 1 + size
        structure.check()
    return count


def resumes(generator: np.random.Generator) -> int:
    """A state that went through a file continues with the very same draws."""
    name, sampler = some_sampler(generator, n := int(generator.integers(6, 40)), int(generator.integers(1, min(n, 6))))
    file = io.BytesIO()
    np.savez(file, **sampler.state_dict())
    file.seek(0)
    twin = crafted.makers()[name](n, sampler.batch_size, replacement=sampler.replacement)
    twin.load_state_dict(np.load(file))
    assert train(sampler, 20) == train(twin, 20), f"{sampler}"
    check_structures(twin)
    return 20


def threads(generator: np.random.Generator) -> int:
    """Threads that draw, report and read share a sampler without harm."""
    _, sampler = some_sampler(generator, 200, 8)
    steps, faults = 100, []

    def work() -> None:
        try:
            for _ in range(steps):
                batch = sampler.sample()
                sampler.update(batch.indices, norms_at(1, batch.indices))
            sampler.state_dict()
        except Exception as error:
            faults.append(error)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not faults, f"{sampler}: {faults[0]!r}"
    check_structures(sampler)
    return 6 * steps


def drift(generator: np.random.Generator) -> int:
    """After many updates all sums are those that are computed from the start."""
    name, sampler = some_sampler(generator, 30, 2)
    steps = 2000
    for news in np.exp(generator.normal(0.0, 3.0, (steps, 2))) * (generator.random((steps, 2)) > 0.1):
        sampler.update(sampler.sample().indices, news)
    twin = crafted.makers()[name](30, 2, replacement=sampler.replacement)
    twin.load_state_dict(sampler.state_dict())
    assert np.allclose(sampler.probabilities(), twin.probabilities(), rtol=1e-12, atol=0), f"{sampler}"
    return 2 * steps


def magnitudes(generator: np.random.Generator) -> int:
    """Norms of any size, from 5e-324 to 1e308, give finite weights, probabilities that sum to 1, and a state."""
    name, sampler = some_sampler(generator, first := int(generator.integers(3, 40)), int(generator.integers(1, 4)))
    n = sampler.n
    low, high = np.sort(generator.uniform(-323.3, 308.0, 2))
    norms = 10.0 ** np.where(generator.random(n) < generator.random(), low, generator.uniform(low, high, n))
    norms[generator.random(n) < 0.2 * generator.random()] = 0.0
    steps = 60
    for _ in range(steps):
        batch = sampler.sample()
        assert np.isfinite(batch.weights).all() and (batch.weights > 0.0).all(), f"{sampler}, norms {norms.tolist()}"
        assert ((batch.indices >= 0) & (batch.indices < n)).all(), f"{sampler}, norms {norms.tolist()}"
        sampler.update(batch, norms[batch.indices])
        total = sampler.probabilities().sum()
        assert abs(total - 1.0) < 1e-9, f"{sampler}: p sums to {total}, norms {norms.tolist()}"
    twin = crafted.makers()[name](first, sampler.batch_size, replacement=sampler.replacement)
    twin.load_state_dict(sampler.state_dict())
    check_structures(sampler)
    return steps


def rings(generator: np.random.Generator) -> int:
    """Sets with a capacity draw exactly what is present, also after everything was replaced, and resume."""
    kind = str(generator.choice(["Avare", "Calibrated", "Static", "Uniform", "Uniform in passes"]))
    n = int(generator.integers(2, 9))
    capacity = n + int(generator.integers(0, 3))
    every: dict[str, dict[str, Any]] = {"Static": {"smoothness": np.ones(n)}, "Uniform in passes": {"reshuffle": True}}
    options = every.get(kind, {})
    make = getattr(avare, kind.split()[0])
    sampler = make(n, 1, capacity=capacity, seed=int(generator.integers(2**32)), **options)
    present, added, changes = set(range(n)), n, 30
    for _ in range(changes):
        if generator.random() < 0.5 and len(present) > 1:
            gone = generator.permutation(sorted(present))[: int(generator.integers(1, len(present)))]
            sampler.retire(gone)
            present -= set(gone.tolist())
        else:
            count = int(generator.integers(1, capacity + 1))
            new = sampler.append(norms=np.ones(count)) if kind == "Static" else sampler.append(count)
            expected = [(added + k) % capacity for k in range(count)]
            assert new.tolist() == expected, f"{sampler}: appended {new}"
            present, added = present | set(expected), added + count
        drawn = {int(sampler.sample().indices[0]) for _ in range(40 * len(present))}
        assert drawn == present, f"{sampler}: draws {drawn} of {present}"  # a false alarm in 1e16
        twin = make(n, 1, capacity=capacity, **options)
        twin.load_state_dict(sampler.state_dict())
        assert twin.sample().indices.tolist() == sampler.sample().indices.tolist(), f"{sampler}"
    return changes


def forks(generator: np.random.Generator) -> int:
    """A process that is forked while a thread draws can use the sampler, and finds it whole."""
    _, sampler = some_sampler(generator, 200, 8)
    stop, count = threading.Event(), 5

    def work() -> None:
        while not stop.is_set():
            sampler.update(sampler.sample(), np.ones(8))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(count):
            if (child := os.fork()) == 0:
                signal.alarm(20)
                check_structures(sampler)
                sampler.sample()
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code == 0, f"{sampler}: a child ended with {code}"
    finally:
        stop.set()
        thread.join()
    return count


def states(generator: np.random.Generator) -> int:
    """No crafted state ends the process, hangs, changes anything when refused, or gives a weight that is not finite."""
    name = str(generator.choice(crafted.every()))
    seed = str(int(generator.integers(2**31)))
    command = [sys.executable, str(SUPPORT / "crafted.py"), "--subject", name, "--mutations", "90", "--seed", seed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or ["nothing"]
    assert done.returncode == 0, f"code {done.returncode} at {lines[-1]}: {done.stderr[-300:]}"
    found = json.loads(lines[-1])
    assert not found["failures"], found["failures"][0]
    return int(found["tried"])


def kills(generator: np.random.Generator) -> int:
    """Runs that are killed at any moment lose nothing that was stored, and the same command completes them."""
    return _disturbed(generator, *_COMPARE, disturb=lambda run: run.kill(), times=3)


def interrupts(generator: np.random.Generator) -> int:
    """Ctrl-C at any moment ends a command with code 130 and no traceback, nothing is lost, and it resumes."""
    command = _COMMANDS[int(generator.integers(len(_COMMANDS)))]
    one = bool(generator.integers(2))  # or all processes, as a terminal does

    def interrupt(run: psutil.Popen) -> None:
        run.send_signal(signal.SIGINT) if one else os.killpg(run.pid, signal.SIGINT)

    return _disturbed(generator, *command, disturb=interrupt, times=4, check=_check_interrupted)


def frameworks(generator: np.random.Generator) -> int:
    """A Trainer that is killed at any moment while it saves resumes, with the losses and draws of one without kills."""
    import killed_trainer  # needs transformers

    with tempfile.TemporaryDirectory() as folder:
        return killed_trainer.kill_and_resume(Path(folder), generator, kills=6)


_TINY = ("--runs", "1", "--epochs", "1", "--out", "results", "--jobs")
_COMPARE = ("compare", "digits", *_TINY, "1")
_COMMANDS = (
    ("--help",),
    ("diagnose", "digits", "--epochs", "2"),
    _COMPARE,
    (*_COMPARE[:-1], "2"),
    ("reproduce", "synthetic", "--samplers", "Avare,Vrb", *_TINY, "2"),
    ("report", "results"),
)


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float
    """Of the processor."""


def _last_line(ended: Ended) -> str:
    """What a command said last, without the seconds that a fit took."""
    return re.sub(r"[0-9.]+ s\b", "", ended.out.splitlines()[-1])


def _disturbed(
    generator: np.random.Generator,
    *command: str,
    disturb: Callable[[psutil.Popen], None],
    times: int,
    check: Callable[[Ended, Ended], None] = lambda ended, whole: None,
) -> int:
    """Disturb a command at random moments; nothing that was stored may be lost, and in the end it must complete."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if command[0] == "report":
            _run(folder, *_COMPARE)
        with tempfile.TemporaryDirectory() as elsewhere:
            other = Path(elsewhere)
            if command[0] == "report":
                shutil.copytree(folder, other, dirs_exist_ok=True)
            whole = _run(other, *command)
        assert whole.code == 0, whole.err[-300:]
        kept: dict[str, Any] = dict(_stored(folder))
        for _ in range(times):
            ended = _run(folder, *command, disturb=disturb, after=float(generator.uniform(0.0, whole.seconds)))
            check(ended, whole)
            now = dict(_stored(folder))
            lost = [name for name, record in kept.items() if now.get(name) != record]
            assert not lost, f"{lost} are lost or changed after {' '.join(command)} was disturbed"
            kept = now
        done = _run(folder, *command)
        assert done.code == 0, done.err[-300:]
        assert _last_line(done) == _last_line(whole), "it did not complete"
    return times


def _check_interrupted(ended: Ended, whole: Ended) -> None:
    """Assert that a command ended as Ctrl-C should end it."""
    if f"{os.sep}avare{os.sep}" not in ended.err and ended.code in (1, -signal.SIGINT) and not ended.out:
        return  # Python itself was starting
    assert "Traceback" not in ended.err and "Exception ignored" not in ended.err, ended.err[-1000:]
    if ended.code == 0:  # it was complete, and Python was ending
        assert ended.out.splitlines()[-1:] == whole.out.splitlines()[-1:], f"code 0, but {ended.out[-300:]}"
    else:
        assert ended.code == 130, f"code {ended.code}: {ended.err[-1000:]}"


def _run(
    folder: Path, *command: str, disturb: Callable[[psutil.Popen], None] | None = None, after: float = math.inf
) -> Ended:
    """Run a command, disturbed after some seconds of the processor; those of the clock vary with the load."""
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        whole = [sys.executable, "-m", "avare", *command]
        run = psutil.Popen(whole, cwd=folder, stdout=out, stderr=err, start_new_session=True)
        seconds = 0.0
        while run.poll() is None:
            with contextlib.suppress(psutil.Error):
                each = [run.cpu_times(), *(child.cpu_times() for child in run.children(recursive=True))]
                seconds = sum(times.user + times.system for times in each)
            if seconds >= after and disturb is not None:
                with contextlib.suppress(psutil.Error, ProcessLookupError):  # it has just ended
                    disturb(run)
                break
            time.sleep(_LOOK)
        code = run.wait()
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read(), err.read(), seconds)


_LOOK = 0.02  # seconds between two looks at a process


def _stored(folder: Path) -> Iterator[tuple[str, Any]]:
    """All records by their names."""
    for path in (folder / "results" / "runs").glob("*.json"):
        yield path.name, json.loads(path.read_text())


TRIALS: dict[str, tuple[Trial, str]] = {
    each.__name__: (each, unit)
    for each, unit in (
        (laws, "draws"),
        (expectations, "samples"),
        (structures, "operations"),
        (resumes, "steps"),
        (threads, "steps"),
        (drift, "updates"),
        (states, "crafted states"),
        (kills, "kills"),
        (interrupts, "interrupts"),
        (frameworks, "kills"),
        (magnitudes, "steps"),
        (rings, "changes"),
        (forks, "forks"),
        (campaign_files.archives, "members"),
        (campaign_files.records, "odd records"),
        (campaign_files.names, "names"),
        (campaign_weights.weights, "draws"),
        (campaign_weights.passes, "indices"),
        (campaign_weights.epochs, "batches"),
        (campaign_learning.loaders, "batches"),
        (campaign_learning.linear_models, "problems"),
        (campaign_learning.chains, "sets of chains"),
    )
}


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise a TimeoutError in what takes longer."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def campaign(minutes: float, seed: int, chosen: list[str], store: Callable[[dict[str, Tally]], None]) -> None:
    """Let the trials take turns; pass what each has done to `store` every minute, and at the end."""
    tallies = {name: Tally(0, 0, [], 0.0) for name in chosen}
    stop, shown, cycle = time.monotonic() + 60.0 * minutes, time.monotonic(), 0
    while time.monotonic() < stop or not all(each.cases for each in tallies.values()):
        # Each gets about the same time: the one with the least so far is next.
        name = min(tallies, key=lambda each: tallies[each].seconds)
        cases, tried, failures, seconds = tallies[name]
        began = time.monotonic()
        case = seed + cycle
        try:
            with limited(LONGEST):
                tried += TRIALS[name][0](np.random.default_rng(case))
        except Exception as error:
            failures = [*failures, f"--seed {case} --only {name}: {type(error).__name__}: {error}"]
            print(failures[-1], file=sys.stderr)
        tallies[name] = Tally(cases + 1, tried, failures, seconds + time.monotonic() - began)
        cycle += 1
        if time.monotonic() - shown > 60.0:
            shown = time.monotonic()
            failed = sum(len(each.failures) for each in tallies.values())
            print(f"{cycle} cases, {failed} failed, {max(0.0, stop - shown):.0f} s left", file=sys.stderr, flush=True)
            store(tallies)
    store(tallies)


def report(result: dict[str, Any]) -> str:
    """Format the counts as a table."""
    rows = []
    for name, each in result["trials"].items():
        trial, unit = TRIALS[name]
        promise = " ".join((trial.__doc__ or "").split()).rstrip(".")
        counts = [f"{each['cases']:,}", f"{each['tried']:,} {unit}", str(len(each["failures"]))]
        rows.append([name, promise, *counts, f"{each['seconds']:.0f}"])
    failures = [f"- {text}" for each in result["trials"].values() for text in each["failures"][:_SHOWN]]
    return "\n\n".join(
        [
            "# Campaign",
            f"{result['minutes']:g} minutes from seed {result['seed']}: case k has the seed {result['seed']} + k.",
            table(["trial", "promise", "cases", "tried", "failed", "seconds"], rows),
            *(["\n".join(failures)] if failures else []),
        ]
    )


_SHOWN = 10  # failures of each trial


def main() -> int:
    """Try, print and save; the exit code says whether all held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="by default a new one, which is shown")
    parser.add_argument("--only", nargs="+", choices=list(TRIALS), default=list(TRIALS), help="some of the trials")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LimitWarning)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    warnings.filterwarnings("ignore", "'pin_memory' argument is set", UserWarning)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored, and processes inherit that
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(avare.__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    seed = int(np.random.default_rng().integers(2**31)) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr)
    # Where it is measured is noted before: the source may be edited meanwhile.
    result: dict[str, Any] = {"where": where(), "minutes": arguments.minutes, "seed": seed}

    def store(tallies: dict[str, Tally]) -> None:
        result["trials"] = {name: each._asdict() for name, each in tallies.items()}
        if set(arguments.only) == set(TRIALS):
            save("campaign", result, report(result))

    campaign(arguments.minutes, seed, arguments.only, store)
    print(report(result))
    return int(any(each["failures"] for each in result["trials"].values()))


if __name__ == "__main__":
    sys.exit(main())
