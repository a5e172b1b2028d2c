"""Read images: MNIST's idx files and CIFAR10's binary files.

Pixels are divided by 255 in blocks, so that memory holds little besides the result.
"""

import math
from collections.abc import Sequence
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from avare.datasets.dataset import DatasetError
from avare.datasets.files import exactly, opened, size

Images = tuple[NDArray[np.float32], NDArray[np.int64]]

_CIFAR_PIXELS = 3 * 32 * 32
_CLASSES = 10
_MOST_PIXELS = 2**40  # more than any machine's memory
_ROWS = 512  # read at once


def read_idx(paths: Sequence[Path]) -> Images:
    """Read flattened images and their labels from MNIST's two files."""
    images, labels = paths
    with opened(labels) as stream:
        (n,) = _idx_shape(labels, stream, 1)
        y = np.frombuffer(exactly(labels, stream, n), dtype=np.uint8).astype(np.int64)
        _end(labels, stream)
    with opened(images) as stream:
        count, height, width = _idx_shape(images, stream, 3)
        if count != n:
            raise DatasetError(f"{images} has {count} images: must match {labels}, which has {n} labels")
        X = np.empty((n, height * width), dtype=np.float32)
        for start in range(0, n, _ROWS):
            part = X[start : start + _ROWS]
            pixels = np.frombuffer(exactly(images, stream, part.size), dtype=np.uint8)
            np.divide(pixels.reshape(part.shape), 255, out=part, dtype=np.float32)
        _end(images, stream)
    _check_labels(labels, y)
    return X, y


def read_cifar(paths: Sequence[Path]) -> Images:
    """Read images (1,024 red, 1,024 green, 1,024 blue pixels) and their labels from CIFAR10's files."""
    counts = []
    for path in paths:
        rows, odd = divmod(size(path), 1 + _CIFAR_PIXELS)
        if odd or not rows:
            raise DatasetError(
                f"{path} has {size(path)} bytes: must be a multiple of {1 + _CIFAR_PIXELS}, and not empty"
            )
        counts.append(rows)
    X = np.empty((sum(counts), _CIFAR_PIXELS), dtype=np.float32)
    y = np.empty(sum(counts), dtype=np.int64)
    start = 0
    for path, rows in zip(paths, counts, strict=True):
        with opened(path) as stream:
            for first in range(start, start + rows, _ROWS):
                part = slice(first, min(first + _ROWS, start + rows))
                data = exactly(path, stream, (part.stop - part.start) * (1 + _CIFAR_PIXELS))
                block = np.frombuffer(data, dtype=np.uint8).reshape(-1, 1 + _CIFAR_PIXELS)
                y[part] = block[:, 0]
                np.divide(block[:, 1:], 255, out=X[part], dtype=np.float32)
        _check_labels(path, y[start : start + rows])
        start += rows
    return X, y


def _idx_shape(path: Path, stream: BufferedIOBase, dimensions: int) -> tuple[int, ...]:
    """Read the shape from the header: two zeros, 8 for bytes, the number of dimensions, then each in 4 bytes."""
    magic = exactly(path, stream, 4)
    if magic != bytes([0, 0, 8, dimensions]):
        raise DatasetError(f"{path} starts with {magic.hex()}: an idx file of this kind has 0000080{dimensions}")
    shape = np.frombuffer(exactly(path, stream, 4 * dimensions), dtype=">u4")
    if not shape.all():
        raise DatasetError(f"{path} is empty: its shape is {tuple(shape.tolist())}")
    if math.prod(shape.tolist()) > _MOST_PIXELS:
        raise DatasetError(f"{path} is damaged: its header says that its shape is {tuple(shape.tolist())}")
    return tuple(shape.tolist())


def _end(path: Path, stream: BufferedIOBase) -> None:
    if stream.read(1):
        raise DatasetError(f"{path} has more bytes than its header says")


def _check_labels(path: Path, y: NDArray[np.int64]) -> None:
    wrong = np.flatnonzero(y >= _CLASSES)
    if len(wrong):
        raise DatasetError(f"{path}, row {wrong[0]}: label = {y[wrong[0]]}, must be below {_CLASSES}")
