"""Certified minimisation of linear models: Newton's method, working sets, dual ascent, and bounds on the gap.

Nothing is drawn here. `problem.minimize`, `problem.gap` and `avare.sklearn` lead here; `import avare` does not.
"""

from avare.linear.free_bias import constant as constant
from avare.linear.gap import gap_at as gap_at
from avare.linear.minimum import minimize as minimize
from avare.linear.newton import Minimum as Minimum

__all__ = ["Minimum", "constant", "gap_at", "minimize"]
