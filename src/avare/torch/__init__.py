"""Adaptive importance sampling for PyTorch: a DataLoader whose batches come with weights."""

from avare._optional import require as _require

_require("torch", "avare.torch", "torch")  # which says what to install

# isort: split
from avare._exports import public_names as _public_names
from avare.torch.diagnose import NormReport as NormReport
from avare.torch.diagnose import diagnose as diagnose
from avare.torch.frameworks.importance import Importance as Importance
from avare.torch.loading.loader import ImportanceLoader as ImportanceLoader
from avare.torch.loading.loader import weighted_mean as weighted_mean
from avare.torch.loading.weighted_sampler import WeightedSampler as WeightedSampler
from avare.torch.log_posterior import log_posterior as log_posterior
from avare.torch.norms import layers as layers
from avare.torch.norms.gradient_norms import GradientNorms as GradientNorms
from avare.torch.norms.outputs import from_output_grad as from_output_grad
from avare.torch.norms.outputs import last_layer_norms as last_layer_norms
from avare.torch.norms.outputs import output_norms as output_norms

__all__ = [*_public_names(globals()), "layers"]
