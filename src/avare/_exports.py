"""Public names of a package: ``__all__`` is derived from its imports, which are the only list."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names in a namespace that have no leading underscore and are no modules.

    >>> import math
    >>> public_names({"math": math, "_hidden": 1, "pi": math.pi})
    ['pi']
    """
    return [name for name, value in namespace.items() if not name.startswith("_") and not isinstance(value, ModuleType)]
