"""What draws indices: compiled structures with one contract, which know nothing of optimisation."""

from avare._exports import public_names as _public_names
from avare.structures.base import Solution as Solution
from avare.structures.base import Structure as Structure
from avare.structures.buckets import Buckets as Buckets
from avare.structures.calibrated_cells import CalibratedCells as CalibratedCells
from avare.structures.calibrated_cells import Calibration as Calibration
from avare.structures.weight_tree import WeightTree as WeightTree

__all__ = _public_names(globals())
