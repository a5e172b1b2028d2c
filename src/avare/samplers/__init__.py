"""Which indices to draw: one strategy a file, one protocol for all."""

from avare.samplers.avare import Avare as Avare
from avare.samplers.base import Sampler as Sampler
from avare.samplers.uniform import Uniform as Uniform
