"""Experiments: the paper's, samplers on small nets, comparisons on your own data, and the store of their results."""

# Experiments register themselves; this is the order in which reports show them.
from avare.experiments.paper.checking import check as check
from avare.experiments.paper.checking import published as published
from avare.experiments.paper.plan import Extent as Extent
from avare.experiments.paper.plan import reproduce as reproduce

# isort: split
from avare.experiments.comparison import compare as compare

# isort: split
from avare.experiments.base import Closing as Closing
from avare.experiments.base import Experiment as Experiment
from avare.experiments.base import Request as Request
from avare.experiments.base import Stage as Stage
from avare.experiments.base import Stages as Stages
from avare.experiments.base import Summary as Summary
from avare.experiments.base import Task as Task
from avare.experiments.content import Column as Column
from avare.experiments.content import Figure as Figure
from avare.experiments.content import Panel as Panel
from avare.experiments.content import Section as Section
from avare.experiments.content import Table as Table
from avare.experiments.convergence import final_rows as final_rows
from avare.experiments.data import Data as Data
from avare.experiments.data import obtain as obtain
from avare.experiments.diagnosis import DataDiagnosis as DataDiagnosis
from avare.experiments.diagnosis import diagnose_data as diagnose_data
from avare.experiments.nets import Plan as Plan
from avare.experiments.nets import read_plan as read_plan
from avare.experiments.nets import run_nets as run_nets
from avare.experiments.records import Fields as Fields
from avare.experiments.records import RecordError as RecordError
from avare.experiments.records import Result as Result
from avare.experiments.records import together as together
from avare.experiments.registry import get as get
from avare.experiments.registry import names as names
from avare.experiments.registry import of_kind as of_kind
from avare.experiments.registry import register as register
from avare.experiments.sampling import SamplingExperiment as SamplingExperiment
from avare.experiments.store import Store as Store
from avare.experiments.store import StoreError as StoreError

Diagnosis = DataDiagnosis
diagnose = diagnose_data
summary = final_rows

__all__ = [
    "Closing",
    "Column",
    "Data",
    "DataDiagnosis",
    "Diagnosis",
    "Experiment",
    "Extent",
    "Fields",
    "Figure",
    "Panel",
    "Plan",
    "RecordError",
    "Request",
    "Result",
    "SamplingExperiment",
    "Section",
    "Stage",
    "Stages",
    "Store",
    "StoreError",
    "Summary",
    "Table",
    "Task",
    "check",
    "compare",
    "diagnose",
    "diagnose_data",
    "final_rows",
    "get",
    "names",
    "obtain",
    "of_kind",
    "published",
    "read_plan",
    "register",
    "reproduce",
    "run_nets",
    "summary",
    "together",
]
