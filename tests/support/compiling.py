"""Compile each kernel once, and do not trace what is not ours: the compiler, and imports of other packages.

Compiling takes more than a third of the time of the first run of all tests. Coverage, which is called at each line of
Python, would make it a third longer; and workers that need the same kernel at the same time would all compile it.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from avare._compilation import _Cache


def share() -> None:
    """Replace Numba's ``Dispatcher.compile`` by one that waits for a worker which compiles the same kernel."""
    original = Dispatcher.compile
    held: set[str] = set()

    def compile_once(self: Any, signature: Any) -> Any:
        if self.overloads.get(tuple(signature)) is not None or not isinstance(self._cache, _Cache):
            return original(self, signature)
        key = hashlib.sha256(f"{self.py_func.__module__}.{self.py_func.__qualname__}{signature}".encode()).hexdigest()
        with global_compiler_lock, _untraced():
            if key in held:
                return original(self, signature)
            held.add(key)
            with _lock(key):
                try:
                    return original(self, signature)
                finally:
                    held.discard(key)

    pytest.MonkeyPatch().setattr(Dispatcher, "compile", compile_once)


def trace_no_imports() -> None:
    """Replace the import of modules of other packages by one that is not traced."""
    original = SourceFileLoader.exec_module

    def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
        with _untraced() if "site-packages" in self.path else nullcontext():
            original(self, module)

    pytest.MonkeyPatch().setattr(SourceFileLoader, "exec_module", exec_module)


@contextmanager
def _untraced() -> Iterator[None]:
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        (lambda: None)()  # coverage takes over again at the next call


@contextmanager
def _lock(key: str) -> Iterator[None]:
    """Hold a lock that all workers of this run know; it is given back even if its process is killed."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"avare-{run}"
    folder.mkdir(exist_ok=True)
    with (folder / key).open("w") as file:
        if sys.platform != "win32":  # there, two workers may compile the same kernel
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
