"""Data to train on: named datasets, checked and cached, and your own files."""

from avare.datasets.catalogue import fetch as fetch
from avare.datasets.catalogue import load as load
from avare.datasets.catalogue import names as names
from avare.datasets.catalogue import where as where
from avare.datasets.dataset import Dataset as Dataset
from avare.datasets.dataset import DatasetError as DatasetError
from avare.datasets.reading import read as read

__all__ = [
    "Dataset",
    "DatasetError",
    "fetch",
    "load",
    "names",
    "read",
    "where",
]
