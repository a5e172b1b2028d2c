"""What a new user waits for: imports, first draws and fits, with nothing compiled yet: `make bench`.

Each task runs in a process of its own with an empty folder of compiled kernels, and then once more with the folder that
the first process has filled. Numbers are for the whole process, from its start to its end. Processor seconds hardly
depend on what else the machine does; the seconds on the clock do. With MNIST (see docs/datasets.md), the command
`avare diagnose mnist` is measured too: up to the first line of its output, and to the end.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from avare.experiments import datasets
from harness import save, table, where

ROOT = Path(__file__).parents[1]
_DATA = """
import numpy as np, scipy.sparse
from avare.sklearn import AvareClassifier, AvareRegressor
generator = np.random.default_rng(0)
X = generator.normal(size=(10_000, 20))
score = X[:, 0] + generator.normal(size=len(X))
"""
TASKS = {
    "import avare": "import avare",
    "first draw": "import avare; avare.Calibrated(10_000, seed=0).sample()",
    "first draw and update": """
import avare
sampler = avare.Calibrated(10_000, seed=0)
indices = sampler.sample().indices
sampler.update(indices, [1.0] * len(indices))
""",
    "first batch of a loader": """
import torch
from avare.torch import ImportanceLoader
data = torch.utils.data.TensorDataset(torch.randn(10_000, 20), torch.zeros(10_000))
next(iter(ImportanceLoader(data, batch_size=64)))
""",
    "AvareClassifier, dense": f"{_DATA}AvareClassifier().fit(X, score > 0)",
    "AvareClassifier, sparse": f"""{_DATA}
X = scipy.sparse.random(10_000, 1_000, density=0.02, format="csr", random_state=0)
AvareClassifier().fit(X, score > 0)
""",
    "AvareClassifier, multinomial": f"{_DATA}AvareClassifier().fit(X, np.digitize(score, [-1.0, 1.0]))",
    "AvareRegressor": f"{_DATA}AvareRegressor().fit(X, score)",
}
AIMS = {"first draw": 8.0, **dict.fromkeys((name for name in TASKS if name.startswith("Avare")), 6.0)}
DIAGNOSIS = "avare diagnose mnist"
NOTICE = b"avare: compiling kernels"  # which is no answer
SAID = (
    "Seconds of a whole process: the first one in a new environment, which compiles the kernels that it needs, and the "
    "next one, which finds them on disk."
)


class Cost(NamedTuple):
    """What a process took."""

    wall: float
    processor: float
    first_line: float
    """Seconds to the first line of its output; those of the whole process if there is none."""


def cost_of(command: list[str], cache: Path) -> Cost:
    """Run a command, with a folder for compiled kernels."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    first = None
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(NOTICE):
                first = first or time.perf_counter() - started
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:200]}: exit code {process.returncode}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, processor, wall if first is None else first)


def measure(command: list[str], repeats: int) -> dict[str, Any]:
    """Return the least of each number over some repetitions, with an empty folder and with a filled one."""
    runs: dict[str, list[Cost]] = {"first": [], "again": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for each in runs.values():
                each.append(cost_of(command, Path(folder)))
    return {name: Cost(*map(min, zip(*each, strict=True)))._asdict() for name, each in runs.items()}


def readme() -> str:
    """Return the examples of the README as one program."""
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    return "\n".join(found)


def report(result: dict[str, Any]) -> str:
    """Format the measured numbers as tables."""
    rows = [
        [
            name,
            *(f"{each[way][key]:.1f}" for way in ("first", "again") for key in ("processor", "wall")),
            ""
            if name not in AIMS
            else f"≤ {AIMS[name]:g}: {'yes' if each['first']['processor'] <= AIMS[name] else 'no'}",
        ]
        for name, each in result["tasks"].items()
    ]
    headings = ["task", "processor s", "s", "processor s, cached", "s, cached", "aim, processor s"]
    parts = [
        "# The first hour",
        f"{SAID} Least of {result['repeats']}.",
        table(headings, rows),
    ]
    if DIAGNOSIS in result["tasks"]:
        lines = [f"{result['tasks'][DIAGNOSIS][way]['first_line']:.1f} s" for way in ("first", "again")]
        parts.append(f"`{DIAGNOSIS}` prints its first line after {lines[0]}, and after {lines[1]} with cached kernels.")
    return "\n\n".join(parts)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of each task")
    parser.add_argument("--data", help="folder with MNIST; by default AVARE_DATA")
    arguments = parser.parse_args()
    commands = {name: [sys.executable, "-c", task] for name, task in TASKS.items()}
    commands["README's examples"] = [sys.executable, "-c", readme()]
    if None in datasets.where("mnist", folder=arguments.data).values():
        print(f"{DIAGNOSIS} is left out: MNIST is not here")
    else:
        folder = [] if arguments.data is None else ["--data", arguments.data]
        commands[DIAGNOSIS] = [sys.executable, "-m", "avare", "diagnose", "mnist", *folder]
    result: dict[str, Any] = {"where": where(), "repeats": arguments.repeats, "tasks": {}}
    for name, command in commands.items():
        result["tasks"][name] = measure(command, arguments.repeats)
        print(name, result["tasks"][name]["first"], flush=True)
    text = report(result)
    save("first_hour", result, text)
    print(text)


if __name__ == "__main__":
    main()
