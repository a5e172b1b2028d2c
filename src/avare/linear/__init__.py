"""Certified minimisation of linear models: Newton's method, working sets, dual ascent, and bounds on the gap.

Nothing is drawn here. `problem.minimize`, `problem.gap` and `avare.sklearn` lead here; `import avare` does not. Read
`solve` first: it lists the strategies in the order in which they are tried. `certificates` says how far a result can be
from the minimum.
"""

from avare.linear.certificates import Gap as Gap
from avare.linear.certificates import gap_at as gap_at
from avare.linear.existence import why_improper as why_improper
from avare.linear.intercept import constant_model as constant_model
from avare.linear.minimum import minimize as minimize
from avare.linear.solve import Minimum as Minimum

__all__ = ["Gap", "Minimum", "constant_model", "gap_at", "minimize", "why_improper"]
