"""How each kind of layer computes gradients per example: one family of layers per file.

`register` adds a rule for a layer, also from outside this package: see `avare.torch.layers.registry`.
"""

from avare.torch.layers import convolution, embedding, linear, normalization  # noqa: F401  # they register their rules
from avare.torch.layers.parts import Dense as Dense
from avare.torch.layers.parts import OneHot as OneHot
from avare.torch.layers.parts import Outer as Outer
from avare.torch.layers.parts import Part as Part
from avare.torch.layers.registry import Parts as Parts
from avare.torch.layers.registry import Rule as Rule
from avare.torch.layers.registry import refuse as refuse
from avare.torch.layers.registry import register as register

__all__ = [
    "Dense",
    "OneHot",
    "Outer",
    "Part",
    "Parts",
    "Rule",
    "refuse",
    "register",
]
