"""SGD, SAGA, SGLD and SGHMC: one loop, compiled if the problem and the sampler have kernels."""

from avare._exports import public_names as _public_names
from avare.solvers.convergence import ConvergenceReport as ConvergenceReport
from avare.solvers.convergence import ConvergenceWarning as ConvergenceWarning
from avare.solvers.loop import DivergenceWarning as DivergenceWarning
from avare.solvers.loop import Progress as Progress
from avare.solvers.run import Chain as Chain
from avare.solvers.run import Run as Run
from avare.solvers.run import SolverInterrupted as SolverInterrupted
from avare.solvers.saga import saga as saga
from avare.solvers.sgd import sgd as sgd
from avare.solvers.sghmc import sghmc as sghmc
from avare.solvers.sgld import sgld as sgld

__all__ = _public_names(globals())
