"""Each extra alone: what it promises can be imported, and what it does not says how to install it.

A process sees only the packages that pip would install with the extra. All others are hidden from it, so that no
environment is made and nothing is downloaded.
"""

import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MODULES = {
    "": ["avare", "avare.problems", "avare.solvers", "avare.experiments.datasets"],
    "experiments": ["avare.experiments", "avare.experiments.report"],
    "torch": ["avare.torch"],
    "sklearn": ["avare.sklearn"],
    "jax": ["avare.jax"],
    "accelerate": ["avare.torch", "accelerate"],
    "lightning": ["avare.torch", "avare.torch.lightning"],
    "transformers": ["avare.torch", "avare.torch.transformers"],
    "arviz": ["arviz"],
}
ALL = sorted({module for modules in MODULES.values() for module in modules if module.startswith("avare")})
ALL += ["avare.replay.stable_baselines3", "avare.replay.torchrl"]


def installed_with(extra: str) -> set[str]:
    """The names of all distributions that pip installs with avare and this extra."""
    found: set[tuple[str, str]] = set()
    waiting = [("avare", extra)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another system, or another version of Python
            continue
        for line in lines:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                waiting += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in found}


SCRIPT = """
import importlib, importlib.metadata, sys
from importlib.machinery import PathFinder
from packaging.utils import canonicalize_name

kept, modules, promised = {kept!r}, {modules!r}, {promised!r}
owners = importlib.metadata.packages_distributions()
hidden = {{name for name, dists in owners.items() if not {{canonicalize_name(each) for each in dists}} & kept}}

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        return (each for each in super().find_distributions(*context) if canonicalize_name(each.name) in kept)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
for name in [name for name in sys.modules if name.split(".")[0] in hidden]:
    del sys.modules[name]
for name in promised:
    importlib.import_module(name)
for name in sorted(set(modules) - set(promised)):
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert "pip install" in str(error), (name, str(error))
"""


USES = """
import tempfile
from pathlib import Path
import avare
from avare import plotting
from avare.experiments.cli import main
from avare.experiments import Store, compare, datasets, obtain

problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 0.0])
run = avare.sgd(problem, avare.Uniform(2, 1, seed=0), 0.1, epochs=1)
chain = avare.sgld(problem, avare.Uniform(2, 1, seed=0), 0.1, steps=5, chains=1, seed=0)
problem.minimize()
folder = Path(tempfile.mkdtemp())
(folder / "mine.csv").write_text("a,y\\n1,2\\n")
data, loss = obtain("synthetic")
for use in (
    run.plot,
    chain.plot,
    chain.to_arviz,
    chain.summary,
    lambda: plotting.calibration(avare.Calibrated(10, 2, seed=0)),
    lambda: datasets.load("digits"),
    lambda: datasets.fetch("mnist", folder=folder),
    lambda: datasets.read(folder / "mine.csv", target="y"),
    lambda: compare(data, loss, Store(folder), epochs=1, runs=1, jobs=1),
    lambda: compare(data, loss, Store(folder), epochs=1, runs=1, jobs=2),
):
    try:
        use()
    except ImportError as error:
        assert " needs " in str(error) and "pip install 'avare[" in str(error), error
    else:
        raise AssertionError(f"{use} works without its extra")
for command in ("diagnose", "compare", "reproduce", "report", "datasets"):
    assert main([command]) == 1
"""


@pytest.mark.slow
def test_without_extras_everything_says_what_it_lacks() -> None:
    script = SCRIPT.format(kept=installed_with(""), modules=[], promised=[]) + USES
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("avare: the command line needs typer: pip install 'avare[experiments]'") == 5


@pytest.mark.slow
@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_alone(extra: str) -> None:
    promised = MODULES[""] + MODULES[extra]
    script = SCRIPT.format(kept=installed_with(extra), modules=ALL, promised=promised)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
