"""Finite sums: linear models on dense and sparse data, and problems given by Python functions."""

from avare._exports import public_names as _public_names
from avare.problems.base import Problem as Problem
from avare.problems.generic import Generic as Generic
from avare.problems.huber import Huber as Huber
from avare.problems.least_squares import LeastSquares as LeastSquares
from avare.problems.linear import Linear as Linear
from avare.problems.logistic import Logistic as Logistic
from avare.problems.losses import register_kernels as register_kernels
from avare.problems.losses import register_vector_kernels as register_vector_kernels
from avare.problems.minimum import ToleranceWarning as ToleranceWarning
from avare.problems.registry import get as get
from avare.problems.registry import names as names
from avare.problems.registry import register as register
from avare.problems.smoothed_hinge import SmoothedHinge as SmoothedHinge
from avare.problems.softmax import Softmax as Softmax

__all__ = _public_names(globals())
