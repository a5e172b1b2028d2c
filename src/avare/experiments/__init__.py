"""The paper's experiments, comparisons on data of one's own, and where their results are kept."""

from avare.experiments.store import Claim as Claim
from avare.experiments.store import Store as Store
from avare.experiments.store import StoreError as StoreError
