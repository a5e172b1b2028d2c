"""Any contents of the files of the named datasets give rows of the right shape, or an error that names the file."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.experiments.datasets import Data, DatasetError, load
from tiny_datasets import COMPRESS, IJCNN1, cifar10, damaged, mnist, naming, write

SETS = {"mnist": mnist()[0], "cifar10": cifar10(n=1)[0], "ijcnn1": IJCNN1}
FILES = {  # of the training split
    "train-images-idx3-ubyte": "mnist",
    "train-labels-idx1-ubyte": "mnist",
    "data_batch_1.bin": "cifar10",
    "data_batch_5.bin": "cifar10",
    "ijcnn1": "ijcnn1",
}
some_endings = st.sampled_from(list(COMPRESS))
names = pytest.mark.parametrize("name", FILES)

lengths = st.integers(0, 9) | st.integers(0, 31).map(lambda power: 2**power) | st.integers(0, 2**32 - 1)
pixels = st.binary(min_size=1, max_size=9)
LIKE = {  # almost valid
    "mnist": st.builds(
        lambda shape, pattern, count: idx_header(shape) + (count * pattern)[:count],
        st.tuples(st.just(7) | lengths) | st.tuples(st.just(7) | lengths, lengths, lengths),  # 7, as in the other file
        pixels,
        st.just(7) | st.integers(0, 99),
    ),
    "cifar10": st.builds(
        lambda label, pattern, count: count * (bytes([label]) + (3072 * pattern)[:3072]),
        st.integers(0, 20),
        pixels,
        st.integers(0, 3),
    ),
    "ijcnn1": st.text("01-+.:# \n", max_size=20).map(str.encode),
}


def idx_header(shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def attempt(folder: Path, name: str, ending: str, content: bytes) -> bool:
    """Load the dataset with other contents of one file, or expect the one error, which names that file."""
    files = {**SETS[FILES[name]], name: content}
    write(folder, {each + (ending if each == name else ""): inside for each, inside in files.items()})
    found: Data | None = None
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
    assert found.y.min() >= 0
    return True


@names
@given(ending=some_endings, inside=st.booleans(), data=st.data())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, ending: str, inside: bool, data: st.DataObject
) -> None:
    content = data.draw(LIKE[FILES[name]] | st.binary(max_size=200))
    attempt(tmp_path_factory.mktemp("any"), name, ending, COMPRESS[ending](content) if inside else content)


@names
@given(
    ending=some_endings,
    inside=st.booleans(),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    end=st.floats(0.0, 1.0) | st.just(1.0),
)
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    ending: str,
    inside: bool,
    changes: list[tuple[float, int]],
    end: float,
) -> None:
    whole = SETS[FILES[name]][name]
    content = (
        COMPRESS[ending](damaged(whole, changes, end)) if inside else damaged(COMPRESS[ending](whole), changes, end)
    )
    attempt(tmp_path_factory.mktemp("damaged"), name, ending, content)


@pytest.mark.parametrize(("name", "header"), [("train-images-idx3-ubyte", 16), ("train-labels-idx1-ubyte", 8)])
def test_every_byte_of_a_header_counts(tmp_path: Path, name: str, header: int) -> None:
    whole = SETS["mnist"][name]
    for where in range(header):
        for value in {0, 1, 2, 3, 5, 6, 9, 127, 255} - {whole[where]}:
            assert not attempt(tmp_path, name, "", whole[:where] + bytes([value]) + whole[where + 1 :])


@pytest.mark.parametrize("ending", COMPRESS)
@names
def test_the_files_are_valid_before_they_are_damaged(tmp_path: Path, name: str, ending: str) -> None:
    assert attempt(tmp_path, name, ending, COMPRESS[ending](SETS[FILES[name]][name]))
