"""The files of the named sets, whatever is in them: rows of the right shape, or an error that names the file."""

import bz2
import contextlib
import gzip
import lzma
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from avare.datasets import Dataset, DatasetError, load
from tiny_datasets import IJCNN1, cifar10, idx, mnist, write

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
SETS = {"mnist": mnist()[0], "cifar10": cifar10(n=1)[0], "ijcnn1": IJCNN1}
FILES = {  # of the training part
    "train-images-idx3-ubyte": "mnist",
    "train-labels-idx1-ubyte": "mnist",
    "data_batch_1.bin": "cifar10",
    "data_batch_5.bin": "cifar10",
    "ijcnn1": "ijcnn1",
}
some_files = st.sampled_from(list(FILES))
some_endings = st.sampled_from(list(COMPRESS))
changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)

lengths = st.integers(0, 9) | st.integers(0, 2**32 - 1) | st.integers(0, 31).map(lambda power: 2**power)
idx_like = st.builds(
    lambda kind, shape, rest: bytes([0, 0, 8, kind]) + struct.pack(f">{len(shape)}I", *shape) + rest,
    st.sampled_from([1, 3]),
    st.lists(lengths, max_size=4) | st.tuples(st.just(7), lengths, lengths),  # 7 images, as there are labels
    st.binary(max_size=100),
)
cifar_like = st.builds(
    lambda label, pixels, count: (bytes([label]) + (3072 * pixels)[:3072]) * count,
    st.integers(0, 12),
    st.binary(min_size=1, max_size=9),
    st.integers(0, 3),
)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Lets pass only errors that name the file."""
    try:
        yield
    except DatasetError as error:
        if str(path) not in str(error):
            raise AssertionError(f"does not name {path}: {error}") from error
        raise


def attempt(folder: Path, name: str, ending: str, content: bytes) -> bool:
    """Loads the set with this in place of one of its files, or sees the one error, which names that file."""
    files = {**SETS[FILES[name]], name: content}
    write(folder, {each + (ending if each == name else ""): inside for each, inside in files.items()})
    found: Dataset | None = None
    with contextlib.suppress(DatasetError), naming(folder / f"{name}{ending}"):
        found = load(FILES[name], folder=folder, verify=False)
    if found is None:
        return False
    rows, columns = found.X.shape
    assert found.y.shape == (rows,) and rows >= 1 and found.y.dtype == np.int64
    if FILES[name] == "ijcnn1":
        assert columns == 22 and np.isfinite(found.X).all() and set(found.y.tolist()) <= {-1, 1}
        return True
    assert columns == 3072 if FILES[name] == "cifar10" else columns >= 1
    assert found.X.dtype == np.float32 and found.X.min() >= 0.0 and found.X.max() <= 1.0
    assert found.y.min() >= 0 and found.y.max() <= 9
    return True


@given(
    name=some_files, ending=some_endings, content=st.binary(max_size=200) | idx_like | cifar_like, inside=st.booleans()
)
@example(name="train-images-idx3-ubyte", ending="", content=idx(np.zeros((7, 1, 2), dtype=np.uint8)), inside=True)
@example(name="data_batch_5.bin", ending=".gz", content=bytes(2 * 3073), inside=True)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, ending: str, content: bytes, inside: bool
) -> None:
    attempt(tmp_path_factory.mktemp("any"), name, ending, COMPRESS[ending](content) if inside else content)


@given(
    name=some_files, ending=some_endings, changes=changes, end=st.floats(0.0, 1.0) | st.just(1.0), inside=st.booleans()
)
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    ending: str,
    changes: list[tuple[float, int]],
    end: float,
    inside: bool,
) -> None:
    def damaged(content: bytes) -> bytes:
        altered = bytearray(content)
        for where, value in changes:
            altered[int(where * len(altered))] = value
        return bytes(altered[: round(end * len(altered))])

    whole = SETS[FILES[name]][name]
    content = COMPRESS[ending](damaged(whole)) if inside else damaged(COMPRESS[ending](whole))
    attempt(tmp_path_factory.mktemp("damaged"), name, ending, content)


@given(
    name=st.sampled_from(["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]),
    ending=some_endings,
    where=st.integers(0, 15),
    value=st.integers(0, 255),
)
def test_damaged_headers_are_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, ending: str, where: int, value: int
) -> None:
    whole = SETS["mnist"][name]
    where %= 16 if "images" in name else 8
    altered = whole[:where] + bytes([value]) + whole[where + 1 :]
    read = attempt(tmp_path_factory.mktemp("header"), name, ending, COMPRESS[ending](altered))
    assert read == (altered == whole)


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", FILES)
def test_what_the_damage_is_done_to_is_sound(tmp_path: Path, name: str, ending: str) -> None:
    assert attempt(tmp_path, name, ending, COMPRESS[ending](SETS[FILES[name]][name]))
