"""Samplers: which examples to draw. One strategy per file, one protocol for all."""

from avare.samplers.avare import Avare as Avare
from avare.samplers.base import Sampler as Sampler
from avare.samplers.calibrated import Calibrated as Calibrated
from avare.samplers.kernels import register_kernels as register_kernels
from avare.samplers.limits import LimitWarning as LimitWarning
from avare.samplers.mabs import Mabs as Mabs
from avare.samplers.mixture import Mixture as Mixture
from avare.samplers.optimal import Optimal as Optimal
from avare.samplers.osmd import Osmd as Osmd
from avare.samplers.passes import Passes as Passes
from avare.samplers.registry import build as build
from avare.samplers.registry import get as get
from avare.samplers.registry import names as names
from avare.samplers.registry import register as register
from avare.samplers.safe import Safe as Safe
from avare.samplers.srg import Srg as Srg
from avare.samplers.static import Static as Static
from avare.samplers.stratified import Stratified as Stratified
from avare.samplers.uniform import Uniform as Uniform
from avare.samplers.vrb import Vrb as Vrb

__all__ = [
    "Avare",
    "Calibrated",
    "LimitWarning",
    "Mabs",
    "Mixture",
    "Optimal",
    "Osmd",
    "Passes",
    "Safe",
    "Sampler",
    "Srg",
    "Static",
    "Stratified",
    "Uniform",
    "Vrb",
    "build",
    "get",
    "names",
    "register",
    "register_kernels",
]
