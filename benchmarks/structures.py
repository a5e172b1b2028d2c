"""Drawing and updating a batch, by the number of examples, against named rivals: `make bench`.

Norms are log-normal(0, 2), and so are the norms reported after each draw. A step is a draw of a
batch of 128 and the update of its norms: for ours, `Avare.sample` and `Avare.update` as a user
calls them, checks and weights included; for the rivals, the least that does the work.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numba import njit
from numpy.typing import NDArray

import avare
from harness import RESULTS, duration, interleave, save, table, where
from sorted_norms import PaperAvare

mpl.use("Agg")
import matplotlib.pyplot as plt

BATCH_SIZE = 128
SIZES = [10**4, 10**5, 10**6, 10**7, 10**8]
Norms = NDArray[np.float64]
Step = Callable[[], object]

OURS, WITH = "Avare", "Avare, with replacement"
SORTED, SORT, CHOICE = "order tree (the paper's)", "sorting every step", "Generator.choice"
SUM_TREE, MULTINOMIAL = "sum tree, no floor", "torch.multinomial"
STYLES = {
    OURS: ("#0072B2", "-", "o"),
    WITH: ("#56B4E9", "--", "o"),
    SUM_TREE: ("#009E73", "-", "s"),
    CHOICE: ("#E69F00", "-", "^"),
    MULTINOMIAL: ("#CC79A7", "-", "v"),
    SORT: ("#767676", "-", "D"),
    SORTED: ("#D55E00", "-", "P"),
}


# --- ours, and rivals at their best ---------------------------------------------------------


def ours(norms: Norms, news: Norms, kind: type[avare.Avare | PaperAvare] = avare.Avare, **arguments: Any) -> Step:
    """Avare, as a user calls it."""
    sampler = kind(len(norms), BATCH_SIZE, initial_norms=norms, seed=0, **arguments)
    pick = _cycle(news)

    def step() -> None:
        batch = sampler.sample()
        sampler.update(batch.indices, pick())

    return step


def sorting(norms: Norms, news: Norms) -> Step:
    """Lemma 1 from a sort of the values alone, then inverse-transform sampling."""
    h, generator, pick, n = norms.copy(), np.random.default_rng(0), _cycle(news), len(norms)
    floor = 0.5 / n
    kept = 1.0 - np.arange(n - 1, -1, -1) * floor

    def step() -> None:
        ordered = np.sort(h)[::-1]
        sums = np.cumsum(ordered)
        rho = np.count_nonzero(ordered * kept >= floor * sums) - 1
        cumulative = np.cumsum(np.maximum(h * (kept[rho] / sums[rho]), floor))
        indices = np.searchsorted(cumulative, generator.random(BATCH_SIZE) * cumulative[-1])
        h[indices] = pick()

    return step


def choice(norms: Norms, news: Norms) -> Step:
    """NumPy's own, in proportion to the norms."""
    h, generator, pick, n = norms.copy(), np.random.default_rng(0), _cycle(news), len(norms)

    def step() -> None:
        indices = generator.choice(n, size=BATCH_SIZE, p=h / h.sum())
        h[indices] = pick()

    return step


def multinomial(norms: Norms, news: Norms) -> Step:
    """PyTorch's own, in proportion to the norms."""
    import torch

    h = torch.from_numpy(norms.astype(np.float32))
    pick = itertools.cycle([torch.from_numpy(each.astype(np.float32)) for each in news]).__next__

    def step() -> None:
        indices = torch.multinomial(h, BATCH_SIZE, replacement=True)
        h[indices] = pick()

    return step


def sum_tree(norms: Norms, news: Norms) -> Step:
    """A plain binary tree of sums, compiled; it cannot floor."""
    leaves = 1 << (len(norms) - 1).bit_length()
    tree = np.zeros(2 * leaves)
    tree[leaves : leaves + len(norms)] = norms
    for level in range(leaves.bit_length() - 2, -1, -1):
        tree[1 << level : 2 << level] = tree[2 << level : 4 << level].reshape(-1, 2).sum(axis=1)
    generator, pick, indices = np.random.default_rng(0), _cycle(news), np.empty(BATCH_SIZE, dtype=np.int64)

    def step() -> None:
        _draw_from_sum_tree(tree, generator.random(BATCH_SIZE), indices)
        _update_sum_tree(tree, indices, pick())

    return step


@njit(nogil=True)
def _draw_from_sum_tree(tree, uniforms, indices):
    leaves = len(tree) // 2
    for j in range(len(indices)):
        x, node = uniforms[j] * tree[1], 1
        while node < leaves:
            node *= 2
            if x >= tree[node]:
                x -= tree[node]
                node += 1
        indices[j] = node - leaves


@njit(nogil=True)
def _update_sum_tree(tree, indices, norms):
    leaves = len(tree) // 2
    for j in range(len(indices)):
        node = indices[j] + leaves
        tree[node] = norms[j]
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]


def _cycle(news: Norms) -> Callable[[], Norms]:
    """Batches of new norms, one after another, again and again."""
    return itertools.cycle(list(news)).__next__


# --- what is measured -----------------------------------------------------------------------


def by_size(n: int, seconds: float, slowest: int) -> dict[str, float]:
    """Seconds a step of ours and of each rival that can do n."""
    generator = np.random.default_rng(1)
    norms = generator.lognormal(0.0, 2.0, n)
    news = generator.lognormal(0.0, 2.0, (64, BATCH_SIZE))
    steps: dict[str, Step] = {
        OURS: ours(norms, news),
        WITH: ours(norms, news, replacement=True),
        SUM_TREE: sum_tree(norms, news),
        CHOICE: choice(norms, news),
        SORT: sorting(norms, news),
    }
    if n < 2**24 and find_spec("torch") is not None:  # its limit
        steps[MULTINOMIAL] = multinomial(norms, news)
    if n <= slowest:
        steps[SORTED] = ours(norms, news, PaperAvare, replacement=True)
    return interleave(steps, seconds=seconds)


def building(n: int) -> dict[str, float]:
    """Seconds to build from given norms, and to sort them."""
    norms = np.random.default_rng(2).lognormal(0.0, 2.0, n)
    return interleave(
        {
            "build": lambda: avare.Avare(n, BATCH_SIZE, initial_norms=norms),
            "numpy.sort": lambda: np.sort(norms),
        },
        seconds=10.0,
    )


MEMORY = """
import sys
import psutil
import avare
n = int(sys.argv[1])
avare.Avare(1000, 128, seed=0).sample()
before = psutil.Process().memory_info().rss
sampler = avare.Avare(n, 128, seed=0)
for _ in range(2000):
    batch = sampler.sample()
    sampler.update(batch.indices, (batch.indices % 1000) * 0.37 + 0.01)
after = psutil.Process().memory_info().rss
print(after - before, sampler._structure.nbytes)
"""

START = """
import time
started = time.perf_counter()
import avare
sampler = avare.Avare(1000, 128, seed=0)
batch = sampler.sample()
drawn = time.perf_counter() - started
sampler.update(batch.indices, batch.weights)
print(drawn, time.perf_counter() - started)
"""


def memory(n: int) -> dict[str, float]:
    """Bytes an example beyond 8 MB: by the peak of a process of its own, and by what is allocated."""
    grown, allocated = _subprocess(MEMORY, str(n))
    return {"resident": (grown - 8e6) / n, "allocated": (allocated - 8e6) / n}


def starting() -> dict[str, float]:
    """Seconds from nothing to a first draw, with an empty cache of compiled code and with a filled one."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _subprocess(START, cache=cache)
        warm = min(_subprocess(START, cache=cache) for _ in range(3))
    return {"cold": cold[1], "warm": warm[0]}


def _subprocess(program: str, *arguments: str, cache: str | None = None) -> list[float]:
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return [float(word) for word in found.stdout.split()]


# --- what is written ------------------------------------------------------------------------


def targets(result: dict[str, Any]) -> list[list[str]]:
    """Each target, what was measured, and whether that meets it; those that were not measured are left out."""
    step = {int(n): costs for n, costs in result["steps"].items()}
    rows: list[list[str]] = []

    def at_most(what: str, value: float, limit: float, unit: str = "×") -> None:
        rows.append([what, f"≤ {limit:g} {unit}", f"{value:.3g} {unit}", "yes" if value <= limit else "**no**"])

    def at_least(what: str, value: float, limit: float) -> None:
        rows.append([what, f"≥ {limit:g} ×", f"{value:.3g} ×", "yes" if value >= limit else "**no**"])

    if {10**4, 10**8} <= step.keys():
        for name in (OURS, WITH):
            at_most(f"{name}: cost at N = 10⁸ over that at 10⁴", step[10**8][name] / step[10**4][name], 4.0)
    for n in sorted(step):
        if n >= 10**6:
            at_most(f"cost over the sum tree's, N = {n:.0e}", step[n][OURS] / step[n][SUM_TREE], 1.0)
    if 10**6 in step:
        at_least("faster than Generator.choice, N = 1e+06", step[10**6][CHOICE] / step[10**6][OURS], 100.0)
        at_least("faster than the order tree, N = 1e+06", step[10**6][SORTED] / step[10**6][OURS], 200.0)
    for n in sorted(step):
        at_most(f"without over with replacement, N = {n:.0e}", step[n][OURS] / step[n][WITH], 1.3)
    build = result["building"]
    at_most("building over numpy.sort, N = 1e+07", build["build"] / build["numpy.sort"], 1.0)
    for n, found in result["memory"].items():
        for kind, value in found.items():
            at_most(f"memory beyond 8 MB, {kind}, N = {int(n):.0e}", value, 16.0, "bytes an example")
    at_most("first draw and update, nothing compiled yet", result["starting"]["cold"], 10.0, "s")
    at_most("import and first draw, compiled before", result["starting"]["warm"], 2.0, "s")
    return rows


def report(result: dict[str, Any]) -> str:
    """The tables."""
    names = [name for name in STYLES if any(name in costs for costs in result["steps"].values())]
    steps = [
        [f"{int(n):.0e}", *(duration(costs[name]) if name in costs else "–" for name in names)]
        for n, costs in result["steps"].items()
    ]
    return "\n\n".join(
        [
            f"# Draw and update of a batch of {BATCH_SIZE}",
            "Median time a step; `Avare` draws without replacement.",
            table(["N", *names], steps),
            table(["target", "wanted", "measured", "met"], targets(result)),
        ]
    )


def plot(result: dict[str, Any]) -> None:
    """Cost against N, log-log."""
    figure, axis = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    for name, (colour, line, marker) in STYLES.items():
        points = [(int(n), costs[name] * 1e6) for n, costs in result["steps"].items() if name in costs]
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, linestyle=line, marker=marker, markersize=5, label=name)
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="number of examples N",
        ylabel="microseconds a step",
        title=f"Draw and update of a batch of {BATCH_SIZE}",
    )
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    figure.savefig(RESULTS / "structures.png", dpi=160)


def main() -> None:
    """Measure, then write JSON, tables and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="numbers of examples")
    parser.add_argument("--seconds", type=float, default=20.0, help="to spend on each number of examples")
    parser.add_argument("--slowest", type=float, default=1e7, help="largest number of examples for the order tree")
    parser.add_argument("--again", action="store_true", help="make tables and plot again from the stored numbers")
    arguments = parser.parse_args()
    if arguments.again:
        result = json.loads((RESULTS / "structures.json").read_text())
    else:
        result = {"where": where(), "steps": {}}
        for n in map(int, arguments.sizes):
            started = time.perf_counter()
            result["steps"][str(n)] = by_size(n, arguments.seconds, int(arguments.slowest))
            print(
                f"N = {n:.0e}: {duration(result['steps'][str(n)][OURS])} a step; measured in "
                f"{duration(time.perf_counter() - started)}",
                flush=True,
            )
        result["building"] = building(10**7)
        result["memory"] = {str(n): memory(n) for n in map(int, arguments.sizes) if n >= 10**6}
        result["starting"] = starting()
    text = report(result)
    save("structures", result, text)
    plot(result)
    print(text)
    print(f"\nWritten to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
