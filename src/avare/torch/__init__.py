"""Adaptive importance sampling for PyTorch: a DataLoader whose batches come with weights."""

from avare.torch.batch_sampler import AvareBatchSampler as AvareBatchSampler
from avare.torch.indexed import Indexed as Indexed
from avare.torch.indexed import IndexedCollate as IndexedCollate
from avare.torch.loader import ImportanceLoader as ImportanceLoader
