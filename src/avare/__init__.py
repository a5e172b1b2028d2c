"""Adaptive importance sampling: draw the examples that matter, weigh them so that nothing is biased."""

from avare import _interrupts as _interrupts  # first: what follows takes a second

# isort: split

from importlib.metadata import version as _version

from avare import datasets as datasets
from avare import diagnostics as diagnostics
from avare import problems as problems
from avare import samplers as samplers
from avare import schedules as schedules
from avare import solvers as solvers
from avare import structures as structures
from avare.batch import Batch as Batch
from avare.batch import batch_weights as batch_weights
from avare.samplers import Avare as Avare
from avare.samplers import Calibrated as Calibrated
from avare.samplers import Mabs as Mabs
from avare.samplers import Mixture as Mixture
from avare.samplers import Optimal as Optimal
from avare.samplers import Osmd as Osmd
from avare.samplers import Passes as Passes
from avare.samplers import Safe as Safe
from avare.samplers import Sampler as Sampler
from avare.samplers import Srg as Srg
from avare.samplers import Static as Static
from avare.samplers import Stratified as Stratified
from avare.samplers import Uniform as Uniform
from avare.samplers import Vrb as Vrb
from avare.simplex import minimize_variance as minimize_variance
from avare.solvers import saga as saga
from avare.solvers import sgd as sgd
from avare.solvers import sghmc as sghmc
from avare.solvers import sgld as sgld

__version__ = _version("avare")

__all__ = [
    "Avare",
    "Batch",
    "Calibrated",
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
    "__version__",
    "batch_weights",
    "datasets",
    "diagnostics",
    "minimize_variance",
    "problems",
    "saga",
    "samplers",
    "schedules",
    "sgd",
    "sghmc",
    "sgld",
    "solvers",
    "structures",
]
