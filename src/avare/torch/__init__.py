"""Adaptive importance sampling for PyTorch: a DataLoader whose batches come with weights."""

from avare._optional import require

require("torch", "avare.torch", "torch")  # which says what to install

# isort: split
from avare.torch import layers
from avare.torch.batch_sampler import AvareBatchSampler
from avare.torch.diagnose import NormReport, diagnose
from avare.torch.gradient_norms import GradientNorms
from avare.torch.loader import Importance, ImportanceLoader, weighted_mean
from avare.torch.log_posterior import log_posterior
from avare.torch.norms import from_output_grad, last_layer_norms, output_norms
from avare.torch.weighted_batches import Indexed, IndexedCollate
from avare.torch.weighted_sampler import WeightedSampler

__all__ = [
    "AvareBatchSampler",
    "GradientNorms",
    "Importance",
    "ImportanceLoader",
    "Indexed",
    "IndexedCollate",
    "NormReport",
    "WeightedSampler",
    "diagnose",
    "from_output_grad",
    "last_layer_norms",
    "layers",
    "log_posterior",
    "output_norms",
    "weighted_mean",
]
