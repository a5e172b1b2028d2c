"""SGD, SAGA and SGLD: one loop, compiled if the problem and the sampler have kernels."""

from avare.solvers.loop import DivergenceWarning as DivergenceWarning
from avare.solvers.loop import Progress as Progress
from avare.solvers.saga import saga as saga
from avare.solvers.sgd import Run as Run
from avare.solvers.sgd import sgd as sgd
from avare.solvers.sgld import Chain as Chain
from avare.solvers.sgld import sgld as sgld

__all__ = [
    "Chain",
    "DivergenceWarning",
    "Progress",
    "Run",
    "saga",
    "sgd",
    "sgld",
]
