"""States that ``torch.save`` and ``torch.load(weights_only=True)`` carry: numbers, text and tensors."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from avare._state import State


def with_tensors(state: Mapping[str, Any]) -> State:
    """Return a state with tensors in place of arrays.

    >>> import numpy as np
    >>> with_tensors({"steps": 3, "moments": np.zeros(2)})
    {'steps': 3, 'moments': tensor([0., 0.], dtype=torch.float64)}
    """
    return {key: _to_torch(value) for key, value in state.items()}


def with_arrays(state: Mapping[str, Any]) -> State:
    """Return a state with arrays in place of tensors, which may be on any device."""
    return {key: as_array(value) for key, value in state.items()}


def as_array(values: Any) -> Any:
    """Return a tensor as an array, bfloat16 as float32; return anything else unchanged."""
    if not isinstance(values, torch.Tensor):
        return values
    tensor = values.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


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
    for key in (*expected, *fields):
        if key not in state:
            raise ValueError(f"state lacks {key!r}: it is damaged, or not a loader's state")
        if key in expected and state[key] != expected[key]:
            hint = (hints or {}).get(key, "")
            raise ValueError(f"state[{key!r}] = {state[key]!r}: this loader has {expected[key]!r}{hint}")


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: some are read-only
    return value.item() if isinstance(value, np.generic) else value
