"""Adaptive importance sampling: draw the examples that matter, weigh them so that nothing is biased."""

from avare import _interrupts as _interrupts  # first: what follows takes a second

# isort: split

from importlib.metadata import version as _version

from avare import diagnostics as diagnostics
from avare import problems as problems
from avare import samplers as samplers
from avare import schedules as schedules
from avare import solvers as solvers
from avare import state as state
from avare import structures as structures
from avare._exports import public_names as _public_names
from avare.batch import Batch as Batch
from avare.batch import batch_weights as batch_weights
from avare.samplers.base import Sampler as Sampler
from avare.samplers.strategies import *
from avare.simplex import minimize_variance as minimize_variance
from avare.solvers import saga as saga
from avare.solvers import sgd as sgd
from avare.solvers import sghmc as sghmc
from avare.solvers import sgld as sgld

__version__ = _version("avare")
__all__ = ["__version__", *_public_names(globals())]
