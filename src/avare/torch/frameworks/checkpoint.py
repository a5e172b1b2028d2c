"""The state of a loader as a file in a framework's checkpoint."""

import io
from pathlib import Path
from typing import Any

import torch

from avare._files import write_whole
from avare.state import State


def save(state: State, file: str) -> None:
    """Write a state to a file, whole or not at all."""
    content = io.BytesIO()
    torch.save(state, content)
    write_whole(Path(file), content.getvalue())


def load(file: str, loader: Any) -> None:
    """Load the state of a loader from a file."""
    try:
        loader.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:  # torch has many kinds for a damaged file
        reason = error if isinstance(error, ValueError) else "it is damaged"
        advice = "resume from an older checkpoint, or delete this file to continue with no norms known"
        raise ValueError(f"{file} cannot be loaded ({reason}): {advice}") from error
