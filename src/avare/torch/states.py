"""States that ``torch.save`` and ``torch.load(weights_only=True)`` carry: numbers, text and tensors."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from avare import _validation as validation
from avare._state import State, require_same


def with_tensors(state: Mapping[str, Any]) -> State:
    """Return a state with tensors in place of arrays.

    >>> import numpy as np
    >>> with_tensors({"steps": 3, "moments": np.zeros(2)})
    {'steps': 3, 'moments': tensor([0., 0.], dtype=torch.float64)}
    """
    return {key: _to_torch(value) for key, value in state.items()}


def with_arrays(state: Mapping[str, Any]) -> State:
    """Return a state with arrays in place of tensors, which may be on any device."""
    try:
        return {str(key): validation.from_tensor(f"state[{key!r}]", value) for key, value in state.items()}
    except TypeError as error:
        raise ValueError(str(error)) from None


def check_arguments(state: Any, expected: State, fields: Iterable[str], hints: Mapping[str, str] | None = None) -> None:
    """Raise an error if a loader's state lacks a field, or was saved with different arguments.

    Parameters
    ----------
    state
        What the user passed to ``load_state_dict``.
    expected
        The format and the arguments of this loader.
    fields
        The other fields that the state must have.
    hints
        What to do if an argument differs, by its name.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state is of type {type(state).__name__}: must be a mapping, as state_dict() returns")
    for key in expected:
        try:
            require_same(state, {key: expected[key]}, "state", "this loader")
        except ValueError as error:
            raise ValueError(f"{error}{(hints or {}).get(key, '')}") from None
    for key in fields:
        if key not in state:
            raise ValueError(f"state lacks {key!r}: it is damaged, or not a loader's state")


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: some are read-only
    return value.item() if isinstance(value, np.generic) else value
