"""The named datasets, from files in a folder; the real files if AVARE_DATA has them."""

import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avare.experiments.datasets import DatasetError, catalogue, fetch, load, names, where
from tiny_datasets import COMPRESS, IJCNN1, cifar10, enter, idx, mnist, write

pytestmark = pytest.mark.usefixtures("cache")
DATA = os.environ.get("AVARE_DATA")

endings = pytest.mark.parametrize("ending", COMPRESS)


def compressed(files: dict[str, bytes], ending: str) -> dict[str, bytes]:
    return {name + ending: COMPRESS[ending](content) for name, content in files.items()}


@endings
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, subfolder: str) -> None:
    files, images, labels = mnist()
    enter(monkeypatch, "mnist", files)
    write(tmp_path / "data" / subfolder, compressed(files, ending))
    data = load("mnist", folder=tmp_path / "data")
    assert data.X.dtype == np.float32 and data.X.flags.c_contiguous and data.y.dtype == np.int64
    assert np.array_equal(data.X, images.reshape(7, 12).astype(np.float32) / np.float32(255))
    assert np.array_equal(data.y, labels)
    assert (data.name, len(data), data.X.max() <= 1.0) == ("mnist", 7, True)
    assert "train" in data.description and data.source.startswith("https://")
    assert len(load("mnist", split="test", folder=str(tmp_path / "data"))) == 2
    monkeypatch.setenv("AVARE_DATA", str(tmp_path / "data"))
    assert np.array_equal(load("mnist").X, data.X)
    assert repr(data).startswith("Data(name='mnist', X=(7, 12) ndarray of float32, y=int64")


@endings
@pytest.mark.parametrize("subfolder", ["", "ijcnn1"])
def test_ijcnn1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, subfolder: str) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1)
    write(tmp_path / "data" / subfolder, compressed(IJCNN1, ending))
    data = load("ijcnn1", folder=tmp_path / "data")
    expected = np.zeros((2, 22))
    expected[0, 0], expected[0, 21], expected[1, 2] = 0.5, -2.0, 0.001
    assert data.X.dtype == np.float64 and np.array_equal(data.X, expected)
    assert data.y.dtype == np.int64 and data.y.tolist() == [-1, 1]
    test = load("ijcnn1", split="test", folder=tmp_path / "data")
    assert test.X.shape == (3, 22) and test.y.tolist() == [1, -1, 1]


@endings
@pytest.mark.parametrize("subfolder", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10"])
def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, subfolder: str) -> None:
    files, rows = cifar10()
    enter(monkeypatch, "cifar10", files)
    write(tmp_path / "data" / subfolder, compressed(files, ending))
    data = load("cifar10", folder=tmp_path / "data")
    assert data.X.dtype == np.float32 and data.X.flags.c_contiguous and data.y.dtype == np.int64
    assert np.array_equal(data.X, rows[:15, 1:].astype(np.float32) / np.float32(255))
    assert np.array_equal(data.y, rows[:15, 0])
    test = load("cifar10", split="test", folder=tmp_path / "data")
    assert np.array_equal(test.y, rows[15:, 0]) and test.X.shape == (3, 3072)


def test_digits() -> None:
    data = load("digits")
    assert data.X.shape == (1797, 64) and data.X.max() == 16.0
    assert data.y.dtype == np.int64 and set(data.y.tolist()) == set(range(10))


@pytest.mark.parametrize("seed", [0, 5])
def test_synthetic_is_generated_as_in_the_paper(seed: int) -> None:
    data = load("synthetic", seed=seed)
    assert data.X.shape == (100, 10) and data.y.dtype == np.int64 and set(data.y.tolist()) == {-1, 1}
    # A row is a normal direction u over |u|^2, times a log-normal(0, 1), drawn in this order.
    generator = np.random.default_rng(seed)
    directions, lengths = generator.normal(size=(100, 10)), generator.lognormal(0.0, 1.0, 100)
    assert np.allclose(np.linalg.norm(data.X, axis=1), lengths / np.linalg.norm(directions, axis=1))
    assert data.source == f"seed {seed}"


def test_synthetic_has_its_own_seed() -> None:
    assert np.array_equal(load("synthetic").X, load("synthetic", seed=0).X)
    assert not np.array_equal(load("synthetic").X, load("synthetic", seed=1).X)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("mnits", {}, ValueError, "name = 'mnits': must be one of cifar10, digits, ijcnn1, mnist, synthetic"),
        ("mnist", {"split": "val"}, ValueError, "split = 'val': must be one of train, test"),
        ("digits", {"split": "test"}, ValueError, "split = 'test': must be one of train"),
        ("digits", {"seed": 1}, ValueError, "seed = 1: only 'synthetic' is generated"),
        ("mnist", {"seed": 1}, ValueError, "seed = 1: only 'synthetic' is generated"),
        ("synthetic", {"seed": -1}, ValueError, "seed = -1: must be at least 0"),
        ("synthetic", {"seed": 0.5}, TypeError, "seed = 0.5: must be an integer"),
        ("mnist", {"verify": "no"}, TypeError, "verify = 'no': must be True or False"),
        ("mnist", {"progress": 1}, TypeError, "progress = 1: must be True or False"),
        ("mnist", {"folder": "not/there"}, DatasetError, r"folder \(--data\) = 'not/there': there is no such folder"),
    ],
)
def test_refuses_bad_arguments(name: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(name, **arguments)


def test_the_variable_must_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVARE_DATA", "not/there")
    with pytest.raises(DatasetError, match="AVARE_DATA = 'not/there': there is no such folder"):
        load("ijcnn1")


def test_the_folder_precedes_the_variable_and_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1)
    paths = [write(folder, IJCNN1) for folder in (tmp_path / "given", tmp_path / "set", cache / "ijcnn1")]
    monkeypatch.setenv("AVARE_DATA", str(paths[1]))
    assert where("ijcnn1", folder=paths[0]) == {name: paths[0] / name for name in IJCNN1}
    assert where("ijcnn1") == fetch("ijcnn1") == {name: paths[1] / name for name in IJCNN1}
    monkeypatch.setenv("AVARE_DATA", "")
    assert where("ijcnn1") == fetch("ijcnn1") == {name: paths[2] / name for name in IJCNN1}
    (paths[0] / "ijcnn1.t").unlink()
    assert where("ijcnn1", folder=paths[0]) == {"ijcnn1": paths[0] / "ijcnn1", "ijcnn1.t": paths[2] / "ijcnn1.t"}
    (paths[2] / "ijcnn1.t").unlink()
    assert where("ijcnn1", folder=paths[0])["ijcnn1.t"] is None
    assert where("digits") == fetch("synthetic") == {}


def test_a_folder_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1)
    write(tmp_path, IJCNN1)
    for module in ("pooch", "pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, module, None)
    assert len(load("ijcnn1", folder=tmp_path)) == 2
    with pytest.raises(ImportError, match=r"downloading and caching datasets needs pooch: pip install 'avare\[experi"):
        load("mnist", folder=tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="the digits dataset needs scikit-learn: pip install"):
        load("digits")


@endings
def test_a_wrong_checksum_names_file_expected_and_found(tmp_path: Path, ending: str) -> None:
    write(tmp_path, compressed(IJCNN1, ending))
    with pytest.raises(DatasetError) as caught:
        load("ijcnn1", folder=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'ijcnn1'}{ending} has the SHA256 checksum ")
    assert "expected 16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f" in message
    assert message.endswith("; remove it to download the official one (in Python, verify=False reads it)")
    assert load("ijcnn1", folder=tmp_path, verify=False).X.shape == (2, 22)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, b"", f"{IMAGES} starts with : an idx file of this kind has 00000803"),
        (IMAGES, b"\0\0\x08\x03" + 12 * b"\xff", rf"{IMAGES} has 0 bytes of values: its header says \(4294"),
        (IMAGES, b"\0\0\x08\x01" + bytes(8), f"{IMAGES} starts with 00000801: an idx file of this kind has 00000803"),
        (IMAGES, idx(np.zeros((7, 4, 3), dtype=np.uint8))[:-5], rf"{IMAGES} has 79 bytes of values: .*\(7, 4, 3\)"),
        (IMAGES, idx(np.zeros((7, 4, 3), dtype=np.uint8)) + b"x", rf"{IMAGES} has 85 bytes of values: .*\(7, 4, 3\)"),
        (
            IMAGES,
            idx(np.zeros((6, 4, 3), dtype=np.uint8)),
            f"{IMAGES} has 6 images: must match .*{LABELS}, which has 7",
        ),
        (IMAGES, idx(np.zeros((7, 0, 3), dtype=np.uint8)), rf"{IMAGES} has 0 bytes of values: .*\(7, 0, 3\)"),
        (LABELS, idx(np.zeros(7, dtype=np.uint8)) + b"x", rf"{LABELS} has 8 bytes of values: .*\(7,\)"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write(tmp_path, {**mnist()[0], name: content})
    with pytest.raises(DatasetError, match=message):
        load("mnist", folder=tmp_path, verify=False)


@endings
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes: must be a multiple of 3073, and not empty"),
        (bytes(3074), "has 3074 bytes: must be a multiple of 3073"),
    ],
)
def test_damaged_cifar_files(tmp_path: Path, ending: str, content: bytes, message: str) -> None:
    write(tmp_path, compressed({**cifar10()[0], "data_batch_4.bin": content}, ending))
    with pytest.raises(DatasetError, match=rf"data_batch_4\.bin{ending}.*{message}"):
        load("cifar10", folder=tmp_path, verify=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1 23:1\n", "ijcnn1, line 1: '23:1' must be index:value, .* index from 1 to 22"),
        (b"1 2:1\n0.5 2:1\n", "ijcnn1, line 2: label = 0.5, must be -1 or 1"),
        (b"1 2:1\n2 2:1\n", "ijcnn1, line 2: label = 2.0, must be -1 or 1"),
    ],
)
def test_other_data_must_fit_ijcnn1(tmp_path: Path, text: bytes, message: str) -> None:
    write(tmp_path, {"ijcnn1": text})
    with pytest.raises(DatasetError, match=message):
        load("ijcnn1", folder=tmp_path, verify=False)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_images_are_loaded_with_half_their_memory_besides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "mnist":
        files = mnist()[0]
        files[IMAGES] = idx(np.full((20_000, 28, 28), 7, dtype=np.uint8))
        files[LABELS] = idx(np.zeros(20_000, dtype=np.uint8))
    else:
        files = cifar10(n=500)[0]
    enter(monkeypatch, name, files)
    write(tmp_path, compressed(files, ".gz"))
    del files
    tracemalloc.start()
    data = load(name, folder=tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The file as bytes, a quarter of X in float32, of CIFAR10 twice; labels, buffers and imports: 8 MB at most.
    assert peak < 1.5 * data.X.nbytes + data.y.nbytes + 8e6
    assert data.X.nbytes > 30e6


def test_names() -> None:
    assert names() == sorted(catalogue.ENTRIES)


SHAPES = {
    ("mnist", "train"): (60_000, 784),
    ("mnist", "test"): (10_000, 784),
    ("ijcnn1", "train"): (49_990, 22),
    ("ijcnn1", "test"): (91_701, 22),
    ("cifar10", "train"): (50_000, 3072),
    ("cifar10", "test"): (10_000, 3072),
}


@pytest.mark.parametrize(("name", "split"), SHAPES)
def test_the_real_files(name: str, split: Any) -> None:
    if not DATA:
        pytest.skip("AVARE_DATA is not set")
    if None in where(name, folder=DATA).values():
        pytest.skip(f"AVARE_DATA = {DATA} has not all files of {name}")
    data = load(name, split=split, folder=DATA)
    assert data.X.shape == SHAPES[name, split] and data.X.flags.c_contiguous and data.y.dtype == np.int64
    counts = np.unique(data.y, return_counts=True)
    if name == "ijcnn1":
        assert data.X.dtype == np.float64 and counts[0].tolist() == [-1, 1]
        if split == "train":
            assert counts[1].tolist() == [45_137, 4_853]  # 9.708 % positive
            assert data.X[0, [5, 10, 21]].tolist() == [1.0, -0.731854, -0.00081]
    else:
        assert data.X.dtype == np.float32 and data.X.min() == 0.0 and data.X.max() == 1.0
        assert counts[0].tolist() == list(range(10))
        if name == "cifar10":
            assert set(counts[1].tolist()) == {len(data) // 10}
        elif split == "train":
            assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
            assert float(data.X.mean(dtype=np.float64)) == pytest.approx(0.1306604762738429, rel=1e-6)  # well known
