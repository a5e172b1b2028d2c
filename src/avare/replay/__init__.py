"""Prioritised replay: which transitions of a buffer to learn from, and with which weights."""

from avare._exports import public_names as _public_names
from avare.replay.prioritized import Prioritized as Prioritized

__all__ = _public_names(globals())
