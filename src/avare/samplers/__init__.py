"""Samplers: which examples to draw. One strategy per file, one protocol for all."""

from avare._exports import public_names as _public_names
from avare.samplers.base import Sampler as Sampler
from avare.samplers.kernels import register_kernels as register_kernels
from avare.samplers.registry import build as build
from avare.samplers.registry import get as get
from avare.samplers.registry import names as names
from avare.samplers.registry import register as register
from avare.samplers.rivals.smoothed import LimitWarning as LimitWarning
from avare.samplers.strategies import *

__all__ = _public_names(globals())
