"""The pages of the API reference, one for each public module: every name in its ``__all__``."""

import contextlib
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import avare

# Modules in the order in which a reader meets them. One that is not named here comes after them.
ORDER = ["avare", "avare.torch", "avare.sklearn", "avare.samplers", "avare.problems", "avare.solvers"]


class Entry(NamedTuple):
    """A public name: where it is exported, and where it is described."""

    module: str
    name: str
    home: str  # the first module that exports the same object
    value: object


def modules() -> list[ModuleType]:
    """Return the public modules: those with an ``__all__`` and no underscore in their path."""
    found = [avare]
    for each in pkgutil.walk_packages(avare.__path__, "avare."):
        if not any(part.startswith("_") for part in each.name.split(".")):
            with contextlib.suppress(ImportError):  # of a framework that is not installed
                module = importlib.import_module(each.name)
                if hasattr(module, "__all__"):
                    found.append(module)
    place = {name: number for number, name in enumerate(ORDER)}
    return sorted(found, key=lambda module: (place.get(module.__name__, len(ORDER)), module.__name__))


def entries() -> list[Entry]:
    """Return every public name, except those of modules."""
    found: list[tuple[str, str, object]] = []
    homes: dict[int, str] = {}
    for module in modules():
        own = [(name, getattr(module, name)) for name in module.__all__]
        own = [(name, value) for name, value in own if not inspect.ismodule(value) and not name.startswith("_")]
        # A second name of the same object, such as a former one, leads to the first.
        for name, value in sorted(own, key=lambda pair: getattr(pair[1], "__name__", pair[0]) != pair[0]):
            homes.setdefault(id(value), f"{module.__name__}.{name}")
        found += [(module.__name__, name, value) for name, value in own]
    return [Entry(module, name, homes[id(value)], value) for module, name, value in found]


def kind(value: object) -> str:
    """Return the heading under which a name is listed."""
    if inspect.isclass(value):
        return "Exceptions and warnings" if issubclass(value, Exception) else "Classes"
    return "Functions" if inspect.isroutine(value) else "Types"


def page(module: ModuleType) -> str:
    """Return the page of a module, in reStructuredText."""
    name = module.__name__
    lines = [name, "=" * len(name), "", f".. py:module:: {name}", "", *(inspect.getdoc(module) or "").splitlines(), ""]
    own = [entry for entry in entries() if entry.module == name]
    for heading in ("Classes", "Functions", "Exceptions and warnings", "Types"):
        here = [entry for entry in own if kind(entry.value) == heading and entry.home == f"{name}.{entry.name}"]
        if here:
            lines += [heading, "-" * len(heading), "", f".. currentmodule:: {name}", ""]
            lines += [".. autosummary::", "   :toctree: generated", "   :nosignatures:", ""]
            lines += [*(f"   {entry.name}" for entry in here), ""]
    others = [entry for entry in own if entry.home != f"{name}.{entry.name}"]
    if others:
        links = ", ".join(f":py:obj:`{entry.name} <{entry.home}>`" for entry in others)
        lines += ["Also here", "---------", "", f"{links}.", ""]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write the pages, and leave those alone that are as they should be."""
    folder.mkdir(exist_ok=True)
    names = [module.__name__ for module in modules()]
    index = ["API reference", "=============", "", "Every public name, with an example that runs.", ""]
    index += [".. list-table::", "   :widths: 30 70", "   :class: autosummary", ""]
    for module in modules():
        first = (inspect.getdoc(module) or "").splitlines()[0]
        index += [f"   * - :doc:`{module.__name__} <{module.__name__}>`", f"     - {first}"]
    index += ["", ".. toctree::", "   :hidden:", "", *(f"   {name}" for name in names), ""]
    pages = {"index": "\n".join(index)} | {module.__name__: page(module) for module in modules()}
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
