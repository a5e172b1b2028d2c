"""How each kind of layer computes gradients per example.

`register` adds a rule for a layer, also from outside this package: see `avare.torch.norms.layers.registry`.
"""

from avare.torch.norms.layers import rules  # noqa: F401  # which registers them
from avare.torch.norms.layers.parts import Dense, OneHot, Outer
from avare.torch.norms.layers.registry import Parts, refuse, register

__all__ = ["Dense", "OneHot", "Outer", "Parts", "refuse", "register"]
