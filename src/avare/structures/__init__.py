"""What draws indices: compiled structures that know nothing of optimisation."""

from avare.structures.buckets import Buckets as Buckets
from avare.structures.order_tree import OrderTree as OrderTree
from avare.structures.solution import Solution as Solution
