"""Compile kernels without the GIL, and cache them on disk where possible."""

import contextlib
import functools
import hashlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba import njit, types
from numba.core import event
from numba.core.caching import FunctionCache
from numba.extending import overload


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and cache it on disk for the next process."""
    return _compile(function)


def lean(function: Callable[..., Any]) -> Any:
    """Compile a kernel that creates no arrays, without counting references to them; other kernels inline it.

    Counting takes two atomic operations for each array in each call: for a batch of one they would
    cost more than the work.
    """
    return _compile(function, _nrt=False, forceinline=True)


inlined = lean
"""Compile a helper of kernels, which becomes part of its callers."""


def merged(function: Callable[..., Any]) -> Any:
    """Copy a helper's code into its callers before they are compiled.

    It is not compiled by itself, which saves time, and its arguments may be kernels.
    """
    return _compile(function, inline="always")


def product(function: Callable[..., Any]) -> Any:
    """Compile an inner loop of products: sums are computed in parts, with fused multiply-adds."""
    return _compile(function, _nrt=False, forceinline=True, fastmath={"reassoc", "nsz", "contract"})


def quick(function: Callable[..., Any]) -> Any:
    """Compile a loop over independent elements, several at once; sums are computed in parts, and 1 / 0 is inf."""
    return _compile(function, _nrt=False, error_model="numpy", fastmath={"reassoc", "nsz", "contract", "arcp"})


class ByType:
    """A kernel with one version for each type of its first argument, a ``NamedTuple``.

    The version is chosen when the caller is compiled, so that the choice costs nothing at run time, and
    the caller is kept on disk like any other kernel. (A function passed as an argument would not be.)
    For a type of another package the caller is compiled once per process instead.

    >>> from typing import NamedTuple
    >>> class Square(NamedTuple):
    ...     side: float
    >>> area = ByType("area")
    >>> @area.version(Square)
    ... @kernel
    ... def area_of_square(square):
    ...     return square.side**2
    >>> area.function(Square(3.0))
    9.0
    """

    def __init__(self, name: str) -> None:
        self.versions: dict[type, Callable[..., Any]] = {}
        """The compiled versions, by type."""

        def function(state: Any, *arguments: Any) -> Any:
            return self.versions[type(state)](state, *arguments)

        function.__name__ = name
        self.function = function
        """Call this one, from Python or inside a kernel."""
        if not numba.config.DISABLE_JIT:
            # Numba compares signatures, annotations included: hence a function without any.
            options = {"nogil": True, "_nrt": False, "forceinline": True}
            overload(function, jit_options=options)(lambda state, *arguments: self._choose(state))

    def version(self, kind: type) -> Callable[[Callable[..., Any]], Any]:
        """Declare the compiled version for a type."""
        # Numba names what it compiles after the types' names and fields, and would link one version for both types.
        if any(other is not kind and other.__name__ == kind.__name__ for other in self.versions):
            kind.__name__ += f"_{len(self.versions)}"

        def enter(function: Callable[..., Any]) -> Any:
            self.versions[kind] = function
            return function

        return enter

    def _choose(self, state: Any) -> Any:
        chosen = self.versions.get(getattr(state, "instance_class", type(None)))
        return None if chosen is None else lambda state, *arguments: chosen(state, *arguments)


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    # An option that is not set is taken from the kernel that calls it first, and kept on disk with the result: speed
    # and even rounding would depend on what some process once compiled first. The last saves compiling what none calls.
    fixed = {"_nrt": True, "forceinline": False, "fastmath": False, "error_model": "python", "no_cfunc_wrapper": True}
    options = {**fixed, **options}
    try:
        compiled = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder to keep it in can be written to
        return njit(nogil=True, **options)(function)
    if not numba.config.DISABLE_JIT:
        compiled._cache = _Cache(function)
    return compiled


class CacheWarning(RuntimeWarning):
    """Compiled kernels could not be read from disk, or not be kept there."""


class _Cache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """Numba's cache on disk, but only for types of the kernel's own package.

    A kernel that is compiled for a type of another package contains that package's kernels. The cache would not
    notice when they change, and could not be read where that package is missing. If the disk is full, or its files are
    damaged, kernels are compiled without it. Numba notices a change of the file that has the kernel, and not of those
    that it calls or takes constants from: here, a change of any such file counts, see `_stamp`.
    """

    _warned: ClassVar[list[str]] = []  # once per process is enough, because all kernels are in the same folders

    def load_overload(self, signature: Any, target: Any) -> Any:
        if not self._is_own(signature):
            return None
        try:
            return super().load_overload(signature, target)
        except Exception as error:  # damaged files raise almost anything
            self._warn(error)
            with contextlib.suppress(Exception):
                self.flush()  # an empty index takes the place of the damaged one
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        if self._is_own(signature):
            try:
                super().save_overload(signature, compiled)
            except Exception as error:  # no space left, or no permission any more
                self._warn(error)

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        modules = {__name__, self._py_func.__module__, *_modules_of(signature)}
        return (*super()._index_key(signature, codegen), *map(_stamp, sorted(modules)))

    def _warn(self, error: Exception) -> None:
        """Say that the cache is of no use."""
        if not self._warned:
            self._warned.append(
                f"the cache of compiled kernels in {self.cache_path} cannot be used ({error!r}): compiling without it; "
                "delete its .nbi and .nbc files, or set NUMBA_CACHE_DIR"
            )
            warnings.warn(self._warned[0], CacheWarning, stacklevel=3)

    def _is_own(self, signature: Any) -> bool:
        """Whether no type in a signature is a ``NamedTuple`` of another package."""
        package = self._py_func.__module__.split(".")[0]
        return all(module.split(".")[0] == package for module in _modules_of(signature))


def _modules_of(signature: Iterable[Any]) -> set[str]:
    """Return the modules of all kinds of ``NamedTuple`` in a signature."""
    tuples = [each for each in signature if isinstance(each, types.BaseTuple)]
    own = {each.instance_class.__module__ for each in tuples if isinstance(each, types.BaseNamedTuple)}
    return own.union(*map(_modules_of, tuples))


@functools.cache
def _stamp(module: str) -> str:
    """Return what changes if a file does that can change a kernel of a module.

    These are all files of its package, without the parts that nothing else imports: an edit of the loaders need not
    compile the samplers again. For a module outside of packages, they are the files in its folder.
    """
    top, *below = module.split(".")
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:  # typed in: nothing is cached
        return ""
    folder, is_package = Path(file).parent, hasattr(sys.modules[top], "__path__")
    others = _LEAVES - set(below[:1]) if top == __name__.split(".")[0] else set()
    stamp = hashlib.sha256()
    for path in sorted(folder.rglob("*.py") if is_package else folder.glob("*.py")):
        if path.relative_to(folder).parts[0] not in others:
            stamp.update(path.read_bytes())
    return stamp.hexdigest()


_LEAVES = {"experiments", "jax", "linear", "plotting", "replay", "sklearn", "torch"}  # import-linter proves it


class _Notice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Say that kernels of this package are being compiled, if it takes long; again only after a while without any.

    Nothing is compiled that is cached. The line is a warning of the logger "avare": without any configuration it goes
    to the error stream.
    """

    def __init__(self) -> None:
        self._depth, self._spent, self._last = 0, 0.0, 0.0

    def on_start(self, each: Any) -> None:
        self._count(each, 1)

    def on_end(self, each: Any) -> None:
        self._count(each, -1)

    def _count(self, each: Any, change: int) -> None:
        """Add the time since the last event, if a kernel was being compiled; kernels that call others contain them."""
        if str(each.data["dispatcher"].py_func.__module__).split(".")[0] != "avare":
            return
        now = time.perf_counter()
        if self._depth == 0 and self._spent > _PATIENCE and now - self._last > _QUIET:
            self._spent = 0.0
        before = self._spent
        self._spent += now - self._last if self._depth > 0 else 0.0
        self._depth, self._last = self._depth + change, now
        if before <= _PATIENCE < self._spent:
            logging.getLogger("avare").warning(
                "avare: compiling kernels for their first use; python -m avare.compile does it beforehand ..."
            )


_PATIENCE, _QUIET = 2.0, 10.0  # seconds
event.register("numba:compile", _Notice())
