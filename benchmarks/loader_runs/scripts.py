"""The training scripts that are compared: data, augmentation and net of each, as a new user has them. Needs PyTorch."""

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from avare.experiments import datasets
from avare.experiments.data import Data, Place
from avare.experiments.datasets import DatasetError
from nets.training import build

TEXT = "tinyshakespeare.txt"
_CONTEXT = 32  # characters that the language model reads
_STRIDE = 32  # between the starts of two examples; augmentation moves a start by less than this
_RARE, _RARE_PART = 9, 0.01  # the digit that is the rare class, and its part of the examples
_MISLABELLED = 0.2  # the part of the labels that is random
_ROWS = 0  # the seed of the choice of rows


@dataclass(frozen=True)
class Script:
    """A training script: its data, net, augmentation and length. All use AdamW, batches of 64 and one cycle."""

    title: str
    dataset: str
    sizes: tuple[int, int, int]  # examples for training, validation and test
    epochs: int
    searched: int  # epochs of the search for a learning rate
    augment: Callable[[Tensor], Tensor]
    net: Callable[[], nn.Module]
    select: Callable[["Script", Place], tuple[NDArray[Any], NDArray[np.int64]]]
    cost_ratio: float  # of training to scoring an example; measured once, so that runs with score= can be repeated
    judged: str = "error"  # "f1" if a class is rare
    scores_in_eval: bool = False  # for score= and a net with BatchNorm, as the guide says

    def load(self, folder: Place) -> Data:
        """Return the rows for training, validation and test, in this order."""
        X, y = self.select(self, folder)
        return Data(self.dataset, X, y)


class Augmented(Dataset[Any]):
    """Pairs of inputs and targets in memory; each time an example is read, it is augmented."""

    def __init__(self, inputs: Tensor, targets: Tensor, augment: Callable[[Tensor], Tensor]) -> None:
        self.inputs, self.targets, self.augment = inputs, targets, augment

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the items of a batch, which are augmented at once."""
        places = torch.as_tensor(indices)
        inputs = self.augment(self.inputs.index_select(0, places))
        return list(zip(inputs.unbind(), self.targets.index_select(0, places).unbind(), strict=True))


# --- augmentation ---------------------------------------------------------------------------


def shifted(images: Tensor, most: int) -> Tensor:
    """Move each image by up to ``most`` pixels in both directions; the border is 0."""
    count, _, height, width = images.shape
    padded = F.pad(images, (most, most, most, most))
    down, right = (torch.randint(0, 2 * most + 1, (count, 1)) for _ in range(2))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    each = torch.arange(count)
    return padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def shifted_and_flipped(images: Tensor) -> Tensor:
    """Move each image by up to 4 pixels, and mirror half of the images."""
    mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    moved = shifted(images, 4)
    return torch.where(mirrored, moved.flip(-1), moved)


def noisy(rows: Tensor) -> Tensor:
    """Add noise of a twentieth of a feature's scale."""
    return rows + 0.05 * torch.randn_like(rows)


def windows(texts: Tensor) -> Tensor:
    """Begin each text at a random place."""
    starts = torch.randint(0, texts.shape[1] - _CONTEXT, (len(texts), 1))
    return texts.gather(1, starts + torch.arange(_CONTEXT + 1))


# --- nets -----------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a way around them."""

    def __init__(self, channels: int, more: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, more, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(more),
            nn.ReLU(),
            nn.Conv2d(more, more, 3, padding=1, bias=False),
            nn.BatchNorm2d(more),
        )
        self.skip = nn.Conv2d(channels, more, 1, stride=stride, bias=False) if more != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def small_resnet() -> nn.Module:
    """Return a ResNet of two blocks for images of 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        Residual(12, 12, 1),
        Residual(12, 24, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def small_cnn() -> nn.Module:
    """Return a CNN with three convolutions and GroupNorm for images of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for channels, more in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, more, 3, stride=2, padding=1), nn.GroupNorm(4, more), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


class SmallTransformer(nn.Module):
    """A causal language model of characters, with one block. It reads a text and predicts each next character."""

    def __init__(self, characters: int = 128, width: int = 48, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.letters, self.places = nn.Embedding(characters, width), nn.Embedding(_CONTEXT, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.end, self.out = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, texts: Tensor) -> Tensor:
        read = texts[:, :_CONTEXT]
        x = self.letters(read) + self.places(torch.arange(_CONTEXT).expand_as(read))
        parts = self.mix(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(attended.transpose(1, 2).flatten(2))
        return self.out(self.end(x + self.think(self.after(x))))


# --- data -----------------------------------------------------------------------------------


def select_images(script: Script, folder: Place) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the first images of a dataset, scaled to mean 0 and standard deviation 1."""
    train, test = (datasets.load(script.dataset, split=split, folder=folder) for split in ("train", "test"))
    known, tested = sum(script.sizes[:2]), script.sizes[2]
    X = np.concatenate([train.X[:known], test.X[:tested]]).astype(np.float32)
    y = np.concatenate([train.y[:known], test.y[:tested]]).astype(np.int64)
    side = math.isqrt(X.shape[1] // (3 if X.shape[1] % 3 == 0 else 1))
    X = X.reshape(len(X), -1, side, side)
    return (X - np.float32(X.mean(dtype=np.float64))) / np.float32(X.std(dtype=np.float64)), y


def select_rare(script: Script, folder: Place) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return images of digits, of which one in a hundred is the digit to find."""
    train, test = (datasets.load(script.dataset, split=split, folder=folder) for split in ("train", "test"))
    X, y = np.concatenate([train.X, test.X]), np.concatenate([train.y, test.y]) == _RARE
    generator = np.random.default_rng(_ROWS)
    found, others = (generator.permutation(np.flatnonzero(y == kind)) for kind in (True, False))
    rows: list[NDArray[np.int64]] = []
    for size in script.sizes:
        rare = round(_RARE_PART * size)
        rows += [generator.permutation(np.concatenate([found[:rare], others[: size - rare]]))]
        found, others = found[rare:], others[size - rare :]
    chosen = np.concatenate(rows)
    images = X[chosen].astype(np.float32).reshape(-1, 1, 28, 28)
    return images, y[chosen].astype(np.int64)


def select_mislabelled(script: Script, folder: Place) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return images of which some of the training examples have a random label."""
    X, y = select_images(script, folder)
    generator = np.random.default_rng(_ROWS)
    chosen = np.flatnonzero(generator.random(script.sizes[0]) < _MISLABELLED)
    y[chosen] = generator.integers(0, 10, len(chosen))
    return X, y


def select_rows(script: Script, folder: Place) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return random rows of IJCNN1, which is a record in time."""
    train, test = (datasets.load(script.dataset, split=split, folder=folder) for split in ("train", "test"))
    generator = np.random.default_rng(_ROWS)
    known = generator.permutation(len(train))[: sum(script.sizes[:2])]
    tested = generator.permutation(len(test))[: script.sizes[2]]
    X = np.concatenate([train.X[known], test.X[tested]]).astype(np.float32)
    return X, (np.concatenate([train.y[known], test.y[tested]]) > 0).astype(np.int64)


def select_text(script: Script, folder: Place) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return pieces of a text: from its beginning for training and validation, from its end for the test."""
    text = np.frombuffer(_text_file(folder).read_bytes(), dtype=np.uint8).astype(np.int64)
    length = _STRIDE + _CONTEXT
    known, tested = sum(script.sizes[:2]), script.sizes[2]
    starts = _STRIDE * np.arange(known + tested)
    starts[known:] += len(text) - starts[-1] - length
    if starts[known] < starts[known - 1] + length:
        raise DatasetError(f"{script.dataset}: {len(text)} characters are too few")
    return text[starts[:, None] + np.arange(length)], np.zeros(known + tested, dtype=np.int64)


def _text_file(folder: Place) -> Path:
    place = folder or os.environ.get("AVARE_DATA")
    for path in (Path(place) / TEXT, Path(place) / "text" / TEXT) if place else ():
        if path.exists():
            return path
    raise DatasetError(f"{TEXT}: not found; put it into a folder, and pass that by --data or AVARE_DATA")


SCRIPTS: Mapping[str, Script] = {
    "resnet": Script(
        "ResNet on MNIST",
        "mnist",
        (8000, 4000, 10000),
        8,
        5,
        functools.partial(shifted, most=2),
        small_resnet,
        select_images,
        cost_ratio=4.25,
        scores_in_eval=True,
    ),
    "cnn": Script(
        "CNN on CIFAR10",
        "cifar10",
        (10000, 4000, 10000),
        8,
        5,
        shifted_and_flipped,
        small_cnn,
        select_images,
        cost_ratio=3.0,
    ),
    "mlp": Script(
        "MLP on IJCNN1",
        "ijcnn1",
        (16000, 10000, 20000),
        12,
        8,
        noisy,
        functools.partial(build, {"kind": "mlp", "hidden": [64, 64]}, (22,), 2),
        select_rows,
        cost_ratio=2.1,
    ),
    "transformer": Script(
        "Transformer on Shakespeare",
        "shakespeare",
        (8000, 2000, 4000),
        5,
        4,
        windows,
        SmallTransformer,
        select_text,
        cost_ratio=2.6,
    ),
    "rare": Script(
        "CNN on MNIST, 1 % positives",
        "mnist",
        (8000, 10000, 20000),
        16,
        6,
        functools.partial(shifted, most=2),
        functools.partial(build, {"kind": "cnn", "channels": [8, 16]}, (1, 28, 28), 2),
        select_rare,
        cost_ratio=3.5,
        judged="f1",
    ),
    "noisy": Script(
        "CNN on MNIST, 20 % random labels",
        "mnist",
        (8000, 4000, 10000),
        8,
        6,
        functools.partial(shifted, most=2),
        functools.partial(build, {"kind": "cnn", "channels": [8, 16]}, (1, 28, 28), 10),
        select_mislabelled,
        cost_ratio=3.5,
    ),
}
"""The scripts, by name."""
