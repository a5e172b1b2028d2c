"""How each kind of layer computes gradients per example: one family of layers per file.

`register` adds a rule for a layer, also from outside this package: see `avare.torch.layers.registry`.
"""

from avare.torch.layers import convolution, embedding, linear, normalization  # noqa: F401  # they register their rules
from avare.torch.layers.parts import Dense, OneHot, Outer
from avare.torch.layers.registry import Parts, refuse, register

__all__ = ["Dense", "OneHot", "Outer", "Parts", "refuse", "register"]
