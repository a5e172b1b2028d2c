"""Downloads from a local server: files that are complete and checked, or none."""

import bz2
import contextlib
import gzip
import hashlib
import re
import shutil
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from avare.experiments.datasets import DatasetError, fetch, load, where
from tiny_datasets import COMPRESS, IJCNN1, archive, cifar10, damaged, enter, mnist, write

pytestmark = pytest.mark.usefixtures("cache")


class Server:
    """Serve contents by path, and record the requests."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.cut: set[str] = set()  # paths whose download breaks off halfway
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                server.asked.append(self.path)
                if name not in server.contents:
                    self.send_error(404)
                    return
                content = server.contents[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # of a client that has had enough
                    self.wfile.write(content[: len(content) // 2] if name in server.cut else content)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = Server()
    yield running
    running.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def inside(folder: Path) -> list[str]:
    """All files and folders below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def zipped(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.bz2": bz2.compress(content) for name, content in files.items()}


def test_downloads_once_checks_and_keeps(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, images, _ = mnist()
    enter(monkeypatch, "mnist", files, (server.address,))
    server.contents = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    assert set(where("mnist").values()) == {None}
    train = load("mnist")
    assert np.array_equal(train.X, images.reshape(7, 12).astype(np.float32) / np.float32(255))
    assert len(server.asked) == 2  # not the test split
    paths = fetch("mnist")
    assert paths == where("mnist") == {name: cache / "mnist" / f"{name}.gz" for name in files}
    assert len(load("mnist", split="test")) == 2 and len(server.asked) == 4
    assert inside(cache) == ["mnist", *sorted(f"mnist/{name}.gz" for name in files)]


def test_an_archive_is_unpacked_and_not_kept(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rows = cifar10()
    enter(monkeypatch, "cifar10", files, (server.address,))
    server.contents = {"cifar-10-binary.tar.gz": archive(files)}
    assert set(fetch("cifar10")) == set(files)
    assert server.asked == ["/cifar-10-binary.tar.gz"]
    assert inside(cache) == ["cifar-10-batches-bin", *sorted(f"cifar-10-batches-bin/{name}" for name in files)]
    assert np.array_equal(load("cifar10").y, rows[:15, 0])
    assert len(server.asked) == 1


@pytest.mark.parametrize("place", ["../../escaped", "{outside}/escaped", "link/escaped"])
def test_an_archive_writes_its_known_files_only(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    files = cifar10()[0]
    enter(monkeypatch, "cifar10", files, (server.address,))
    folder, links = tmp_path / "outside", ["link", "cifar-10-batches-bin/data_batch_1.bin"]
    folder.mkdir()
    for right in (True, False):  # with all files that are expected, and with a link in place of one
        known = {name: content for name, content in files.items() if right or name != "data_batch_1.bin"}
        content = archive(known, others=[place.format(outside=folder)], links=dict.fromkeys(links[: 2 - right], folder))
        server.contents = {"cifar-10-binary.tar.gz": content}
        before = inside(tmp_path)
        if right:
            assert set(fetch("cifar10")) == set(files)
            shutil.rmtree(cache)
        else:
            with pytest.raises(DatasetError, match=r"data_batch_1\.bin"):
                fetch("cifar10")
        assert [name for name in inside(tmp_path) if not name.startswith("cache")] == before


@pytest.mark.parametrize("kind", ["a file", "an archive", "one that does not end"])
def test_a_download_is_not_unpacked_beyond_its_known_size(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    zeros = gzip.compress(bytes(2**26))
    enter(monkeypatch, "mnist", mnist()[0], (server.address,))
    enter(monkeypatch, "cifar10", cifar10()[0], (server.address,))
    packed = zeros if kind != "one that does not end" else np.random.default_rng(0).bytes(2**22)
    server.contents = dict.fromkeys(("train-images-idx3-ubyte.gz", "cifar-10-binary.tar.gz"), packed)
    message = "sends more than" if packed is not zeros else "unpacks to more than .* bytes, "
    tracemalloc.start()
    with pytest.raises(DatasetError, match=message):
        fetch("cifar10" if kind == "an archive" else "mnist")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    assert not [name for name in inside(cache) if "/" in name]


@pytest.mark.parametrize("fault", ["lacks a file", "holds another file", "is no archive"])
def test_an_archive_that_is_not_as_expected(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    files = cifar10()[0]
    enter(monkeypatch, "cifar10", files, (server.address,))
    wrong = {name: b"other" if name == "data_batch_3.bin" else content for name, content in files.items()}
    less = {name: content for name, content in files.items() if name != "data_batch_3.bin"}
    content, message = {
        "lacks a file": (archive(less), r"cifar-10-batches-bin/data_batch_3\.bin is not in the archive"),
        "holds another file": (archive(wrong), r"data_batch_3\.bin has the SHA256 checksum .* expected "),
        "is no archive": (b"<html>", "cannot be read: Not a gzipped file"),
    }[fault]
    server.contents = {"cifar-10-binary.tar.gz": content}
    with pytest.raises(DatasetError, match=message):
        load("cifar10")
    # The files before the fault are complete and checked, and stay.
    stayed = ["data_batch_1.bin", "data_batch_2.bin"] if fault != "is no archive" else []
    assert inside(cache) == ["cifar-10-batches-bin", *(f"cifar-10-batches-bin/{name}" for name in stayed)]


def test_wrong_contents_are_refused_and_not_kept(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped({**IJCNN1, "ijcnn1": b"1 1:1\n"})
    found = hashlib.sha256(b"1 1:1\n").hexdigest()
    expected = hashlib.sha256(IJCNN1["ijcnn1"]).hexdigest()
    with pytest.raises(DatasetError, match=rf"{server.address}ijcnn1\.bz2: .* checksum {found} .*expected {expected}"):
        load("ijcnn1", verify=False)  # that is for files in a folder
    assert inside(cache) == ["ijcnn1"]


def test_an_interrupted_download_leaves_nothing(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents, server.cut = zipped(IJCNN1), {"ijcnn1.t.bz2"}
    with pytest.raises(DatasetError, match=r"ijcnn1\.t not found in .*\n.*ijcnn1\.t\.bz2: .*IncompleteRead"):
        fetch("ijcnn1")
    assert inside(cache) == ["ijcnn1", "ijcnn1/ijcnn1.bz2"]
    server.cut.clear()
    assert len(load("ijcnn1", split="test")) == 3


def test_an_interrupted_program_leaves_nothing(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped(IJCNN1)
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load("ijcnn1")
    assert inside(cache) == ["ijcnn1"]


def test_the_next_mirror_is_tried(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = f"http://127.0.0.1:{free_port()}/"
    enter(monkeypatch, "ijcnn1", IJCNN1, (gone, f"{server.address}missing/", server.address))
    server.contents = zipped({"ijcnn1": IJCNN1["ijcnn1"]})
    assert len(load("ijcnn1")) == 2
    assert inside(cache) == ["ijcnn1", "ijcnn1/ijcnn1.bz2"]


def test_without_network_and_files_the_error_says_what_to_do(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address = f"http://127.0.0.1:{free_port()}/"
    enter(monkeypatch, "mnist", mnist()[0], (address, f"{address}mirror/"))
    given = write(tmp_path / "given", {})
    with pytest.raises(DatasetError) as caught:
        load("mnist", folder=given)
    message = str(caught.value)
    assert message.startswith(
        f"mnist: train-images-idx3-ubyte not found in {given} or {cache}, "
        f"and the download failed:\n"
        f"  {address}train-images-idx3-ubyte.gz: "
    )
    assert f"\n  {address}mirror/train-images-idx3-ubyte.gz: " in message and "refused" in message
    assert "compressed (.gz, .bz2, .xz) or not, in a folder or in its subfolder mnist" in message
    assert "by --data (in Python, folder=...) or by the environment variable AVARE_DATA" in message
    assert inside(cache) == ["mnist"]


def test_an_error_page_is_not_saved_as_a_file(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    with pytest.raises(DatasetError, match=r"ijcnn1\.bz2: 404"):
        load("ijcnn1")
    assert inside(cache) == ["ijcnn1"]


def test_a_cache_that_cannot_be_written_is_named(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped(IJCNN1)
    write(cache, {"ijcnn1": b"a file where a folder should be"})
    with pytest.raises(DatasetError, match="File exists"):
        load("ijcnn1", split="test")


def test_a_damaged_file_of_the_cache_is_named(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped(IJCNN1)
    write(cache / "ijcnn1", {"ijcnn1.bz2": b"half", "ijcnn1.t.bz2": bz2.compress(b"1 1:1\n-1 1:2\n")})
    with pytest.raises(DatasetError, match=r"ijcnn1\.bz2 cannot be read: "):
        load("ijcnn1")
    (cache / "ijcnn1" / "ijcnn1.bz2").unlink()
    assert load("ijcnn1").y.tolist() == [-1, 1] and server.asked == ["/ijcnn1.bz2"]
    assert len(load("ijcnn1", split="test", verify=False)) == 2  # as it is
    with pytest.raises(DatasetError, match="or a different one; remove it to download the official one"):
        load("ijcnn1", split="test")


@pytest.mark.parametrize("content", ["cut", "empty", "no archive", "changed", "other"])
@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_with_wrong_contents_is_named(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, ending: str, content: str
) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped(IJCNN1)
    whole = COMPRESS[ending](50 * IJCNN1["ijcnn1"])
    changed = damaged(whole, [(0.5, whole[len(whole) // 2] ^ 255)], 1.0)
    contents = {"cut": whole[:-9], "empty": b"", "no archive": b"<html>", "changed": changed, "other": whole}
    write(cache / "ijcnn1", {f"ijcnn1{ending}": contents[content]})
    with pytest.raises(DatasetError, match=rf"ijcnn1{ending} (cannot be read|has the SHA256|unpacks to more)"):
        load("ijcnn1")
    assert inside(cache) == ["ijcnn1", f"ijcnn1/ijcnn1{ending}"] and server.asked == []


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux has a file that opens and cannot be read")
@pytest.mark.parametrize("name", ["ijcnn1", "ijcnn1.bz2"])
def test_a_file_that_cannot_be_read_stays_in_the_cache(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped(IJCNN1)
    path = write(cache / "ijcnn1", {}) / name
    path.symlink_to("/proc/self/mem")
    with pytest.raises(DatasetError, match=rf"^{re.escape(str(path))} cannot be read: Input/output"):
        load("ijcnn1")
    assert path.is_symlink() and server.asked == []


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    enter(monkeypatch, "ijcnn1", IJCNN1, (server.address,))
    server.contents = zipped(IJCNN1)
    fetch("ijcnn1", progress=progress)
    printed = capsys.readouterr()
    assert ("100%" in printed.err) == progress and bool(printed.err) == progress and not printed.out
