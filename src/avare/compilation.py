"""How kernels are compiled: without the GIL, and kept on disk where that is possible."""

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the result for the next process."""
    return _compile(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same for a helper of kernels: passing arrays on by value costs more than most helpers do."""
    return _compile(function, forceinline=True)


def summing(function: Callable[..., Any]) -> Any:
    """The same for a long sum whose order does not matter: it is made in parts, many times faster."""
    return _compile(function, fastmath={"reassoc", "nsz"})


def product(function: Callable[..., Any]) -> Any:
    """The same for an inner loop of products: sums are made in parts, and with fused multiply-adds."""
    return _compile(function, fastmath={"reassoc", "nsz", "contract"}, forceinline=True)


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder to keep it in can be written to
        return njit(nogil=True, **options)(function)
