"""Certified minimisation of linear models: Newton's method, working sets, dual ascent, and bounds on the gap.

Nothing is drawn here. `problem.minimize`, `problem.gap` and `avare.sklearn` lead here; `import avare` does not. Read
`avare.linear.solver` first: it lists the strategies in the order in which they are tried. `avare.linear.certificates`
says how far a result can be from the minimum.

What is read of a problem, all of it public:

- data: `n`, `dim`, `width`, `outputs`, ``model``, `target`, `rows`, `subset`, `square`, `names`, `coefficients`,
  `class_weights`, `weighted_sum`;
- penalty: `l1`, `l2`, `penalty`, `has_free_bias`;
- the loss: `terms_at`, `curve`, `mean_curvatures`, `curvature`, `slope_range`, `is_positive`, `is_quadratic`,
  `flattens`, `separable_loss`, `losses_and_norms`, `gradient`, `hessian`.
"""

from avare.linear.certificates import Gap as Gap
from avare.linear.certificates import gap_at as gap_at
from avare.linear.existence import why_improper as why_improper
from avare.linear.intercept import constant_model as constant_model
from avare.linear.minimum import minimize as minimize
from avare.linear.solver import Minimum as Minimum
from avare.linear.solver import solve as solve

__all__ = ["Gap", "Minimum", "gap_at", "solve"]
