"""SGD, SAGA, SGLD and SGHMC: one loop, compiled if the problem and the sampler have kernels."""

from avare.solvers.chains import Chain as Chain
from avare.solvers.chains import WideningWarning as WideningWarning
from avare.solvers.loop import DivergenceWarning as DivergenceWarning
from avare.solvers.loop import Progress as Progress
from avare.solvers.saga import saga as saga
from avare.solvers.sgd import Run as Run
from avare.solvers.sgd import sgd as sgd
from avare.solvers.sghmc import sghmc as sghmc
from avare.solvers.sgld import sgld as sgld
from avare.solvers.widening import Widening as Widening

__all__ = [
    "Chain",
    "DivergenceWarning",
    "Progress",
    "Run",
    "Widening",
    "WideningWarning",
    "saga",
    "sgd",
    "sghmc",
    "sgld",
]
