"""States as ``torch.save`` and ``torch.load(weights_only=True)`` carry them: numbers, text and tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avare._state import State


def with_tensors(state: Mapping[str, Any]) -> State:
    """A state with tensors for its arrays.

    >>> import numpy as np
    >>> with_tensors({"steps": 3, "moments": np.zeros(2)})
    {'steps': 3, 'moments': tensor([0., 0.], dtype=torch.float64)}
    """
    return {key: _to_torch(value) for key, value in state.items()}


def with_arrays(state: Mapping[str, Any]) -> State:
    """A state with arrays for its tensors, on whatever device they are."""
    return {key: to_array(value) if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's values, without its gradient; in float32 where NumPy has not its kind of number."""
    values = tensor.detach().cpu()
    array: NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return array


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: some are read-only
    return value.item() if isinstance(value, np.generic) else value
