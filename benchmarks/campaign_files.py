"""Trials of `campaign.py` on what comes from elsewhere: archives, records and names."""

import contextlib
import copy
import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pooch

import stored_runs
from avare.experiments import report
from avare.experiments.data import obtain
from avare.experiments.datasets import DatasetError, catalogue, fetch
from avare.experiments.document import printable
from avare.experiments.report import charts, writing
from avare.experiments.store import key_of
from tiny_datasets import cifar10, expecting

_FOLDER = "cifar-10-batches-bin"
_KINDS = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
_ODD: tuple[Any, ...] = (
    "",
    "a/b",
    "../../x",
    "caf\udce9",
    "\x1b[2J",
    "x" * 300,
    None,
    [],
    {},
    [1],
    True,
    0,
    -1,
    "0",
    1e308,
)
_ODD += (10**400, {"a": 1}, "\0", "$_$", "<b>")


def archives(generator: np.random.Generator) -> int:
    """A download writes its known files or nothing, whatever its members are."""
    files = cifar10()[0]
    with tempfile.TemporaryDirectory() as place:
        root, stream = Path(place), io.BytesIO()
        (root / "outside").mkdir()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            names = [f"{_FOLDER}/{name}" for name in files] + ["../escaped", f"{root}/outside/escaped", "link/escaped"]
            names += ["link", _FOLDER, f"{_FOLDER}/../escaped"]
            for name in generator.permutation(names).tolist():
                member = tarfile.TarInfo(name)
                content = files.get(Path(name).name, b"evil") if generator.random() < 0.98 else b"wrong"
                right = generator.random() < 0.98 and Path(name).name in files
                member.type = tarfile.REGTYPE if right else _KINDS[int(generator.integers(len(_KINDS)))]
                member.size = len(content) if member.isreg() else 0
                member.linkname = str(generator.choice([str(root / "outside"), "..", *names]))
                archive.addfile(member, io.BytesIO(content))
        sent = stream.getvalue() if generator.random() < 0.9 else gzip.compress(bytes(2**28))

        def download(self: Any, address: str, target: Any, *_: Any) -> None:
            for first in range(0, len(sent), 1024):
                target.write(sent[first : first + 1024])

        with (
            mock.patch.object(pooch, "os_cache", return_value=root / "cache"),
            mock.patch.object(pooch.HTTPDownloader, "__call__", download),
            mock.patch.dict(catalogue.ENTRIES, cifar10=expecting("cifar10", files)),
            mock.patch.dict(os.environ, AVARE_DATA=""),
            contextlib.suppress(DatasetError),
        ):
            fetch("cifar10")
        written = [path for path in root.rglob("*") if path.is_symlink() or not path.is_dir()]
        assert all(path.read_bytes() == files[path.name] for path in written), written
        assert {path.parent for path in written} <= {root / "cache" / _FOLDER}, written
    return len(names)


def records(generator: np.random.Generator) -> int:
    """A report shows all sound records, names the others, and writes in its folder only."""
    sound = [
        stored_runs.run("digits", name, seed, experiment="compare", epochs=2) for name in "AB" for seed in range(3)
    ]
    odd = []
    for seed in range(3, 3 + int(generator.integers(1, 5))):
        record: Any = copy.deepcopy(stored_runs.run("digits", "A", seed, experiment="compare", epochs=2))
        part = record
        while isinstance(part, dict) and part:
            key = str(generator.choice([key for key in part if key != "experiment"] or list(part)))
            if not isinstance(part[key], dict) or generator.random() < 0.1:
                part[key] = _ODD[int(generator.integers(len(_ODD)))]
                break
            part = part[key]
        odd += [record] if isinstance(record["spec"], dict) else []
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        store = stored_runs.put(root / "runs", [*sound, *odd])
        said: list[str] = []
        # Figures take seconds, and nearly always can be drawn.
        drawn = charts.render if generator.random() < 0.1 else lambda figure, styles: {"png": b"", "svg": b""}
        with mock.patch.object(charts, "render", drawn):
            report.write(store, root / "out", say=said.append)
        lost = {key_of(each["spec"]) for each in sound} & {line.split(".json")[0] for line in said}
        assert not lost, said
        assert {path.name for path in root.iterdir()} == {"runs", "out"}
        assert {path.name for path in (root / "out").iterdir()} == {"figures", "index.html", "numbers.json", "tables"}
    return len(odd)


def names(generator: np.random.Generator) -> int:
    """Any name is read, shown without signs that control terminals, and becomes a file in its folder."""
    for _ in range(200):
        text = "".join(map(chr, generator.integers(1, 0x11000, int(generator.integers(1, 30)))))
        shown, file = printable(text), writing.file_name(text)
        assert shown.encode() and "\x1b" not in shown and not set(file) & set("/\\\0.")
        assert len(file) < 100 and file.encode(errors="surrogateescape")
    with tempfile.TemporaryDirectory() as place:
        letters = generator.integers(1, 256, int(generator.integers(1, 60)), dtype=np.uint8).tobytes()
        path = os.path.join(os.fsencode(place), letters.replace(b"/", b"").replace(b".", b"") + b"x.npz")
        with open(path, "wb") as stream:
            np.savez(stream, X=np.eye(3), y=np.arange(3))
        obtain(os.fsdecode(path))[0].name.encode()
    return 201
