"""The paper's experiments, comparisons on data of one's own, and where their results are kept."""

from avare.experiments.comparison import compare as compare
from avare.experiments.comparison import summary as summary
from avare.experiments.data import Data as Data
from avare.experiments.data import obtain as obtain
from avare.experiments.diagnosis import Diagnosis as Diagnosis
from avare.experiments.diagnosis import diagnose as diagnose
from avare.experiments.nets.plan import Plan as Plan
from avare.experiments.nets.plan import read_plan as read_plan
from avare.experiments.nets.plan import run_nets as run_nets
from avare.experiments.paper.checking import check as check
from avare.experiments.paper.checking import published as published
from avare.experiments.paper.plan import Extent as Extent
from avare.experiments.paper.plan import reproduce as reproduce
from avare.experiments.store import Store as Store
from avare.experiments.store import StoreError as StoreError
