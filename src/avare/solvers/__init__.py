"""SGD, SAGA, SGLD and SGHMC: one loop, compiled if the problem and the sampler have kernels."""

from avare.solvers.loop import DivergenceWarning, Progress
from avare.solvers.run import Chain, Interrupted, Run
from avare.solvers.saga import saga
from avare.solvers.sgd import sgd
from avare.solvers.sghmc import sghmc
from avare.solvers.sgld import sgld
from avare.solvers.verdict import ConvergenceWarning, Verdict

__all__ = [
    "Chain",
    "ConvergenceWarning",
    "DivergenceWarning",
    "Interrupted",
    "Progress",
    "Run",
    "Verdict",
    "saga",
    "sgd",
    "sghmc",
    "sgld",
]
