"""How the gradient of each kind of layer is made up of its input and the gradient of its output.

One family of layers a file. A rule takes the module, its input and the gradient of its output,
both with the batch first, and gives for each of its trained parameters a `Part`.
"""

from avare.torch.layers.parts import OneHot as OneHot
from avare.torch.layers.parts import Outer as Outer
from avare.torch.layers.parts import Part as Part
from avare.torch.layers.parts import Rows as Rows
from avare.torch.layers.recomputed import Recomputed as Recomputed
from avare.torch.layers.registry import Rule as Rule
from avare.torch.layers.registry import refusal as refusal
from avare.torch.layers.registry import rule_of as rule_of
