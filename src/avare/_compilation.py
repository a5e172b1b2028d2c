"""How kernels are compiled: without the GIL, and kept on disk where that is possible."""

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the result for the next process."""
    return _compile(function)


def lean(function: Callable[..., Any]) -> Any:
    """The same for a kernel that makes no arrays: references to them are not counted.

    Counting takes two atomic operations for each array each time it is passed on: for a batch of
    one they would cost more than the work.
    """
    return _compile(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """The same for a helper of kernels, to become part of them."""
    return _compile(function, _nrt=False, forceinline=True)


def merged(function: Callable[..., Any]) -> Any:
    """The same for a helper whose code is copied into its callers before they are compiled.

    It is not compiled by itself, which saves time, and its arguments may be kernels.
    """
    return _compile(function, inline="always")


def product(function: Callable[..., Any]) -> Any:
    """The same for an inner loop of products: sums are made in parts, and with fused multiply-adds."""
    return _compile(function, _nrt=False, forceinline=True, fastmath={"reassoc", "nsz", "contract"})


def summing(function: Callable[..., Any]) -> Any:
    """The same for a long sum whose order does not matter: it is made in parts, many times faster."""
    return _compile(function, fastmath={"reassoc", "nsz"})


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    # The first, not said, would be taken over from whoever calls it first; the second saves compiling what none calls.
    options = {"_nrt": True, "no_cfunc_wrapper": True, **options}
    try:
        return njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder to keep it in can be written to
        return njit(nogil=True, **options)(function)
