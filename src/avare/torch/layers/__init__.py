"""How each kind of layer computes gradients per example.

`register` adds a rule for a layer, also from outside this package: see `avare.torch.layers.registry`.
"""

from avare.torch.layers import rules  # noqa: F401  # which registers them
from avare.torch.layers.parts import Dense, OneHot, Outer
from avare.torch.layers.registry import Parts, refuse, register

__all__ = ["Dense", "OneHot", "Outer", "Parts", "refuse", "register"]
