"""Tensors and arrays: states that ``torch.save`` and ``torch.load(weights_only=True)`` carry, and reported numbers."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avare import _validation as validation
from avare._files import write_whole
from avare.state import State, require_mapping

_COMMON = (torch.int64, torch.float32, torch.float64)  # types of indices, norms and scores


def with_tensors(state: Mapping[str, Any]) -> State:
    """Return a state with tensors in place of arrays, also in states within it.

    >>> import numpy as np
    >>> with_tensors({"steps": 3, "moments": np.zeros(2)})
    {'steps': 3, 'moments': tensor([0., 0.], dtype=torch.float64)}
    """
    return {key: _to_torch(value) for key, value in state.items()}


def with_arrays(state: Mapping[str, Any]) -> State:
    """Return a state with arrays in place of tensors, which may be on any device."""
    require_mapping(state)
    try:
        return {str(key): _to_numpy(f"state[{key!r}]", value) for key, value in state.items()}
    except TypeError as error:
        raise ValueError(str(error)) from None


def save(state: State, file: str) -> None:
    """Write a state to a file, whole or not at all."""
    content = io.BytesIO()
    torch.save(state, content)
    write_whole(Path(file), content.getvalue())


def load(file: str, loader: Any) -> None:
    """Load the state of a loader from a file in a framework's checkpoint."""
    try:
        loader.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:  # torch has many kinds for a damaged file
        reason = error if isinstance(error, ValueError) else "it is damaged"
        advice = "resume from an older checkpoint, or delete this file to continue with no norms known"
        raise ValueError(f"{file} cannot be loaded ({reason}): {advice}") from error


def as_array(name: str, values: Any) -> Any:
    """Return a tensor as an array, at once in the common case; anything else unchanged."""
    if type(values) is not torch.Tensor or not values.is_cpu or values.layout is not torch.strided:
        return validation.from_tensor(name, values)
    if values.dtype not in _COMMON or values.requires_grad or values.is_neg():
        return validation.from_tensor(name, values)
    return values.numpy()


def _to_numpy(name: str, value: Any) -> Any:
    return with_arrays(value) if isinstance(value, Mapping) else validation.from_tensor(name, value)


def _to_torch(value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_tensors(value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: some are read-only
    return value.item() if isinstance(value, np.generic) else value
