"""Two source trees of avare on the same cases, in turns: what a change costs or saves.

    git worktree add /tmp/old v0.1.0
    python benchmarks/before_after.py --before /tmp/old/src

Each tree has a cache of compiled kernels that is empty at first, so that no kernel of an earlier state is used. Each
case has a process per tree, so that no case depends on those before it. Both run in turns: a round measures the case in
one process and then in the other, and the next round begins with the other. Times are processor seconds, as medians
over the rounds. Compare ratios, not times.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 128
SIZES = (10**4, 10**6)
SMALL_SIZES = (10**4, 10**5)
SAMPLERS = ("Avare", "Calibrated", "Uniform", "Static", "Vrb")
SHAPES = {"dense, 20,000 × 20": (20_000, 20, 1.0), "dense, 2,000 × 300": (2_000, 300, 1.0)}
SHAPES |= {"sparse, 10,000 × 5,000": (10_000, 5_000, 0.01)}
RENAMED = {"CalibratedCells": "Expectations"}  # new public names, and what older trees call them
LEAST = 0.05  # processor seconds of one measurement
ABOUT = (
    "Processor time of the new tree as a fraction of the old one's, in turns in two processes a case, with kernels "
    "compiled from each tree: below 1 is faster. A step of a structure or a sampler is a draw of 128 and the update of "
    "their norms; "
    "a loop does the same without replacement and with settled norms, in one call (`step`) in trees that have it; "
    "SGD, SAGA and chains are timed by the epoch or by 1,000 steps, without evaluations and checks."
)
Step = Callable[[], object]


# --- cases, in the worker ------------------------------------------------------------------


def public(module: Any, name: str) -> Any:
    """Return a public name, in trees that have it and in those in which it has another name."""
    return getattr(module, name) if hasattr(module, name) else getattr(module, RENAMED[name])


def cases() -> dict[str, Callable[[], Step]]:
    """Return a function for each case that builds it and returns what is timed."""
    found: dict[str, Callable[[], Step]] = {}
    for n in SIZES:
        found[f"structures/Buckets, n = {n:,}"] = partial(structure, "Buckets", n)
        found[f"structures/CalibratedCells, n = {n:,}"] = partial(structure, "CalibratedCells", n, prior=0.7)
        for name in SAMPLERS:
            found[f"samplers/{name}, n = {n:,}"] = partial(sampling, name, n)
    for n in SMALL_SIZES:
        for name in ("Avare", "Calibrated"):
            found[f"loops/{name}, n = {n:,}"] = partial(loop, name, n)
    for name in ("Uniform", "Avare", "Calibrated"):
        for size in (1, BATCH):
            found[f"solvers/sgd, {name}, batches of {size}"] = partial(sgd, name, size)
    found["solvers/saga, Calibrated, dense"] = saga
    for solver in ("sgld", "sghmc"):
        found[f"solvers/{solver}"] = partial(chain, solver)
    for label, shape in SHAPES.items():
        found[f"estimators/AvareClassifier, {label}"] = partial(fit, *shape)
    return found


def structure(name: str, n: int, **options: Any) -> Step:
    """A draw from a structure, and its update."""
    from avare import structures

    generator = np.random.default_rng(0)
    built = public(structures, name)(generator.lognormal(0.0, 2.0, n), **options)
    norms = generator.lognormal(0.0, 2.0, BATCH)
    numbers: dict[str, Any] = {"generator": generator}
    if "source" in inspect.signature(built.draw).parameters:  # of an older tree
        from avare._randomness import uniform_source

        numbers = {"source": uniform_source(generator)}

    def step() -> None:
        indices, _ = built.draw(BATCH, replacement=True, **numbers)
        built.update(indices, norms)

    return step


def sampling(name: str, n: int) -> Step:
    """A draw of a sampler, and its update."""
    import avare

    generator = np.random.default_rng(0)
    more = {"smoothness": generator.lognormal(0.0, 2.0, n)} if name == "Static" else {}
    sampler = getattr(avare, name)(n, BATCH, replacement=True, seed=0, **more)
    norms = generator.lognormal(0.0, 2.0, BATCH)

    def step() -> None:
        sampler.update(sampler.sample().indices, norms)

    return step


def loop(name: str, n: int) -> Step:
    """An update of a sampler and its next draw, after ten passes; in one call, if the tree has `step`."""
    import avare

    norms = np.random.default_rng(0).lognormal(0.0, 1.0, n)
    sampler = getattr(avare, name)(n, BATCH, seed=0)
    batch = sampler.sample()

    def two_calls(indices: Any, values: Any) -> Any:
        sampler.update(indices, values)
        return sampler.sample()

    advance = getattr(sampler, "step", two_calls)

    def step() -> None:
        nonlocal batch
        batch = advance(batch.indices, norms[batch.indices])

    for _ in range(10 * n // BATCH):
        step()
    return step


def data(n: int, columns: int) -> tuple[Any, Any]:
    """Rows of uneven lengths, and two classes."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, columns)) * generator.lognormal(0.0, 1.0, (n, 1))
    return X, X @ generator.normal(size=columns) / np.sqrt(columns) + generator.logistic(size=n) > 0.0


def sgd(name: str, batch_size: int) -> Step:
    """An epoch of SGD."""
    import avare

    problem = avare.problems.Logistic(*data(50_000, 22), l2=1.0)
    sampler = getattr(avare, name)(problem.n, batch_size, replacement=True, seed=0)
    return lambda: avare.sgd(problem, sampler, 1e-6, epochs=1, evaluate="never")


def saga() -> Step:
    """An epoch of SAGA."""
    import avare

    problem = avare.problems.Logistic(*data(20_000, 50), l2=1.0, bias="free")
    sampler = avare.Calibrated(problem.n, 32, seed=0)
    return lambda: avare.saga(problem, sampler, 1e-3, epochs=1, tol=0.0, evaluate="never")


def chain(solver: str) -> Step:
    """A thousand steps of a chain with differences from the gradients at the mode."""
    import avare

    problem = avare.problems.Logistic(*data(20_000, 20), l2=1.0)
    sampler = avare.Static(problem.n, 32, replacement=True, smoothness=problem.lengths, seed=0)
    options: dict[str, Any] = {"control": problem.minimize(), "precondition": np.full(problem.dim, 1e-4), "chains": 1}
    options |= {"burn_in": 1000, "steps": 1000, "start": options["control"], "seed": 0}  # keeps no draws to check
    return lambda: getattr(avare, solver)(problem, sampler, 0.05, **options)


def fit(n: int, columns: int, density: float) -> Step:
    """A fit with the defaults."""
    from scipy import sparse

    from avare.sklearn import AvareClassifier

    if density < 1.0:
        generator = np.random.default_rng(0)
        X: Any = sparse.random(n, columns, density, format="csr", random_state=generator)
        y = X @ generator.normal(size=columns) > 0.0
    else:
        X, y = data(n, columns)
    return lambda: AvareClassifier().fit(X, y)


def work() -> None:
    """Measure the cases whose names arrive; answer with the processor seconds of one run."""
    warnings.simplefilter("ignore")
    makers, built, counts = cases(), dict[str, Step](), dict[str, int]()
    for line in sys.stdin:
        name = line.strip()
        if name not in built:
            step = built[name] = makers[name]()
            step()  # compiles
            counts[name] = max(1, int(LEAST / max(seconds(step, 3), 1e-9)))
        print(json.dumps(seconds(built[name], counts[name])), flush=True)


def seconds(step: Step, count: int) -> float:
    """Return the processor seconds of one run, over some."""
    started = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - started) / count


# --- both workers --------------------------------------------------------------------------


class Worker:
    """A process that measures the cases of one source tree."""

    def __init__(self, source: Path, cache: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(cache)}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # Otherwise the allocator may return large arrays to the system after each call in one process only.
        environment |= {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
        command = [sys.executable, __file__, "--worker"]
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def measure(self, case: str) -> float:
        """Return the processor seconds of a case."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended at {case!r}: see above")
        return float(json.loads(answer))

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(before: Path, after: Path, names: list[str], rounds: int) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield the seconds of each round for each case, before and after."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            workers = [Worker(each, Path(folder) / label) for label, each in (("before", before), ("after", after))]
            found: list[list[float]] = [[], []]
            try:
                for k in range(rounds):
                    for place in (0, 1) if k % 2 == 0 else (1, 0):
                        found[place].append(workers[place].measure(name))
            finally:
                for worker in workers:
                    worker.end()
            yield name, found[0], found[1]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the folder that contains the older package avare")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1] / "src", help="that of the newer one")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each case")
    parser.add_argument("--only", default="", help="only cases whose names contain this; nothing is saved")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return
    if arguments.before is None or not (arguments.before / "avare").is_dir():
        parser.error(f"--before {arguments.before}: must be a folder that contains the package avare")
    from harness import duration, save, table, where

    result: dict[str, Any] = {"where": where(), "cases": {}}
    names = [name for name in cases() if arguments.only in name]
    rows = []
    for name, *both in compare(arguments.before.resolve(), arguments.after.resolve(), names, arguments.rounds):
        old, new = (float(np.median(each)) for each in both)
        ratio = float(np.median(np.array(both[1]) / both[0]))
        result["cases"][name] = {"before": old, "after": new, "ratio": ratio, "rounds": arguments.rounds}
        rows.append([name, duration(old), duration(new), f"{ratio:.2f}"])
        print(*rows[-1], sep="  ", flush=True)
    text = "\n\n".join(["# Before and after", ABOUT, table(["case", "before", "after", "ratio"], rows)])
    if not arguments.only:
        save("before_after", result, text)


if __name__ == "__main__":
    main()
