"""Data to train on: named datasets, checked and cached, and your own files."""

from avare.experiments.datasets.catalogue import fetch, load, names, where
from avare.experiments.datasets.dataset import Data, DatasetError
from avare.experiments.datasets.reading import read

__all__ = ["Data", "DatasetError", "fetch", "load", "names", "read", "where"]
