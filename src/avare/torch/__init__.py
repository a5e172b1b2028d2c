"""Adaptive importance sampling for PyTorch: a DataLoader whose batches come with weights."""

from avare._optional import require

require("torch", "avare.torch", "torch")  # which says what to install

# isort: split
from avare.torch import layers as layers
from avare.torch.batch_sampler import AvareBatchSampler as AvareBatchSampler
from avare.torch.gradient_norms import GradientNorms as GradientNorms
from avare.torch.importance import Importance as Importance
from avare.torch.importance import weighted_mean as weighted_mean
from avare.torch.indexed import Indexed as Indexed
from avare.torch.indexed import IndexedCollate as IndexedCollate
from avare.torch.loader import ImportanceLoader as ImportanceLoader
from avare.torch.log_posterior import log_posterior as log_posterior
from avare.torch.norm_report import NormReport as NormReport
from avare.torch.norm_report import diagnose as diagnose
from avare.torch.norms import from_output_grad as from_output_grad
from avare.torch.norms import last_layer_norms as last_layer_norms
from avare.torch.norms import output_norms as output_norms
from avare.torch.upper_bound import UpperBoundLoader as UpperBoundLoader

Diagnosis = NormReport  # the former name

__all__ = [
    "AvareBatchSampler",
    "Diagnosis",
    "GradientNorms",
    "Importance",
    "ImportanceLoader",
    "Indexed",
    "IndexedCollate",
    "NormReport",
    "UpperBoundLoader",
    "diagnose",
    "from_output_grad",
    "last_layer_norms",
    "layers",
    "log_posterior",
    "output_norms",
    "weighted_mean",
]
