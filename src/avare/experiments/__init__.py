"""The paper's experiments, comparisons on data of one's own, and where their results are kept."""

from avare.experiments.checking import check as check
from avare.experiments.checking import published as published
from avare.experiments.comparison import compare as compare
from avare.experiments.comparison import summary as summary
from avare.experiments.data import Data as Data
from avare.experiments.data import obtain as obtain
from avare.experiments.diagnosis import Diagnosis as Diagnosis
from avare.experiments.diagnosis import diagnose as diagnose
from avare.experiments.nets import Plan as Plan
from avare.experiments.nets import read_plan as read_plan
from avare.experiments.nets import run_nets as run_nets
from avare.experiments.reproduction import Extent as Extent
from avare.experiments.reproduction import reproduce as reproduce
from avare.experiments.store import Store as Store
from avare.experiments.store import StoreError as StoreError
