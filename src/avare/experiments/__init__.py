"""Experiments: the paper's, comparisons on your own data, your own experiments, and the store of their results."""

# Experiments register themselves; this is the order in which reports show them.
from avare.experiments import paper as paper

# isort: split
from avare._exports import public_names as _public_names
from avare.experiments.base import Experiment as Experiment
from avare.experiments.base import Request as Request
from avare.experiments.base import Stage as Stage
from avare.experiments.base import Stages as Stages
from avare.experiments.base import Summary as Summary
from avare.experiments.base import Task as Task
from avare.experiments.base import register as register
from avare.experiments.comparison import compare as compare
from avare.experiments.comparison import summary as summary
from avare.experiments.data import Data as Data
from avare.experiments.data import obtain as obtain
from avare.experiments.diagnosis import diagnose as diagnose
from avare.experiments.document import Column as Column
from avare.experiments.document import Figure as Figure
from avare.experiments.document import Panel as Panel
from avare.experiments.document import Section as Section
from avare.experiments.document import Table as Table
from avare.experiments.store import Result as Result
from avare.experiments.store import Store as Store
from avare.experiments.store import together as together

__all__ = _public_names(globals())
