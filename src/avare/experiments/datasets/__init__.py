"""Data to train on: named datasets, checked and cached, and your own files."""

from avare.experiments.datasets.catalogue import fetch, load, names, where
from avare.experiments.datasets.dataset import Dataset, DatasetError
from avare.experiments.datasets.reading import read

__all__ = ["Dataset", "DatasetError", "fetch", "load", "names", "read", "where"]
