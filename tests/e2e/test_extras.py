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
    "": ["avare", "avare.problems", "avare.solvers", "avare.datasets"],
    "experiments": ["avare.experiments", "avare.report"],
    "torch": ["avare.torch"],
    "sklearn": ["avare.sklearn"],
    "jax": ["avare.jax"],
    "accelerate": ["avare.torch", "accelerate"],
    "lightning": ["avare.torch", "avare.torch.lightning"],
    "transformers": ["avare.torch", "avare.torch.transformers"],
    "dask": ["distributed"],
    "arviz": ["arviz"],
}
ALL = sorted({module for modules in MODULES.values() for module in modules if module.startswith("avare")})


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


@pytest.mark.slow
@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_alone(extra: str) -> None:
    promised = MODULES[""] + MODULES[extra]
    script = SCRIPT.format(kept=installed_with(extra), modules=ALL, promised=promised)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
