"""Packages that are not installed with avare itself, imported when they are needed."""

from importlib import import_module
from typing import Any

_PACKAGES = {"sklearn": "scikit-learn", "arviz": "ArviZ"}


def require(module: str, purpose: str, extra: str | None = "experiments") -> Any:
    """Import a module of an extra, or say which extra to install; if there is none, which package.

    The command in the message works wherever avare is installed, also from a clone: pip adds what the extra needs.

    >>> require("json", "reading")  # doctest: +ELLIPSIS
    <module 'json' ...>
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        what = name if extra is None else f"'avare[{extra}]'"
        raise ImportError(f"{purpose} needs {_PACKAGES.get(name, name)}: pip install {what}") from error
